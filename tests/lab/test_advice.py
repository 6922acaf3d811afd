"""What would decide an inconclusive variant, against the looks that decide."""

import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from archwright.lab.design.command_line import Command, study_of
from archwright.lab.design.plan import Cell
from archwright.lab.design.scaling import SIZES
from archwright.lab.design.variants import arms
from archwright.lab.procedure.constants import ALPHA
from archwright.lab.procedure.looks import Looks, decide
from archwright.lab.procedure.spikes import Spikes
from archwright.lab.procedure.standing import Standing
from archwright.lab.procedure.sweep import Sweep
from archwright.lab.procedure.verdict import DIVERGED, UNLEARNT, effects
from archwright.lab.report.advice import advice, more_seeds, same_size
from archwright.lab.results import Effect, Replicate, RunResult
from archwright.spec.budget import Budget
from archwright.spec.optimizers import AdamW
from archwright.spec.study_spec import StudySpec, parse_count

LOSS = 3.5


def pairs(number: int, mean: float, deviation: float) -> list[float]:
    """Return differences that have exactly this mean and standard deviation."""
    drawn = np.random.default_rng(0).normal(size=number)
    drawn = (drawn - drawn.mean()) / drawn.std(ddof=1)
    return [float(d) for d in mean + deviation * drawn]


def effect_of(differences: list[float], looks: Looks) -> Effect:
    replicates = [
        Replicate(name, seed, loss, 1e-3, RunResult("", name, seed, 1e-3, loss, 1.0, 6.0))
        for seed, d in enumerate(differences)
        for name, loss in (("old", LOSS), ("new", LOSS + d))
    ]
    study = StudySpec(variants={"new": ("dim=8",)})
    (found,) = effects(replicates, study, "old", decisions={}, looks=looks)
    return found


@pytest.mark.parametrize("mean", [0.03, 0.01])  # superior then, equivalent then
def test_as_many_seeds_as_are_advised_decide_and_half_of_them_do_not(mean: float) -> None:
    looks, deviation = Looks(10, 10, early=False), 0.05
    effect = effect_of(pairs(10, mean, deviation), looks)
    more = more_seeds(effect, looks, ALPHA)

    def decided(added: int) -> bool:
        drawn = [*pairs(10, mean, deviation), *pairs(added, mean, deviation)]
        judged = replace(looks, ends=(10, 10 + added))
        return bool(decide({"new": drawn}, 0.01 * LOSS, judged, len(drawn)))

    assert effect.outcome == "inconclusive"
    assert more >= 4
    assert decided(more)
    assert not decided(more // 2)


@pytest.mark.parametrize("model", ["modern", "textbook", "mixtral-8x7b", "gemma-3-27b", "t5-small"])
def test_more_steps_are_for_the_models_that_there_are(model: str) -> None:
    """A longer budget would else be spent on larger models, in fewer steps."""
    asked = study_of(model, ":norm.kind=layer", budget="5m")
    effect = replace(
        effect_of(pairs(5, 0.1, 0.01), Looks(5, 5)), caveats=(f"new {UNLEARNT}",), mean=0.1
    )
    for size in SIZES[:8]:
        run = next(iter(arms(asked, size).values()))

        def advised(study: StudySpec) -> str:
            arm = SimpleNamespace(run=run)  # noqa: B023
            plan = SimpleNamespace(study=study, baseline=arm, steps=400, tokens_per_run=1e6)
            execution = SimpleNamespace(plan=plan, standing=lambda: None)
            return advice(effect, execution, Command(study, Path("x")))  # type: ignore[arg-type]

        start = f"archwright compare {model} :norm.kind=layer --budget"
        found = re.fullmatch(
            rf"400 steps were too few, try about 1,200: {start} 15m --size (\S+)", advised(asked)
        )
        assert found
        assert next(iter(arms(asked, parse_count(found[1])).values())) == run
        given = asked.model_copy(update={"size": "0.2M"})
        assert advised(given).endswith(f"{start} 15m --size 0.2M")
        by_steps = asked.model_copy(update={"budget": Budget("400steps")})
        assert advised(by_steps).endswith(f"{start} 1200steps")


def test_the_size_of_the_models_that_there_are_is_known_without_those_of_others() -> None:
    """Sixteen heads share 64 dimensions out, and not the 48 of the next smaller model."""
    asked = study_of("modern", ":attention.num_heads=16", budget="5m")
    baseline = SimpleNamespace(run=next(iter(arms(asked, 1.5e5).values())))
    assert same_size(SimpleNamespace(study=asked, baseline=baseline)) == "0.15M"  # type: ignore[arg-type]


def test_more_than_anybody_waits_for_is_not_advised() -> None:
    looks = Looks(10, 10, early=False)
    assert more_seeds(effect_of(pairs(10, 0.034, 0.2), looks), looks, ALPHA) == 0


def diverged(cell: Cell) -> RunResult:
    return RunResult("", cell.variant, cell.seed, 0.03, 6.0, 1.0, 6.0, diverged=True)


@pytest.mark.parametrize(
    ("lost", "edges", "text_error", "common", "command"),
    [
        (("modern", "dim=8"), (), 0.0, (), "modern :dim=8 optimizer.lr=3e-3 {} {}-2'"),
        (("modern",), (), 0.0, ("optimizer.lr=1",), "modern :dim=8 optimizer.lr=3e-3 {} {}-2'"),
        (("dim=8",), (), 0.0, (), "modern :dim=8:optimizer.lr=3e-3 {} {}-2'"),
        ((), ("modern",), 0.0, (), "modern:optimizer.lr=3e-2 :dim=8 {} {}-2'"),
        ((), ("dim=8",), 0.0, (), "modern :dim=8:optimizer.lr=3e-2 {} {}-2'"),
        ((), (), 1.0, (), "modern :dim=8 --evaluation-tokens 4096 --parts 'my parts.py' {}'"),
        ((), (), 0.0, (), "modern :dim=8 {} {}' --add-seeds 13"),
    ],
)
def test_advice_is_a_command_that_can_be_pasted(
    lost: tuple[str, ...],
    edges: tuple[str, ...],
    text_error: float,
    common: tuple[str, ...],
    command: str,
) -> None:
    """Quoted, with the folder of choices from outside, with no name left to be thought of and no key given twice."""
    study = study_of("modern", ":dim=8", *common, evaluation_tokens=1024)
    looks = Looks(10, 10, early=False)
    effect = replace(
        effect_of(pairs(10, 0.03, 0.05), looks),
        variant="dim=8",
        caveats=tuple(f"{name} {DIVERGED}" for name in lost),
        text_error=text_error,
    )
    arm = SimpleNamespace(run=SimpleNamespace(optimizer=AdamW()))
    names = ("modern", "dim=8")
    plan = SimpleNamespace(
        study=study,
        baseline=SimpleNamespace(run=arm.run, name="modern"),
        arms=dict.fromkeys(names, arm),
        workers=2,
        evaluation_tokens=1024,
        steps=600,
        lr=lambda name, k: 0.03,
    )
    sweeps = {n: Sweep((0,), [], [0], at_boundary=n in edges) for n in names}
    cells = [Cell(name, 0, 0) for name in names]
    execution = SimpleNamespace(
        plan=plan,
        standing=lambda: Standing(sweeps, [], {}, looks=looks),
        results={c: replace(diverged(c), diverged=c.variant in lost) for c in cells},
        run_seconds=lambda name: 1.0,
    )
    asked = Command(study, Path("x"), out="my studies/x", parts=["my parts.py"])
    said = advice(effect, execution, asked)  # type: ignore[arg-type]
    given, place = "--evaluation-tokens 1024 --parts 'my parts.py'", "--out 'my studies/x"
    line = command.format(*([given, place] if command.count("{}") == 2 else [place]))
    assert said.endswith(f": archwright compare {line}")


@pytest.mark.parametrize("spiked", ["modern", "dim=8"])
def test_a_halved_rate_is_named_where_seeds_cannot_tell_its_cost(spiked: str) -> None:
    study, looks = study_of("modern", ":dim=8"), Looks(10, 10, early=False)
    effect = replace(
        effect_of(pairs(10, 0.03, 0.05), looks), variant="dim=8", caveats=(), placing_error=1.0
    )
    spikes = {spiked: [Spikes(0.0, (1,), 10, halved=True)]}
    execution = SimpleNamespace(
        plan=SimpleNamespace(study=study, arms={"modern": None, "dim=8": None}, steps=600),
        standing=lambda: Standing({}, [], {}, looks=looks, spikes=spikes),
    )
    said = advice(effect, execution, Command(study, Path("x")))  # type: ignore[arg-type]
    assert said.startswith(f"the learning rate of {spiked} was halved after spikes")
