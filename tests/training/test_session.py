import copy
import gc
import threading
from typing import Any

import numpy as np
import pytest
import torch

from archwright.data.inputs import Batch
from archwright.scale.layout import Layout
from archwright.scale.processes import OneOf
from archwright.spec.budget import Budget
from archwright.spec.errors import UserError
from archwright.spec.run_spec import RunSpec
from archwright.training.data import Material
from archwright.training.prefetch import Prefetch
from archwright.training.progress import Silent
from archwright.training.resolve import resolve
from archwright.training.session import Session, is_spike
from archwright.training.step import StepResult, to_device

RUN = RunSpec(batch_size=4).override("model.context_length=32")


@pytest.mark.parametrize(
    ("budget", "steps"),
    [
        ("7steps", 7),
        ("2ksteps", 2000),
        ("1steps", 1),
        ("128tokens", 1),
        ("1tokens", 1),
        ("255tokens", 1),
        ("256tokens", 2),
        ("10Mtokens", 78125),
        ("1e6flops", 78),  # at 100 FLOPs a token, 12,800 a step
        ("1flops", 1),
    ],
)
def test_a_budget_pays_for_steps(budget: str, steps: int) -> None:
    assert Budget(budget).steps(RUN.tokens_per_step, 100.0) == steps


def state_of(session: Session) -> dict[str, Any]:
    return {
        "weights": copy.deepcopy(session.model.state_dict()),
        "optimizers": {n: copy.deepcopy(o.state_dict()) for n, o in session.optimizers.items()},
        "torch": torch.get_rng_state(),
        "numpy": np.random.get_state(legacy=False),
        "standing": copy.deepcopy(vars(session.standing)),
        "precision": session.precision.state(),
    }


def trained_for(steps: int, session: Session) -> dict[str, Any]:
    for _ in range(steps):
        session.step()
    return state_of(session)


def assert_same(one: Any, other: Any) -> None:
    if isinstance(one, dict):
        assert one.keys() == other.keys()
        for key in one:
            assert_same(one[key], other[key])
    elif isinstance(one, list | tuple):
        assert len(one) == len(other)
        for a, b in zip(one, other, strict=True):
            assert_same(a, b)
    elif isinstance(one, torch.Tensor):
        assert torch.equal(one, other)
    else:
        assert np.array_equal(one, other)


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_timing_leaves_all_as_it_was(run: RunSpec, material: Material, optimizer: str) -> None:
    run = run.override(f"optimizer.kind={optimizer}", "model.embedding.dropout=0.2")
    session, _ = resolve(run, material, Silent())
    before = state_of(session)
    assert session.time_step(0.0) > 0
    assert_same(state_of(session), before)
    trained = trained_for(3, session)
    assert_same(trained, trained_for(3, resolve(run, material, Silent())[0]))


def test_timing_stops_early_where_steps_are_slow(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = {"now": 0.0}
    steps = []

    def slow(step: int, lr_scale: float) -> StepResult:
        clock["now"] += [50.0, 20.0][min(step, 1)]
        steps.append(step)
        return StepResult(1.0, 0.0, 1.0, True)

    monkeypatch.setattr("time.perf_counter", lambda: clock["now"])
    monkeypatch.setattr(session, "make_step", slow)
    assert session.time_step(3.0) == 20.0  # the first does not count
    assert steps == [0, 1]


def test_timing_takes_its_time_where_steps_are_fast(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = {"now": 0.0}
    durations = iter([5.0, 2.0, *[0.5] * 100])

    def fast(step: int, lr_scale: float) -> StepResult:
        clock["now"] += next(durations)
        return StepResult(1.0, 0.0, 1.0, True)

    monkeypatch.setattr("time.perf_counter", lambda: clock["now"])
    monkeypatch.setattr(session, "make_step", fast)
    assert session.time_step(10.0) == 0.5  # compiling and first touches do not count
    assert clock["now"] == 10.0


def test_a_checkpoint_brings_everything_back(
    run: RunSpec, material: Material, tmp_path: Any
) -> None:
    run = run.override("model.embedding.dropout=0.2", "optimizer.kind=muon")
    session, _ = resolve(run, material, Silent())
    trained_for(2, session)
    session.standing.recent, session.standing.spikes = [1.5, 2.5], 3
    session.save(tmp_path / "checkpoints")
    saved, later = state_of(session), trained_for(2, session)
    other, _ = resolve(run, material, Silent())
    other.restore(tmp_path / "checkpoints" / "step-2")
    assert_same(state_of(other), saved)
    assert_same(trained_for(2, other), later)


def test_the_recorded_rate_is_that_of_the_groups(run: RunSpec, material: Material) -> None:
    run = run.override("optimizer.kind=muon", "optimizer.lr=0.02", "optimizer.adamw_lr=0.03")
    session, _ = resolve(run, material, Silent())
    assert session.learning_rate(0.5) == 0.015


def flat(loss: float, number: int = 100) -> list[float]:
    return [loss] * number


def test_a_spike_stands_out() -> None:
    assert is_spike(2.21, flat(2.0))  # 10 % above, where 2 % count as the deviation
    assert not is_spike(2.19, flat(2.0))
    assert not is_spike(100.0, flat(2.0, 99))  # too early to tell
    assert not is_spike(1.0, flat(2.0))
    noisy = [1.0, 3.0] * 50  # mean 2, deviation 1
    assert is_spike(7.01, noisy)
    assert not is_spike(6.99, noisy)


def test_a_process_copies_its_own_tokens_to_its_device(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    copied: list[tuple[int, ...]] = []

    def seen(batch: Batch, device: torch.device) -> Batch:
        copied.append(batch.targets.shape)
        return to_device(batch, device)

    for room in ("session", "step"):
        monkeypatch.setattr(f"archwright.training.{room}.to_device", seen)
    session.run = session.run.override("grad_accum_steps=2")
    session.processes = OneOf(Layout(shard=2, context=4))
    session.make_step(0, 1.0)
    assert copied == [(1, 8), (1, 8)], "of 4 rows of 32 tokens, in two parts"


def test_batches_that_are_read_ahead_are_the_same(session: Session) -> None:
    """In any order of calls. Each is read once, by one thread, which ends with its reader."""
    read: list[tuple[int, str]] = []

    def reading(step: int) -> tuple[Batch, list[Batch]]:
        read.append((step, threading.current_thread().name))
        return session._read(step)

    ahead = Prefetch(reading)
    for step in (0, 0, 1, 2, 7, 8):
        batch, parts = ahead(step)
        wanted = session.batches.at(step)
        assert np.array_equal(batch.inputs.tokens.numpy(), wanted.inputs.tokens)
        assert np.array_equal(torch.cat([p.targets for p in parts]).numpy(), wanted.targets)
    ahead._thread.shutdown()
    assert [step for step, _ in read] == [0, 1, 2, 3, 7, 8, 9]
    assert len({name for _, name in read}) == 1
    del ahead
    gc.collect()
    assert not [t for t in threading.enumerate() if t.name.startswith("batches")]


def test_an_error_of_a_batch_is_one_of_its_step() -> None:
    def reading(step: int) -> int:
        if step == 2:
            raise UserError("text: gone")
        return step

    ahead = Prefetch(reading)
    assert [ahead(0), ahead(1)] == [0, 1]
    with pytest.raises(UserError, match="gone"):
        ahead(2)


def test_steps_with_batches_read_ahead_are_the_same(session: Session) -> None:
    before = copy.deepcopy(session.model.state_dict())
    losses = [session.step().loss for _ in range(3)]
    session.model.load_state_dict(before)
    session.standing.step = 0
    session.begin()
    session._read_ahead = Prefetch(session._read)
    assert [session.step().loss for _ in range(3)] == losses
