"""What probes see of a run that several processes train is what they see of one."""

from pathlib import Path
from typing import Any

import pytest

import archwright
from archwright.inspection.probes import PASSES, STEPS
from archwright.runs import RunFolder
from tests.scale.together import trained
from tests.tiny import tiny_run, tiny_words

pytestmark = pytest.mark.slow

WORDS = (
    *("budget=3steps", "evaluate.every=1000000", "evaluate.final_max_tokens=300"),
    *("probes.every=2", "max_grad_norm=0.1", "grad_accum_steps=2", "batch_size=8"),
    *("model.num_layers=2", "model.norm.kind=dyt"),
)
"""Steps whose gradients are clipped and added up, of a model with numbers, which FSDP2 leaves alone."""
EXPERTS = ("model.feedforward.kind=experts", "model.feedforward.num_experts=4")


@pytest.mark.parametrize(
    ("number", "words", "scale"),
    [
        (2, ("optimizer.kind=muon",), ()),
        (2, (), ("scale.shard=1",)),
        (4, ("optimizer.kind=muon",), ("scale.replicate=2", "scale.shard=2")),
        (2, EXPERTS, ("scale.expert=2",)),
    ],
    ids=["shards", "replicas", "both", "experts"],
)
def test_probes_of_several_processes_see_what_those_of_one_see(
    number: int, words: tuple[str, ...], scale: tuple[str, ...], text: Path, tmp_path: Path
) -> None:
    words = *WORDS, *words
    alone = archwright.train(tiny_run(text, *words), out=tmp_path / "one", quiet=True).folder
    shared = trained(number, tmp_path / "many", *tiny_words(text, *words, *scale))
    ours, theirs = seen(shared), seen(alone)
    assert [*theirs] == [1, 2]
    assert ours.keys() == theirs.keys()
    for step, values in theirs.items():
        assert values.keys() == PASSES.keys() | STEPS.keys()
        assert ours[step].keys() == values.keys()
        for probe, rows in values.items():
            assert [*ours[step][probe]] == [*rows], "as many rows, in the same order"
            assert ours[step][probe] == pytest.approx(rows, rel=2e-4, abs=1e-7), (step, probe)
    norms = theirs[1]["gradient_norm"].values()
    assert sum(norm**2 for norm in norms) ** 0.5 > 0.2, "before clipping"


def seen(folder: RunFolder) -> dict[int, Any]:
    """Return what probes saw, by step."""
    return {record["step"]: record["values"] for record in folder.probes()}
