"""Planning of a study: sizes, settings of the machine, timing of runs, and steps within the budget."""

import math
import shutil
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial

from archwright.checkpoint.started import StartRecord
from archwright.data.eval_windows import Windows
from archwright.lab.design.command_line import Command
from archwright.lab.design.identical import refuse_identical, unscaled
from archwright.lab.design.matching import count, matched, mismatch
from archwright.lab.design.plan import (
    LEAST_STEPS,
    Arm,
    Plan,
    compared_runs_each,
    evaluated,
    horizons,
    runs_each,
    runs_of,
    tokenizer_folder,
    tuning_runs_each,
)
from archwright.lab.design.plan_file import Cost
from archwright.lab.design.scaling import SIZES, SMALLEST
from archwright.lab.design.variants import Arms, arms, set_by, sized_by_user, words_of
from archwright.lab.procedure.constants import PAIRS
from archwright.lab.running import run_cache
from archwright.lab.running.run_job import timing
from archwright.lab.running.scheduler import ENDING
from archwright.lab.running.workers import Workers
from archwright.machine.decide import Decisions, decide, decide_kernel, decide_loss, usable_cores
from archwright.model.build import build
from archwright.planning.cost import run_flops_per_token
from archwright.runs import RunFolder
from archwright.spec.budget import Budget
from archwright.spec.data import TokenizerSpec
from archwright.spec.errors import UserError
from archwright.spec.run_spec import RunSpec
from archwright.spec.study_spec import StudySpec, parse_count
from archwright.training.data import Material, prepare_data
from archwright.training.evaluation import held_out_windows, reading_of
from archwright.training.resolve import make_batches, resolved, with_steps

USUAL_SIZE = 2e5
"""Non-embedding parameters if the budget is not a time."""

LEAST_TOKENS_PER_PARAMETER = 5.0
"""Tokens per parameter that the largest size within a budget gets."""

LEAST_EVALUATION = 8192
"""Fewest held-out tokens."""

USED = 0.97
"""Planned share of the budget. Slower runs reduce the number of seeds; faster runs increase it."""

TIMED_SECONDS = (0.3, 4.0)
"""Limits of the timing of steps, about a hundredth of the budget."""

COUNTED_FROM = 10.0
"""Seconds of a step, by FLOPs, above which steps are not timed."""

MFU = 0.4
"""Assumed utilisation for such steps, as in `archwright plan`."""

SLACK = 1.2
"""Factor on the least budget in advice, because timings vary with the load of the machine."""

WARMUP = 0.1
"""Default warm-up as a share of the steps."""


@dataclass
class Planner:
    """Planner of a study."""

    study: StudySpec
    folder: RunFolder
    workers: Workers
    command: Command
    say: Callable[[str], None] = lambda text: None
    started: float = field(default_factory=time.monotonic)
    decisions: Decisions = field(init=False)
    evaluation_tokens: int = field(init=False)
    """Held-out tokens for every run."""

    def plan(self) -> Plan:
        """Return the plan of the study.

        Raises:
            UserError: Invalid variants, text or budget.
        """
        size = self._first_size()
        asked = arms(self.study, size)
        may_grow = self.study.size == "auto" and size is not None and self.study.wall_seconds
        refuse_identical(self.study, unscaled(self.study) if may_grow else asked)
        found = self._settled(asked)
        self.say(f"timing {len(found)} variants")
        workers = self._workers(found)
        sizes, timed = [size], size
        if may_grow:
            sizes = self._sizes_for_budget(found, workers, may_grow)
        for size in sizes:
            if size != timed:
                found, timed = self._settled(arms(self.study, size)), size
            refuse_identical(self.study, {name: arm.run for name, arm in found.items()})
            costs = self._time(found, workers)
            try:
                steps = self._steps(found, costs, workers)
                break
            except UserError:  # slower than its FLOPs predict
                if size == sizes[-1]:
                    raise
        step = next(iter(found.values())).run.tokens_per_step
        done = {  # all on the same number of tokens
            name: replace(arm, run=_with_steps(arm.run, _steps_on(steps * step, arm.run)))
            for name, arm in found.items()
        }
        decided = (workers, steps, self.evaluation_tokens, costs)
        return Plan(self.study, done, self.decisions, *decided)

    def _first_size(self) -> float | None:
        if self.study.size == "given" or (self.study.size == "auto" and sized_by_user(self.study)):
            return None
        size = USUAL_SIZE if self.study.size == "auto" else parse_count(self.study.size)
        if size < SMALLEST:
            raise UserError(
                f'size: found "{self.study.size}"; the smallest models that are made have about {SMALLEST:,} '
                f"parameters outside embedding and head: give --size {SMALLEST} or more, such as 0.2M"
            )
        return size

    def _settled(self, asked: Arms) -> dict[str, Arm]:
        """Return variants of equal size, with the baseline's decisions for the machine."""
        first, *_ = asked
        asked = {name: self._judged(run) for name, run in asked.items()}
        materials = self._materials(asked)
        windows = self._evaluation_windows(asked[first], materials[first])
        self.evaluation_tokens = windows.num_tokens
        if len({id(material) for material in materials.values()}) > 1:
            asked = {name: _judged_by_bytes(run, windows) for name, run in asked.items()}
            for name, run in asked.items():
                try:
                    reading_of(run, 0, 1).windows(run, materials[name])
                except UserError as error:
                    raise UserError(f"{name}: {error}") from None
        baseline = asked[first]
        batches = {name: make_batches(run, materials[name]) for name, run in asked.items()}
        flops = {
            name: partial(run_flops_per_token, run, lengths=batches[name].lengths)
            for name, run in asked.items()
        }
        self.decisions = self._decide(baseline, materials[first].tokenizer.vocab_size)
        target = count(baseline.model, materials[first].tokenizer.vocab_size, flops[first])
        found, lines = {}, []
        for name, run in asked.items():
            words = words_of(self.study)[name]
            held = {path.removeprefix("model.") for path in set_by(words)}
            vocab_size = materials[name].tokenizer.vocab_size
            model, equal = run.model, True
            if name != first:
                match = self.study.match
                model, equal = matched(model, target, match, vocab_size, held, flops[name])
            run = run.model_copy(update={"model": model, "machine": self.decisions.machine})
            built = build(model, device="meta", vocab_size=vocab_size)
            counts = count(model, vocab_size, flops[name])
            found[name] = Arm(name, words, resolved(run, built), counts, materials[name])
            if not equal:
                off = 100 * mismatch(counts, target, self.study.match)
                lines.append(
                    f"{name}: cannot have the size of {first} (dim {baseline.model.dim}): the nearest is off by "
                    f"{off:+.0f} %, at dim {model.dim}: set narrower widths, a larger --size or --match none"
                )
        if lines:
            raise UserError(*lines)
        return found

    def _materials(self, asked: Arms) -> dict[str, Material]:
        """Return the tokens of each variant; variants with equal tokenizers share them."""
        known: list[tuple[TokenizerSpec, str, Material]] = []
        found = {}
        for name, run in asked.items():
            spec = run.data.tokenizer
            material = next((m for other, _, m in known if other == spec), None)
            if material is None:
                material = self._material(run, len(known))
                fingerprint = material.tokenizer.fingerprint
                if same := [n for _, n, m in known if m.tokenizer.fingerprint == fingerprint]:
                    task = not run.data.task.is_none
                    then = "a task has tokens of its own" if task else "give less, or more text"
                    raise UserError(
                        f'data.tokenizer: "{name}" and "{same[0]}" have the same tokens, so that there is nothing to '
                        f"compare: {then}"
                    )
                known.append((spec, name, material))
            found[name] = material
        return found

    def _material(self, run: RunSpec, number: int) -> Material:
        """Return the tokens of a tokenizer, saved in its folder."""
        if number == 0:
            return prepare_data(run, self.folder)
        if not run.objective.defines_bits_per_byte:
            raise UserError(
                f'objective.kind: found "{run.objective.kind}" where tokenizers differ; bits per byte, by which they '
                'are judged, are defined for "next_token"'
            )
        place = tokenizer_folder(self.folder.path, number)
        StartRecord(self.folder.path).add(place.parent.name)
        shutil.rmtree(place, ignore_errors=True)  # from a model of another size
        place.mkdir(parents=True)
        return prepare_data(run, RunFolder(place))

    def _judged(self, run: RunSpec) -> RunSpec:
        """Return a run with final evaluation on the study's tokens in disjoint windows."""
        length = run.model.context_length
        tokens, lengths = self.study.evaluation_tokens, [length * n for n in self.study.lengths]
        update = {"stride": length, "final_max_tokens": tokens, "lengths": tuple(lengths)}
        evaluate = run.evaluate.model_copy(update=update)
        return run.model_copy(update={"evaluate": evaluate, "budget": Budget("1steps")})

    def _evaluation_windows(self, run: RunSpec, material: Material) -> Windows:
        length = run.model.context_length
        windows = held_out_windows(
            material.held_out,
            material.tokenizer,
            run.objective,
            length,
            stride=length,
            max_tokens=self.study.evaluation_tokens,
        )
        least = min(LEAST_EVALUATION, self.study.evaluation_tokens)
        if windows.num_tokens < least:
            raise UserError(
                f"data.text: {windows.num_tokens:,} tokens are held out to judge on; expected at least "
                f"{least:,}: give more text, or other text to judge on with data.held_out=FILE"
            )
        return windows

    def _decide(self, run: RunSpec, vocab_size: int) -> Decisions:
        """Return the machine's decisions for the baseline, used by all variants."""
        asked = run.machine
        if asked.threads == "auto" and asked.device != "cuda":
            asked = asked.model_copy(update={"threads": 1})
        decisions = decide(asked)
        model = build(run.model, device="meta", vocab_size=vocab_size)
        decide_kernel(decisions, model, run)
        decide_loss(decisions, model, run)
        for key in ("compile", "fused"):
            if getattr(decisions.machine, key) == "auto":
                decisions.decide(key, "none", "runs of a study are short and many")
        return decisions

    def _workers(self, found: dict[str, Arm]) -> int:
        """Return the number of concurrent runs.

        Other machines report their capacity. This machine runs one per CPU core, or a single run with a GPU or
        `parallelism = "none"`, which gives each run all cores.
        """
        if (places := self.workers.prepare(self.decisions.machine)) is not None:
            return places
        cores, cuda = usable_cores(), self.decisions.machine.device == "cuda"
        if cuda or self.study.parallelism == "processes":
            return 1 if cuda else cores
        self.decisions.decide("threads", cores, "parallelism=none gives each run all cores")
        for name, arm in found.items():
            run = arm.run.model_copy(update={"machine": self.decisions.machine})
            found[name] = replace(arm, run=run)
        return 1

    def _sizes_for_budget(
        self, found: Mapping[str, Arm], workers: int, seconds: float
    ) -> list[float | None]:
        """Return sizes with enough tokens and steps, the largest first, by measured FLOP/s."""
        baseline = next(iter(found.values()))
        cost = self._time({"0": baseline}, workers)["0"]
        flops = baseline.counts.flops_per_token * baseline.run.tokens_per_step / cost.step
        each = seconds * USED * workers / (_wholes(self.study) * len(found))
        lengths = make_batches(baseline.run, baseline.material).lengths

        def fits(run: RunSpec) -> bool:
            counted = partial(run_flops_per_token, run, lengths=lengths)
            counts = count(run.model, baseline.material.tokenizer.vocab_size, counted)
            tokens: float = (each - cost.setup) * flops / counts.flops_per_token
            enough = tokens >= LEAST_TOKENS_PER_PARAMETER * counts.non_embedding
            return enough and tokens >= LEAST_STEPS * run.tokens_per_step

        possible: dict[float, RunSpec] = {}
        for size in SIZES:
            with suppress(UserError):  # words impossible at this size, such as more heads
                possible[size] = next(iter(arms(self.study, size).values()))
        most = max((n for n, run in possible.items() if fits(run)), default=min(possible))
        return [size for size in reversed(possible) if size <= most]

    def _steps(self, found: Mapping[str, Arm], costs: Mapping[str, Cost], workers: int) -> int:
        """Return the number of steps of each run within the budget."""
        run = next(iter(found.values())).run
        seconds = self.study.wall_seconds
        if seconds is None:
            parameters = next(iter(found.values())).counts.parameters
            return self.study.budget.steps(run.tokens_per_step, 1.0, num_parameters=parameters)
        final = self.evaluation_tokens
        whole, at_the_end = (evaluated(run, final, has_curve=curve) for curve in (True, False))
        shorter = min(PAIRS, self.study.seeds) * len(horizons(self.study))
        curves, ends = compared_runs_each(self.study), tuning_runs_each(self.study) + shorter
        fixed = sum(
            curves * cost.run(0, whole) + ends * cost.run(0, at_the_end) for cost in costs.values()
        )
        relative = {n: run.tokens_per_step / arm.run.tokens_per_step for n, arm in found.items()}
        step = sum(cost.step * relative[n] for n, cost in costs.items()) * _wholes(self.study)
        fixed, step = fixed / workers, step / workers
        planning = time.monotonic() - self.started + ENDING
        steps = int((seconds * USED - planning - fixed) / step)
        if steps < LEAST_STEPS:
            least = SLACK * (planning + fixed + LEAST_STEPS * step) / USED
            runs = runs_of(self.study, len(found))
            longer = self.command.again(budget=Budget(time_budget(least)))
            raise UserError(
                f"budget: {self.study.budget} pays for {max(0, steps)} steps in each of about {runs} runs; expected "
                f"{LEAST_STEPS} or more: give fewer seeds or variants, a smaller --size, or more time: {longer}"
            )
        return steps

    def _counted(self, arm: Arm) -> Cost:
        """Return the cost of a run by its FLOPs, at a utilisation of MFU."""
        token = self.decisions.least_seconds(arm.counts.flops_per_token) / MFU
        return Cost(0.0, arm.run.tokens_per_step * token, token / 3, counted=True)

    def _time(self, timed: Mapping[str, Arm], workers: int) -> dict[str, Cost]:
        """Return the measured costs of runs in concurrent processes."""
        counted = {name: self._counted(arm) for name, arm in timed.items()}
        if max(cost.step for cost in counted.values()) > COUNTED_FROM:
            return counted
        scratch = self.folder.path / "timing"
        # The minimum unless the number of steps depends on the timing.
        least, most = TIMED_SECONDS
        seconds = min(most, max(least, (self.study.wall_seconds or 0.0) / 100))
        found: dict[str, Cost] = {}
        waiting = list(timed.items())
        try:
            self.workers.size = workers
            while waiting or self.workers.running:
                while waiting and self.workers.free:
                    name, arm = waiting.pop(0)
                    flops = arm.counts.flops_per_token
                    run = with_steps(arm.run, LEAST_STEPS)
                    folder = run_cache.prepare(
                        scratch / str(len(waiting)), run, arm.material, self.decisions, flops
                    )
                    self.workers.give(name, timing(folder.path, seconds))
                for done in self.workers.wait(1.0):
                    if done.state != "done":
                        raise UserError(f"{done.name}: cannot be trained: {done.why}")
                    setup, step, token = (float(done.answer[k]) for k in ("setup", "step", "token"))
                    found[str(done.name)] = Cost(setup, step, token)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
        return found


def time_budget(seconds: float) -> str:
    """Return a budget in whole minutes, or hours from ten hours."""
    return f"{math.ceil(seconds / 60)}m" if seconds < 36_000 else f"{math.ceil(seconds / 3600)}h"


def _judged_by_bytes(run: RunSpec, windows: Windows) -> RunSpec:
    """Return a run with evaluations of as many bytes as the baseline's windows."""
    share = run.evaluate.max_tokens / windows.num_tokens
    update = {
        "max_bytes": max(1, round(windows.num_bytes * min(1.0, share))),
        "final_max_bytes": windows.num_bytes,
    }
    return run.model_copy(update={"evaluate": run.evaluate.model_copy(update=update)})


def _steps_on(tokens: int, run: RunSpec) -> int:
    """Return the steps of a run on a number of tokens, at least 1."""
    return max(1, round(tokens / run.tokens_per_step))


def _with_steps(run: RunSpec, steps: int) -> RunSpec:
    """Return a run of `steps`, with an automatic warm-up long enough for post-norm models."""
    if run.schedule.warmup == "auto":
        schedule = run.schedule.model_copy(update={"warmup": max(1, round(WARMUP * steps))})
        run = run.model_copy(update={"schedule": schedule})
    return with_steps(run, steps)


def _wholes(study: StudySpec) -> float:
    """Return the cost of a variant's runs in full runs."""
    return runs_each(study) + min(PAIRS, study.seeds) * sum(horizons(study))
