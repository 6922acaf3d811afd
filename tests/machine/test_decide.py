"""What the machine decides by: what one process computes at once of a part of a batch."""

import pytest

from archwright.machine import decide as machine_room
from archwright.machine.decide import Decisions, decide_loss
from archwright.model.build import build
from archwright.scale.layout import ONE, Layout
from archwright.spec.run_spec import RunSpec


@pytest.fixture
def free(run: RunSpec) -> RunSpec:
    """A run whose kernel and loss are to be decided."""
    return run.override("machine.kernel=auto", "machine.loss=auto", "machine.device=cpu")


LOGITS = {
    "one process": (ONE, 8, 2, 4 * 32, "float32 logits would take 164 kB"),
    "64 shards": (
        Layout(1, 64, 8),
        512,
        2,
        4 * 32,
        "float32 logits of one process would take 164 kB",
    ),
    "a context group": (
        Layout(context=4),
        8,
        2,
        4 * 8,
        "float32 logits of one process would take 41 kB",
    ),
    # Each has a quarter of the vocabulary.
    "a tensor group": (
        Layout(tensor=4),
        8,
        2,
        4 * 8,
        "float32 logits of one process would take 41 kB",
    ),
    "a pipeline": (
        Layout(pipeline=2),
        8,
        2,
        4 * 32,
        "float32 logits of one process would take 164 kB",
    ),
}
"""Processes, rows of a batch, its parts; tokens of which a process has all logits, and the reason."""


@pytest.mark.parametrize("name", LOGITS)
def test_the_loss_is_chosen_by_the_logits_of_one_process(
    name: str, free: RunSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    layout, rows, parts, tokens, reason = LOGITS[name]
    run = free.override(f"batch_size={rows}", f"grad_accum_steps={parts}")
    model = build(run.model, device="meta", vocab_size=257)
    found = tokens * 320 * 4
    for at_most, kind in ((found, "whole"), (found - 1, "chunked")):
        monkeypatch.setattr(machine_room, "WHOLE_LOGITS", at_most)
        decisions = Decisions(run.machine)
        decide_loss(decisions, model, run, layout)
        assert decisions.machine.loss == kind
        assert decisions.reasons["loss"] == reason


def test_a_gpu_computes_more_logits_at_once(free: RunSpec, monkeypatch: pytest.MonkeyPatch) -> None:
    """Up to a share of its memory."""
    monkeypatch.setattr(machine_room, "WHOLE_LOGITS", 1)
    model = build(free.model, device="meta", vocab_size=257)
    needed = free.batch_size * free.model.context_length * 320 * 4
    for memory, kind in ((12.6 * needed, "whole"), (12.4 * needed, "chunked")):
        monkeypatch.setattr(machine_room, "total_memory", lambda device, m=memory: int(m))
        decisions = Decisions(free.machine.model_copy(update={"device": "cuda"}))
        decide_loss(decisions, model, free)
        assert decisions.machine.loss == kind
