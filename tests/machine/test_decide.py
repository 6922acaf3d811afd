"""What the machine decides by: what one process computes at once of a part of a batch."""

from typing import Any

import pytest
import torch

from archwright.machine import decide as machine_room
from archwright.machine.decide import Decisions, decide_kernel, decide_loss
from archwright.model.build import build
from archwright.parts.kernels import KERNELS
from archwright.scale.layout import ONE, Layout
from archwright.spec.run_spec import RunSpec

SHAPES = {
    "one process": (ONE, 4, 1, (4, 32, 2), 32),
    "one process, five rows in two parts": (ONE, 5, 2, (3, 32, 2), 32),
    "64 shards": (Layout(1, 64, 8), 512, 1, (8, 32, 2), 32),
    "copies and shards, four parts": (Layout(2, 4), 64, 4, (2, 32, 2), 32),
    "a pipeline, four parts": (Layout(pipeline=4), 16, 4, (4, 32, 2), 32),
    "a context group": (Layout(shard=2, context=4), 8, 1, (4, 8, 2), 32),
    "a tensor group": (Layout(tensor=2), 4, 1, (4, 32, 1), 32),
    "a tensor group that shares no tokens": (
        Layout(tensor=2, sequence=False),
        4,
        1,
        (4, 32, 1),
        32,
    ),
    "all of them": (Layout(2, 2, tensor=2, context=2, pipeline=2), 16, 2, (2, 16, 1), 32),
}
"""Processes, rows of a batch, its parts; rows, tokens and heads of the queries of one, and the keys that they have."""


@pytest.fixture
def free(run: RunSpec) -> RunSpec:
    """A run whose kernel and loss are to be decided."""
    return run.override("machine.kernel=auto", "machine.loss=auto", "machine.device=cpu")


@pytest.mark.parametrize("name", SHAPES)
def test_kernels_are_timed_on_what_one_process_computes(
    name: str, free: RunSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    layout, rows, parts, queries, keys = SHAPES[name]
    seen = []

    def looked_at(query: Any, key: Any, value: Any, mask: Any, scores: Any) -> Any:
        seen.append((query.shape, key.shape, mask.dense[0, 0]))
        return query

    for kernel in machine_room.RIVALS["cpu"]:
        monkeypatch.setitem(KERNELS, kernel, looked_at)
    monkeypatch.setattr(machine_room, "median_times", lambda calls, _: dict.fromkeys(calls, 0.002))
    run = free.override(f"batch_size={rows}", f"grad_accum_steps={parts}")
    decisions = Decisions(run.machine)
    decide_kernel(decisions, build(run.model, device="meta", vocab_size=257), run, layout)
    assert len(seen) == 2
    for query, key, visible in seen:
        assert query == (*queries, 16)
        assert key == (queries[0], keys, 1, 16)
        # Of a causal mask, the last rows: those of the process for which all wait.
        assert torch.equal(visible, torch.ones(keys, keys).tril().bool()[-queries[1] :])
    own = f" on one process's {queries[0]} rows of {queries[1]} tokens" * (layout.size > 1)
    assert decisions.reasons["kernel"].startswith(
        f"one layer forward and backward{own}: sdpa 2.0 ms"
    )


def test_what_one_process_measured_is_no_answer_for_the_share_of_another(
    free: RunSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stretch has the rows and tokens of a shorter text, but more keys; a process of a tensor group fewer heads."""
    done = []

    def timed(calls: Any, at_most: float) -> dict[str, float]:
        done.append(len(calls))
        return dict.fromkeys(calls, 0.002)

    monkeypatch.setattr(machine_room, "median_times", timed)
    for changes, layout, measured in (
        (("model.context_length=16",), ONE, 1),
        (("model.context_length=16", "batch_size=8"), Layout(shard=2), 1),
        ((), Layout(context=2), 2),
        (("model.context_length=16",), Layout(tensor=2), 3),
        (("model.context_length=16",), ONE, 3),
    ):
        run = free.override(*changes)
        decide_kernel(Decisions(run.machine), build(run.model, vocab_size=257), run, layout)
        assert len(done) == measured


@pytest.mark.parametrize("mask", ["causal", "window"])
@pytest.mark.parametrize("packing", ["concat", "document_mask"])
def test_every_kernel_computes_the_share_of_a_process(
    mask: str, packing: str, free: RunSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine_room, "KERNEL_SECONDS", 0.0)
    run = free.override(f"model.attention.mask.kind={mask}", f"data.packing={packing}")
    decisions = Decisions(run.machine)
    layout = Layout(shard=2, context=2, tensor=2)
    decide_kernel(decisions, build(run.model, vocab_size=257), run, layout)
    assert "left out" not in decisions.reasons["kernel"]
    assert decisions.machine.kernel in machine_room.RIVALS["cpu"]


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
    # Which gathers the logits of all: each has the whole vocabulary's.
    "a tensor group": (
        Layout(tensor=4),
        8,
        2,
        4 * 32,
        "float32 logits of one process would take 164 kB",
    ),
    "a pipeline": (
        Layout(pipeline=2),
        8,
        2,
        4 * 32,
        "float32 logits of one process would take 164 kB",
    ),
}
"""Processes, rows of a batch, its parts; tokens of which a process has logits, and the reason."""


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
