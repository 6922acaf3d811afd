"""A sample of `make laws-scale`: random compositions under random plans of two processes, and one plan of four."""

from pathlib import Path

import pytest

from archwright.spec.model_spec import ModelSpec
from archwright.spec.read import to_toml
from archwright.spec.run_spec import RunSpec
from tests.scale.laws import FIXED, Trial, drawn, failures, verdicts

pytestmark = pytest.mark.release


def test_processes_train_random_compositions_as_one_does(tmp_path: Path) -> None:
    given = drawn(5, seed=1, sizes=(2,))
    assert len(given.trials) >= 3
    assert not "\n".join(failures(verdicts(given.trials), tmp_path))


def test_a_stage_takes_nothing_of_what_a_tensor_group_cuts_in_another(tmp_path: Path) -> None:
    model = ModelSpec(dim=16, num_layers=2, vocab_size=32, context_length=8)
    plan = ("scale.replicate=1", "scale.shard=1", "scale.tensor=2", "scale.pipeline=2")
    words = ("batch_size=4", "grad_accum_steps=2", "model.attention.num_heads=4")
    run = RunSpec(model=model).override(*FIXED, *plan, *words, "machine.kernel=eager")
    found = verdicts([Trial(0, to_toml(run))])
    assert [verdict.inconclusive for verdict in found.values()] == [False]
    assert not "\n".join(failures(found, tmp_path))


RECURRENT = (
    "layer_kinds.recurrent.attention.kind=none",
    "layer_kinds.recurrent.position.kind=none",
    "layers.cycle=['recurrent','default']",
)
"""A hybrid of a recurrence and attention, one layer each."""
KINDS = {
    "linear": ("recurrence={kind='linear',num_heads=4,num_key_heads=2}",),
    "selective": ("recurrence={kind='selective',inner_dim=24,scan_norm={kind='rms'}}",),
    "rg_lru": ("recurrence={kind='rg_lru',num_heads=4,head_dim=6}",),
    "short_conv": ("recurrence={kind='short_conv',bias=true}",),
    "rwkv7": ("recurrence={kind='rwkv7',num_heads=4}", "feedforward.kind=channel_mix"),
}
SPLITS = [("linear", "pipeline"), *((kind, axis) for kind in KINDS for axis in ("shard", "tensor"))]
"""Recurrences, and what processes share. Stages treat all of them alike."""


@pytest.mark.parametrize(("kind", "axis"), SPLITS)
def test_a_hybrid_is_split_by_weights_heads_and_layers(
    kind: str, axis: str, tmp_path: Path
) -> None:
    model = ModelSpec(dim=16, num_layers=4, vocab_size=32, context_length=80)
    plan = dict.fromkeys(("replicate", "shard", "tensor", "pipeline"), 1) | {axis: 2}
    words = [f"scale.{name}={number}" for name, number in plan.items()]
    words += ["batch_size=4", "grad_accum_steps=2", "model.attention.num_heads=4"]
    words += [f"model.{word}" for word in RECURRENT]
    words += [f"model.layer_kinds.recurrent.{word}" for word in KINDS[kind]]
    words += ["machine.kernel=sdpa", "seed=1"]
    run = RunSpec(model=model).override(*FIXED, *words)
    found = verdicts([Trial(0, to_toml(run))])
    assert [verdict.inconclusive for verdict in found.values()] == [False]
    assert not "\n".join(failures(found, tmp_path))
