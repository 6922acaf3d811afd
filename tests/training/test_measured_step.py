"""Real steps of a tiny model: measured, or refused with a reason."""

import resource
import sys
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import psutil
import pytest

from archwright.spec.errors import UserError
from archwright.spec.read import load_run
from archwright.spec.run_spec import RunSpec
from archwright.spec.scale_down import tiny_run
from archwright.training import measured_step as room
from archwright.training.measured_step import measure_step, random_batch
from archwright.training.session import Session

STATE = 16
"""Bytes of a parameter: weight, gradient and two moments."""
MACHINE = (
    *("machine.device=cpu", "machine.precision=fp32", "machine.kernel=sdpa"),
    *("machine.threads=1", "machine.float32_matmul_precision=highest"),
)


def tiny(*changes: str) -> RunSpec:
    shape = ("model.dim=128", "model.num_layers=2", "model.context_length=16", "batch_size=2")
    run = load_run("modern").override(*shape, "model.vocab_size=4096", *MACHINE)
    return run.override(*changes)


def test_peak_memory_and_time_are_those_of_real_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    steps, step = [], Session.step
    monkeypatch.setattr(Session, "step", lambda self: steps.append(step(self)))
    before = psutil.Process().memory_info().rss
    found = measure_step(tiny())
    assert len(steps) == 4
    assert all(result.finite for result in steps)
    assert found.why_not == ""
    assert found.peak_memory is not None
    # Linux counts a process's pages with an error of some pages for each thread.
    assert found.peak_memory >= max(0.99 * before, STATE * 1_000_000)
    assert STATE * 1_000_000 < found.memory < 0.8 * found.free
    assert found.seconds is not None
    assert found.tokens_per_second == 32 / found.seconds


def test_a_step_that_does_not_fit_is_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = measure_step(tiny()).memory
    monkeypatch.setattr(room, "Session", lambda *_: pytest.fail("a step was run"))
    monkeypatch.setattr(room, "free_memory", lambda device: int(1.2 * memory))
    found = measure_step(tiny())
    assert not found.fits
    assert found.why_not.startswith("does not fit: expected at most ")
    assert (found.memory, found.peak_memory, found.seconds) == (memory, None, None)


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have no such limit")
def test_memory_that_runs_out_nevertheless_is_one_line() -> None:
    """The estimate leaves out what kernels take."""
    # A new process: one that has trained keeps freed memory, which no limit takes away.
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as processes:
        refusal, same_limits = processes.submit(run_out_of_memory).result()
    assert "a step does not fit into memory" in refusal
    assert same_limits


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have no such limit")
def test_the_limit_of_the_user_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    limits: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "getrlimit", lambda which: (7, resource.RLIM_INFINITY))
    monkeypatch.setattr(resource, "setrlimit", lambda which, given: limits.append(given))
    with room._limited(10**9, "cpu"):
        pass
    assert limits == [(7, resource.RLIM_INFINITY)] * 2


def run_out_of_memory() -> tuple[str, bool]:
    """Return the refusal, and whether the process's limits were set back."""
    before = resource.getrlimit(resource.RLIMIT_DATA)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(room, "free_memory", lambda device: 8_000_000)
        patch.setattr(room, "step_memory", lambda *_, **__: 1.0)
        with pytest.raises(UserError) as refusal:
            measure_step(tiny("batch_size=64", "model.context_length=256"))
    return str(refusal.value), resource.getrlimit(resource.RLIMIT_DATA) == before


def test_a_step_that_takes_long_is_announced_or_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    lines: list[str] = []
    monkeypatch.setattr(room, "WORTH_A_LINE", 0.0)
    measure_step(tiny(), lines.append)
    assert lines[0].startswith("measuring 4 training steps, about ")
    monkeypatch.setattr(room, "Session", lambda *_: pytest.fail("a step was run"))
    monkeypatch.setattr(room, "MFU", 1e-12)
    found = measure_step(tiny(), lines.append)
    assert found.fits
    assert found.why_not.startswith("not measured: a step would take about ")
    assert found.seconds is None
    assert len(lines) == 1


def test_slow_steps_end_early(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first step counts if there is no time for a second one."""
    steps, step = [], Session.step
    monkeypatch.setattr(Session, "step", lambda self: steps.append(step(self)))
    monkeypatch.setattr(room, "MFU", 1e12)
    monkeypatch.setattr(room, "MOST_SECONDS", 1e-6)
    assert measure_step(tiny()).seconds is not None
    assert len(steps) == 1


@pytest.mark.parametrize("name", ["bert-base", "t5-small", "electra-small"])
def test_every_objective_is_measured(name: str) -> None:
    shape = ("batch_size=2", "model.vocab_size=512", "model.context_length=32")
    found = measure_step(tiny_run(load_run(name)).override(*shape, *MACHINE))
    assert found.why_not == ""
    assert found.seconds is not None


def test_two_texts_are_measured() -> None:
    model = ("model.encoder.kind=stack", "model.cross_attention.kind=softmax")
    run = tiny(*model, "objective.kind=sequence_to_sequence")
    batch = random_batch(run)
    assert batch.inputs.tokens.shape == batch.targets.shape == (2, 16)
    assert measure_step(run).seconds is not None
