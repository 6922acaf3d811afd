"""Random compositions under random plans: each is refused by a line, or processes train it as one does.

    python -m tests.scale.laws                 sixty of them, which is `make laws-scale`
    python -m tests.scale.laws --only 0:20     some of these
    python -m tests.scale.laws RUN.toml        one by itself, as a failure names it

Compositions are drawn as `tests/laws` draws them, with weights so large that a dropped detail shows, and texts with
documents and padding. All is computed in float64, where sums in another order differ by about 1e-15: gradients of the
first step, losses of all steps and the weights behind the last one are held to `BOUNDS`. Where a composition makes more
of a rounding than that, one process differs from itself as much once its weights are rounded otherwise, or once its
batch is split into other microbatches (scores next to -1e5, as LSH attention has them, round by 1e-11), which is tried
then; such a composition counts as inconclusive.
"""

import argparse
import contextlib
import itertools
import json
import math
import os
import random
import re
import subprocess
import sys
import tempfile
import time
import tomllib
import traceback
from collections import Counter
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, get_args

import hypothesis
import numpy as np
import tomli_w
import torch
from hypothesis import strategies as st
from torch import Tensor

from archwright.data.inputs import IGNORE, Batch, Inputs
from archwright.model.build import build
from archwright.scale.checks import check_layout
from archwright.scale.group import Group
from archwright.scale.launch import Launch
from archwright.scale.layout import AXES, Layout, layout_of
from archwright.scale.processes import Processes
from archwright.spec.errors import UserError
from archwright.spec.feedforward import Experts
from archwright.spec.fingerprint import differing
from archwright.spec.merge import validated
from archwright.spec.model_spec import ModelSpec, NoEncoder
from archwright.spec.overrides import dump
from archwright.spec.read import to_toml
from archwright.spec.run_spec import RunSpec
from archwright.spec.scale import PipelineSchedule
from archwright.testing.case import Case as SmallModel
from archwright.training.session import Session
from bench.scale import environment, torchrun
from tests.scale.gradients import first_gradients, joined
from tests.strategies import SMALL, one_stack_specs, specs, two_stack_specs
from tests.tiny import ROOT

SIZES = (2, 4)
STEPS = 4
NUMBER, SEED = 60, 0
BOUNDS = {"gradients": 1e-10, "losses": 1e-10, "weights": 1e-10}
"""Largest differences from one process: of a parameter's gradient, relative to the largest value in it or to a
millionth of the largest of all; of losses and norms, relative; of weights, absolute."""
ROUNDING = 1e-15
"""Share of a weight that is changed to see what a composition makes of roundings."""
AMPLIFIED = 100
"""How much larger the difference of processes may be than what that makes of one."""
SPLIT, LARGEST = 2, 1e-9
"""The same of one process that splits its batch otherwise, and the largest difference that this excuses: a fault in
how microbatches are summed would show in both."""
MOST_INCONCLUSIVE, LEAST_TRAINED = 0.1, 0.5
SHARED = (*AXES, "expert")
FIXED = (
    *("machine.device=cpu", "machine.threads=1", "machine.precision=fp32", "machine.num_steps=8"),
    *("machine.compile=none", "machine.fused=none"),
)
SECONDS_EACH, SECONDS_START = 10, 60
"""After which processes hang."""


class Trial(NamedTuple):
    """A run under a plan: its place among those drawn, and its spec as TOML."""

    number: int
    toml: str

    @property
    def run(self) -> RunSpec:
        return validated(RunSpec, tomllib.loads(self.toml))


class Trained(NamedTuple):
    """What a training leaves: numbers of each step, the first one's gradients, and the last weights."""

    steps: Tensor
    gradients: list[Tensor]
    names: list[str]
    """Of what they are the gradients; empty in a group."""
    weights: dict[str, Tensor]


@dataclass
class Drawn:
    """Runs under plans, and what was refused on the way to them, by line, with N for numbers."""

    trials: list[Trial] = field(default_factory=list)
    refused: Counter[str] = field(default_factory=Counter)
    never: int = 0
    """Compositions of which every plan was refused."""


@dataclass
class Verdict:
    """What became of a trial: its largest differences; where they are large, what one process makes of a rounding."""

    run: RunSpec
    differences: dict[str, float] = field(default_factory=dict)
    where: str = ""
    rounded: dict[str, float] = field(default_factory=dict)
    split: dict[str, float] = field(default_factory=dict)
    """What one process makes of microbatches half as large, where the batch has them."""
    error: str = ""

    @property
    def beyond(self) -> list[str]:
        """What differs by more than roundings in any order do."""
        return [what for what, bound in BOUNDS.items() if not self.differences[what] <= bound]

    @property
    def holds(self) -> bool:
        if self.error:
            return False
        return all(self.differences[what] <= self.explained(what) for what in self.beyond)

    def explained(self, what: str) -> float:
        """Return the largest difference that roundings of one process explain."""
        split = min(SPLIT * self.split.get(what, 0.0), LARGEST)
        return max(AMPLIFIED * self.rounded.get(what, 0.0), split)

    @property
    def inconclusive(self) -> bool:
        return self.holds and bool(self.beyond)


def drawn(
    number: int = NUMBER,
    seed: int = SEED,
    *,
    only: Container[int] = range(sys.maxsize),
    sizes: Sequence[int] = SIZES,
) -> Drawn:
    """Draw so many compositions, and for those that are asked for plans until one is not refused."""
    found = Drawn()
    every = [plan for size in sizes for plan in plans(size)]
    for place, spec in enumerate(compositions(number, seed)):
        if place not in only:
            continue
        dice = random.Random(f"{seed}/{place}")
        run = RunSpec(model=spec).override(*FIXED, *settings(dice), f"seed={place}")
        if dice.random() < 0.95:
            run = validated(RunSpec, _without_dropout(dump(run)))
        mixes = any("num_experts" in dict(x.feedforward) for x in spec.layers_by_kind.values())
        some = [plan for plan in every if mixes or plan["expert"] == 1]
        for axis in _in_turn(dice, mixes=mixes):
            plan = dice.choice([plan for plan in some if plan[axis] > 1])
            words = [f"scale.{key}={json.dumps(n)}" for key, n in plan.items()]
            # Each stage of a pipeline works on another microbatch, and has a layer at least.
            words.append(f"grad_accum_steps={max(run.grad_accum_steps, plan['pipeline'])}")
            if plan["pipeline_schedule"] == "interleaved_1f1b":
                words.append(f"model.num_layers={max(spec.num_layers, 2 * plan['pipeline'])}")
            planned = run.override(*words)
            lines = _refusals(planned)
            if not lines:
                found.trials.append(Trial(place, to_toml(planned)))
                break
            found.refused.update(re.sub(r"\d[\d.]*", "N", line) for line in lines)
        else:
            found.never += 1
    return found


def _in_turn(dice: random.Random, *, mixes: bool) -> list[str]:
    """Return the axes along which plans of a composition are drawn, most often those first that few can have."""
    many, few = [*AXES[:2]], [*AXES[2:], *["expert"] * mixes]
    last = dice.choices(many, k=8)
    if dice.random() < 0.2:
        return last
    return [*dice.sample(few, len(few)), *dice.sample(few, len(few)), *last]


def _refusals(run: RunSpec) -> tuple[str, ...]:
    """Return the lines by which a run is refused under its plan."""
    try:
        check_layout(run, layout(run))
    except UserError as error:
        return error.lines
    return ()


def compositions(number: int, seed: int) -> list[ModelSpec]:
    """Draw different compositions that no rule refuses, of one stack or two, and some with experts."""
    found: dict[str, ModelSpec] = {}
    mixtures = {"encoder": st.just(NoEncoder()), "ModelSpec.feedforward": specs(Experts, MIXTURE)}
    kinds = [one_stack_specs()] * 4 + [specs(ModelSpec, SMALL | mixtures), two_stack_specs()]

    @hypothesis.settings(
        max_examples=12,  # those that are drawn one behind the other are often alike
        database=None,
        derandomize=False,
        deadline=None,
        phases=[hypothesis.Phase.generate],
        suppress_health_check=[*hypothesis.HealthCheck],
    )
    @hypothesis.given(st.sampled_from(kinds).flatmap(lambda kind: kind))
    def draw(spec: ModelSpec) -> None:
        with contextlib.suppress(UserError):
            spec.resolved()
            found[spec.hash()] = spec

    for turn in itertools.count():
        if len(found) >= number:
            break
        hypothesis.seed(1000 * seed + turn)(draw)()
    dice = random.Random(seed)
    return [_simpler(spec, dice) for spec in dice.sample([*found.values()], number)]


MIXTURE = {
    **SMALL,
    "capacity": st.sampled_from(["none", "none", 2, 5]),
    "selection_bias_update_rate": st.sampled_from([0.0, 0.01]),
}
"""Values of experts: what they take of a row is the same beside other rows."""
SIMPLER = (
    *("sequence_head.kind=none", "recurrence.kind=none"),
    *("context_length=16", "attention.out_norm.kind=none", "feedforward.hidden_norm.kind=none"),
)
"""What leaves more to share out: most of what is drawn has something of each that cannot be."""


def _simpler(spec: ModelSpec, dice: random.Random) -> ModelSpec:
    """Return a composition with some changes of `SIMPLER` that no rule refuses."""
    for change in SIMPLER:
        if dice.random() < 0.6:
            with contextlib.suppress(UserError):
                changed = spec.override(change)
                changed.resolved()
                spec = changed
    return spec


def settings(dice: random.Random) -> Iterator[str]:
    """Draw how a run is trained."""
    yield f"batch_size={dice.choice((8, 8, 8, 12))}"
    yield f"grad_accum_steps={dice.choice((1, 2))}"
    yield f"optimizer.kind={dice.choice(('adamw', 'adamw', 'muon'))}"
    yield f"z_loss={dice.choice((0.0, 0.1))}"
    yield f"label_smoothing={dice.choice((0.0, 0.1))}"
    yield f"machine.loss={dice.choice(('whole', 'chunked'))}"
    yield f"machine.activation_checkpointing={dice.choice(('none', 'selective', 'full'))}"
    yield f"machine.kernel={dice.choice(('eager', 'sdpa', 'blockwise'))}"


def plans(size: int) -> Iterator[dict[str, Any]]:
    """Yield every plan of so many processes."""
    for numbers in itertools.product((1, 2, 4), repeat=len(AXES)):
        plan = dict(zip(AXES, numbers, strict=True))
        if math.prod(numbers) != size:
            continue
        cut = plan["shard"] * plan["context"]
        choices = itertools.product(
            [n for n in (1, 2, 4) if cut % n == 0],
            (True, False) if plan["tensor"] > 1 else (True,),
            get_args(PipelineSchedule) if plan["pipeline"] > 1 else ("1f1b",),
        )
        for expert, sequence, schedule in choices:
            yield plan | {"expert": expert, "sequence": sequence, "pipeline_schedule": schedule}


def layout(run: RunSpec) -> Layout:
    """Return the plan of a run, of processes on this machine."""
    size = math.prod(getattr(run.scale, axis) for axis in AXES)
    return layout_of(run.scale, Launch(0, size, 0, size))


def _without_dropout(values: dict[str, Any]) -> dict[str, Any]:
    return {
        key: _without_dropout(value)
        if isinstance(value, dict)
        else 0.0
        if key.endswith("dropout")
        else value
        for key, value in values.items()
    }


class Texts:
    """Batches of random tokens that a run's model reads: documents, padding on either side, or neither."""

    def __init__(self, run: RunSpec) -> None:
        self.run, self.spec = run, run.model.resolved()
        dice = random.Random(run.seed)
        self.documents = dice.random() < 0.5
        self.padding = dice.choice(("none", "none", "right", "left"))
        # Rows that ranks of a context group cannot share evenly end in padding, which router losses count. Runs have
        # none: `scale.context` must divide `context_length`.
        shorter = dice.choice((0, 0, 0, 1))
        mixes = any("num_experts" in dict(x.feedforward) for x in self.spec.layers_by_kind.values())
        self.length = max(1, self.spec.context_length - (0 if mixes else shorter))

    def at(self, step: int) -> Batch:
        """Return the batch of a step."""
        spec, rows, length = self.spec, self.run.batch_size, self.length
        dice = np.random.default_rng((self.run.seed, step))
        shape, vocab = (rows, length), int(spec.vocab_size)
        targets = dice.integers(0, vocab, shape)
        given: dict[str, Any] = {}
        if self.documents:
            given["segment_ids"] = (dice.random(shape) < 0.3).cumsum(1)
        if self.padding != "none":
            missing = dice.integers(0, length, (rows, 1))
            place = np.arange(length)
            real = place >= missing if self.padding == "left" else place < length - missing
            given["padding_mask"] = real
            targets = np.where(real, targets, IGNORE)
        masks = (
            dict(m).get("mask") for x in spec.layers_by_kind.values() for m in x.mixers.values()
        )
        if any(mask is not None and mask.kind == "prefix" for mask in masks):
            given["prefix_lengths"] = dice.integers(1, length + 1, rows)
        if spec.embedding.token_types:
            given["token_type_ids"] = dice.integers(0, spec.embedding.token_types, shape)
        targets = np.where(dice.random(shape) < 0.2, IGNORE, targets)
        tokens = dice.integers(0, vocab, shape)
        if not spec.encoder.is_none:
            given = self._of_two_texts(given, tokens)
            tokens = dice.integers(0, vocab, (rows, length))
        judged = None if spec.sequence_head.is_none else dice.integers(0, 2, rows)
        return Batch(Inputs(tokens, **given), targets, judged)

    def _of_two_texts(self, given: dict[str, Any], tokens: Any) -> dict[str, Any]:
        """Return what is given of a text as that of a decoder, whose source has as many documents and tokens."""
        found = {"decoder_tokens": tokens}
        for name in ("segment_ids", "padding_mask"):
            if name in given:
                found |= {name: given[name], f"decoder_{name}": given[name]}
        return found


def trained(run: RunSpec, processes: Processes, rounding: int = 0) -> Trained:
    """Train a run in float64; after a rounding, from weights that differ by so little. Of several processes each builds
    the model without memory, and takes its part of the values, as in a run."""
    whole = SmallModel(run.model, run.seed).enlarged()
    if rounding:
        dice = torch.Generator().manual_seed(rounding)
        with torch.no_grad():
            for p in whole.parameters():
                p.mul_(1 + ROUNDING * torch.randn(p.shape, generator=dice, dtype=p.dtype))
    alone = not isinstance(processes, Group)
    model = whole if alone else build(run.model, device="meta").double()
    model.use_kernel(run.machine.kernel)
    model.checkpoint_activations(run.machine.activation_checkpointing)
    names = {id(p): name for name, p in model.named_parameters()}
    processes.cut(model)
    if isinstance(processes, Group):
        for name, value in (*whole.named_parameters(), *whole.named_buffers()):
            processes.shards.put(name, value.detach())
    session = Session(run, model, Texts(run), processes)
    groups = [g for o in session.optimizers.values() for g in o.param_groups]
    for group in groups:
        if "dtype" in group:
            group["dtype"] = "float64"  # of Muon's products
    with first_gradients(session, processes) as gradients:
        steps = [session.step() for _ in range(STEPS)]
    named = (
        processes.shards.whole_tensors()
        if isinstance(processes, Group)
        else itertools.chain(model.named_parameters(), model.named_buffers())
    )
    numbers = [
        [s.loss, s.grad_norm, s.auxiliary.get("router_loss", 0.0), s.z_loss, s.second_loss or 0.0]
        for s in steps
    ]
    return Trained(
        torch.tensor(numbers, dtype=torch.float64),
        gradients,
        [names.get(id(p), "") for group in groups for p in group["params"]],
        {name: tensor.detach().clone() for name, tensor in named},
    )


def split_otherwise(run: RunSpec, one: Trained) -> dict[str, float]:
    """Return how far one process is from itself with half as large microbatches."""
    halves = 2 * run.grad_accum_steps
    if run.batch_size % halves:
        return {}
    again = trained(run.model_copy(update={"grad_accum_steps": halves}), Processes())
    return differences(again, one)[0]


def differences(found: Trained, one: Trained) -> tuple[dict[str, float], str]:
    """Return the largest differences of a training from that of one process, and whose gradient differs most."""
    largest = max(map(_most, one.gradients))
    by_name = {
        name: _off(own, expected) / max(_most(expected), 1e-6 * largest, 1e-30)
        for name, own, expected in zip(one.names, found.gradients, one.gradients, strict=True)
    }
    where = max(by_name, key=lambda name: by_name[name])
    size = one.steps.abs().clamp(min=1)
    assert found.weights.keys() == one.weights.keys()
    weights = [_off(value, one.weights[name]) for name, value in found.weights.items()]
    losses = _off(found.steps / size, one.steps / size)
    return {"gradients": by_name[where], "losses": losses, "weights": max(weights)}, where


def _most(x: Tensor) -> float:
    return float(x.abs().max()) if x.numel() else 0.0


def _off(found: Tensor, expected: Tensor) -> float:
    """Return the largest difference; numbers that are none have to be none in both."""
    assert found.shape == expected.shape, f"{[*found.shape]} in place of {[*expected.shape]}"
    found, expected = found.double(), expected.double()
    if not torch.equal(found.isfinite(), expected.isfinite()):
        return math.inf
    return _most((found - expected).nan_to_num(0.0))


def answer(asked: Path) -> None:
    """Train what is asked for together with the other processes; the first says how far it is from one alone."""
    question = json.loads(asked.read_text(encoding="utf-8"))
    group, number = joined(), -1
    out = Path(question["out"])
    try:
        for number, toml in question["trials"]:
            run = Trial(number, toml).run
            group.layout = layout(run)
            together = trained(run, group)
            if group.launch.rank == 0:
                one = trained(run, Processes())
                found, where = differences(together, one)
                line: dict[str, Any] = {"number": number, "differences": found, "where": where}
                if not all(found[what] <= bound for what, bound in BOUNDS.items()):
                    others = [
                        differences(trained(run, Processes(), rounding), one)[0]
                        for rounding in (1, 2, 3)
                    ]
                    line["rounded"] = {what: max(o[what] for o in others) for what in BOUNDS}
                    line["split"] = split_otherwise(run, one)
                with (out / "found.jsonl").open("a", encoding="utf-8") as file:
                    file.write(json.dumps(line) + "\n")
    except BaseException:
        text = json.dumps({"number": number, "error": traceback.format_exc()})
        (out / f"error-{group.launch.rank}.json").write_text(text, encoding="utf-8")
        os._exit(1)
    group.leave()


def verdicts(trials: Sequence[Trial]) -> dict[int, Verdict]:
    """Let processes train all trials, those of one number of processes after one start; after an error they start again
    with the rest."""
    found: dict[int, Verdict] = {}
    for size in sorted({layout(trial.run).size for trial in trials}):
        left = [trial for trial in trials if layout(trial.run).size == size]
        while left:
            with tempfile.TemporaryDirectory() as folder:
                answered, failed, error = _asked(size, left, Path(folder))
            for trial in left:
                if trial.number in answered:
                    found[trial.number] = Verdict(trial.run, **answered[trial.number])
                elif trial.number == failed:
                    found[trial.number] = Verdict(trial.run, error=error)
            left = [trial for trial in left if trial.number not in found]
    return found


def _asked(
    size: int, trials: Sequence[Trial], folder: Path
) -> tuple[dict[int, dict[str, Any]], int, str]:
    """Return what so many processes answer, and of which trial an error is, with its words."""
    asked = folder / "asked.json"
    asked.write_text(json.dumps({"trials": trials, "out": str(folder)}), encoding="utf-8")
    command = [*torchrun(size), "-m", "tests.scale.laws", "--in-group", str(asked)]
    with subprocess.Popen(
        command, cwd=ROOT, env=environment(), stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            _, output = process.communicate(timeout=SECONDS_START + SECONDS_EACH * len(trials))
        except subprocess.TimeoutExpired:
            process.terminate()  # torchrun ends those that it started
            output = f"processes wait for one another for ever\n{process.communicate()[1]}"
        except BaseException:
            process.terminate()
            raise
    lines = folder / "found.jsonl"
    text = lines.read_text(encoding="utf-8") if lines.exists() else ""
    answered = {line.pop("number"): line for line in map(json.loads, text.splitlines())}
    errors = sorted(folder.glob("error-*.json"), key=lambda file: file.stat().st_mtime_ns)
    failed = next((t.number for t in trials if t.number not in answered), -1)
    if errors:
        first = json.loads(errors[0].read_text(encoding="utf-8"))
        return answered, first["number"], first["error"]
    return answered, failed, output[-4000:]


def report(found: dict[int, Verdict], drawn: Drawn, seconds: float) -> list[str]:
    """Return what was trained under which plans, what was refused, and how far it is from one process."""
    held = [verdict for verdict in found.values() if verdict.holds]
    lines = [
        f"{len(found) + drawn.never} compositions: {len(held)} trained by several processes as by one, "
        f"{sum(v.inconclusive for v in held)} of them inconclusive; {len(found) - len(held)} otherwise; "
        f"{drawn.never} refused under every plan; {seconds:.0f} s"
    ]
    axes = {axis: sum(_has(v.run, axis) for v in held) for axis in SHARED}
    lines.append("axes: " + ", ".join(f"{axis} {number}" for axis, number in axes.items()))
    by_plan = Counter(plan_of(v.run) for v in held)
    lines += [f"  {number:3} x {plan}" for plan, number in sorted(by_plan.items())]
    decided = [v for v in held if not v.inconclusive]
    for what in BOUNDS if decided else ():
        most = sorted(v.differences[what] for v in decided)
        lines.append(
            f"{what}: at most {most[-1]:.1e}, half of them at most {most[len(most) // 2]:.1e}"
        )
    for number, v in found.items():
        if v.inconclusive:
            lines.append(
                f"inconclusive: {number}, off by {v.differences}; one process by {v.rounded}"
            )
    lines.append(f"{sum(drawn.refused.values())} lines of refusals:")
    lines += [f"  {number:3} x {line}" for line, number in drawn.refused.most_common()]
    return lines


def _has(run: RunSpec, axis: str) -> bool:
    return bool(getattr(run.scale, axis) > 1)


def plan_of(run: RunSpec) -> str:
    """Return the plan of a run in words."""
    words = [f"{axis} {getattr(run.scale, axis)}" for axis in SHARED if _has(run, axis)]
    words += ["sequence"] * (run.scale.sequence and _has(run, "tensor"))
    return ", ".join([*words, *["interleaved"] * layout(run).is_interleaved])


def failures(found: dict[int, Verdict], folder: Path) -> Iterator[str]:
    """Yield what did not hold, each with its composition and the command that repeats it."""
    for number, verdict in sorted(found.items()):
        if verdict.holds:
            continue
        folder.mkdir(parents=True, exist_ok=True)
        file = folder / f"{number}.toml"
        file.write_text(to_toml(verdict.run), encoding="utf-8")
        what = verdict.error or (
            f"off by {verdict.differences}, most in the gradient of {verdict.where}; after a rounding, one process "
            f"is off by {verdict.rounded}"
        )
        yield (
            f"{number}: {plan_of(verdict.run)}, {verdict.run.optimizer.kind}, grad_accum_steps="
            f"{verdict.run.grad_accum_steps}: {what}\n{tomli_w.dumps(differing(verdict.run.model))}\n"
            f"again: python -m tests.scale.laws {file}"
        )


def missing(found: dict[int, Verdict], drawn: Drawn) -> Iterator[str]:
    """Yield what was not seen of enough trials."""
    held = [verdict for verdict in found.values() if verdict.holds]
    if len(held) < LEAST_TRAINED * (len(found) + drawn.never):
        yield "fewer than half of the compositions were trained"
    if sum(v.inconclusive for v in held) > MOST_INCONCLUSIVE * len(held):
        yield "roundings decide more than one composition in ten"
    for axis in SHARED:
        if not any(_has(v.run, axis) for v in held):
            yield f"nothing was trained with scale.{axis} above 1"
    if not any(layout(v.run).is_interleaved for v in held):
        yield "nothing was trained by an interleaved pipeline"


def main(words: Sequence[str] | None = None) -> int:
    """Try what is asked for, print the report, and return 1 where anything did not hold."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("file", nargs="?", type=Path, help="a run under a plan")
    parser.add_argument("--number", type=int, default=NUMBER, help="compositions")
    parser.add_argument("--seed", type=int, default=SEED, help="of what is drawn")
    parser.add_argument("--only", help="FIRST:STOP of them")
    parser.add_argument("--keep", type=Path, default=Path("build/laws-scale"), help="for failures")
    parser.add_argument("--in-group", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args(words)
    torch.set_num_threads(1)
    if options.in_group:
        answer(options.in_group)
        sys.stdout.flush()
        os._exit(0)  # as archwright's command ends where several processes train
    started = time.perf_counter()
    if options.file:
        given = Drawn([Trial(0, options.file.read_text(encoding="utf-8"))])
    else:
        first, _, stop = (options.only or f"0:{options.number}").partition(":")
        given = drawn(options.number, options.seed, only=range(int(first), int(stop)))
    found = verdicts(given.trials)
    print("\n".join(report(found, given, time.perf_counter() - started)))
    problems = [*failures(found, options.keep)]
    if not options.file and not options.only:
        problems += missing(found, given)
    print("\n\n".join(problems))
    return bool(problems)


if __name__ == "__main__":
    raise SystemExit(main())
