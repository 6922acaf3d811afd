"""What is measured once is known for a week; what does not fit the question is measured."""

import json
import math
import multiprocessing
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import torch

from archwright.machine import decide as machine_room
from archwright.machine import disturbance
from archwright.machine import timing_cache as measured_room
from archwright.machine.decide import Decisions, decide, decide_kernel
from archwright.machine.timing_cache import KEPT, KEPT_DISTURBED, measured
from archwright.spec.run_spec import MachineSpec, PartsFile, RunSpec
from archwright.training.data import Material
from archwright.training.resolve import make_model
from tests.training.whole import timeless, train


class Ruler:
    """Measures something else every time, and counts."""

    def __init__(self, *names: str) -> None:
        self.names, self.calls = names or ("a", "b"), 0

    def __call__(self) -> dict[str, float]:
        self.calls += 1
        return {name: self.calls + i / 4 for i, name in enumerate(self.names)}

    def ask(self, **question: Any) -> Mapping[str, float]:
        return measured(question, ("a", "b"), self).values


@pytest.fixture
def ruler() -> Ruler:
    return Ruler()


def files(cache: Path) -> list[Path]:
    return sorted((cache / "measured").iterdir())


def test_a_question_is_measured_once(ruler: Ruler, cache: Path) -> None:
    first = ruler.ask(threads=2)
    assert (ruler.ask(threads=2), ruler.calls) == (first, 1)
    assert ruler.ask(threads=1) != first
    assert (ruler.calls, len(files(cache))) == (2, 2)


def test_it_is_said_how_old_a_measurement_is(ruler: Ruler) -> None:
    assert measured({}, ("a", "b"), ruler).age == ""
    assert measured({}, ("a", "b"), ruler).age == f", as measured on {datetime.now():%Y-%m-%d}"


@pytest.mark.parametrize(
    ("age", "calls"),
    [(timedelta(minutes=59), 1), (KEPT_DISTURBED, 2)],
    ids=["nearly an hour", "an hour"],
)
def test_beside_other_work_it_holds_for_an_hour(
    ruler: Ruler, cache: Path, monkeypatch: pytest.MonkeyPatch, age: timedelta, calls: int
) -> None:
    taken = iter(range(0, 10**6, 1000))
    monkeypatch.setattr(disturbance, "preemptions", taken.__next__)
    assert measured({}, ("a", "b"), ruler).age == ", measured beside other work"
    beside = f", as measured on {today()} beside other work"
    assert measured({}, ("a", "b"), ruler).age == beside
    (file,) = files(cache)
    then = (datetime.now(UTC) - age).isoformat()
    kept = json.loads(file.read_text()) | {"time": then, "digest": ""}
    file.write_text(json.dumps(kept))
    ruler.ask()
    assert ruler.calls == calls


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="threads cannot be tied to a core")
def test_a_process_on_the_same_core_is_noticed() -> None:
    """Real work on a core beside another process that wants it; a wait disturbs nobody."""
    cores = os.sched_getaffinity(0)
    core = min(cores)
    rival = "while True: pass"
    command = ["taskset", "-c", str(core), sys.executable, "-c", rival]
    if shutil.which("taskset") is None:
        pytest.skip("taskset is not installed")
    with subprocess.Popen(command) as other:
        try:
            os.sched_setaffinity(0, {core})
            watch = disturbance.Watch()
            end = time.perf_counter() + 1.0
            while time.perf_counter() < end:
                sum(range(1000))
            assert watch.disturbed()
        finally:
            os.sched_setaffinity(0, cores)
            other.kill()
    watch = disturbance.Watch()
    time.sleep(0.3)
    assert not watch.disturbed()


@pytest.mark.parametrize(
    ("age", "calls"),
    [(KEPT - timedelta(minutes=1), 1), (KEPT, 2), (-timedelta(minutes=1), 2)],
    ids=["nearly a week", "a week", "a clock that was wrong"],
)
def test_it_holds_for_a_week(ruler: Ruler, cache: Path, age: timedelta, calls: int) -> None:
    ruler.ask()
    (file,) = files(cache)
    then = (datetime.now(UTC) - age).isoformat()
    kept = json.loads(file.read_text()) | {"time": then, "digest": ""}
    file.write_text(json.dumps(kept))
    again = ruler.ask()
    assert ruler.calls == calls
    assert ruler.ask() == again  # what was measured anew is kept
    assert ruler.calls == calls


def test_changed_numbers_are_measured_again(ruler: Ruler, cache: Path) -> None:
    ruler.ask()
    (file,) = files(cache)
    kept = json.loads(file.read_text())
    for values in ({"a": 7.0}, {"b": 7.0}):
        file.write_text(json.dumps(kept | {"values": kept["values"] | values}))
        assert ruler.ask()["a"] != 7.0
    assert ruler.calls == 3


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"\xff\xfe",
        b"[]",
        b"null",
        {"values": {"a": 1.0}},
        {"values": {"a": 1.0, "b": "fast"}},
        {"values": {"a": 1.0, "b": 0.0}},
        {"values": {"a": 1.0, "b": 1.0, "c": 1.0}},
        {"time": "yesterday"},
        {"time": "2026-01-01T00:00:00"},
    ],
)
def test_a_damaged_file_is_measured_again(
    ruler: Ruler, cache: Path, content: bytes | dict[str, Any]
) -> None:
    ruler.ask()
    (file,) = files(cache)
    if isinstance(content, dict):
        content = json.dumps(json.loads(file.read_text()) | content).encode()
    file.write_bytes(content)
    assert ruler.ask()["a"] == 2
    assert ruler.ask()["a"] == 2


def test_another_version_measures_for_itself(ruler: Ruler, monkeypatch: pytest.MonkeyPatch) -> None:
    ruler.ask()
    monkeypatch.setattr(measured_room, "FORMAT", measured_room.FORMAT + 1)
    ruler.ask()
    assert ruler.calls == 2


def test_the_user_can_ask_for_measuring_anew(ruler: Ruler, monkeypatch: pytest.MonkeyPatch) -> None:
    ruler.ask()
    with monkeypatch.context() as patch:
        patch.setenv("ARCHWRIGHT_REMEASURE", "1")
        assert ruler.ask()["a"] == 2
    assert ruler.ask()["a"] == 2  # and that is what is known from now on


@pytest.mark.parametrize("values", [{"a": 1.0}, {"a": 1.0, "b": math.nan}])
def test_what_is_not_whole_is_used_but_not_kept(cache: Path, values: dict[str, float]) -> None:
    for _ in range(2):
        assert measured({}, ("a", "b"), lambda: values).values is values
    assert not (cache / "measured").exists()


def test_a_cache_that_cannot_be_written_costs_only_time(ruler: Ruler, cache: Path) -> None:
    cache.write_text("a file where a folder should be")
    assert [ruler.ask()["a"] for _ in range(2)] == [1, 2]


def _ask_often(cache: str) -> None:
    os.environ |= {"ARCHWRIGHT_CACHE": cache, "ARCHWRIGHT_REMEASURE": "1"}
    for _ in range(100):
        assert Ruler().ask() == {"a": 1.0, "b": 1.25}


@pytest.mark.slow
def test_processes_at_once_harm_nothing(cache: Path) -> None:
    """At any moment the file is whole, and nothing else is left in the folder."""
    context = multiprocessing.get_context("fork" if os.name == "posix" else "spawn")
    processes = [context.Process(target=_ask_often, args=(str(cache),)) for _ in range(3)]
    Ruler().ask()
    for process in processes:
        process.start()
    while any(process.is_alive() for process in processes):
        assert Ruler("none").ask() == {"a": 1.0, "b": 1.25}
    assert [process.exitcode for process in processes] == [0, 0, 0]
    assert [file.suffix for file in files(cache)] == [".json"]


# What a run asks -------------------------------------------------------------------------------

FREE = MachineSpec(device="cpu", threads=1)


def faster(best: str) -> Any:
    return lambda calls, _: {name: 0.001 if name == best else 0.002 for name in calls}


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What was measured, in order; bf16 is the faster precision and sdpa the faster kernel."""
    done: list[str] = []

    def note(what: str, value: Any) -> Any:
        done.append(what)
        return value

    def peak(device: torch.device, dtype: torch.dtype) -> float:
        return note(str(dtype), 3e11 if dtype == torch.bfloat16 else 1e11)

    def kernel(name: str, *_: object) -> Any:
        return lambda: note(name, None)

    # However busy the machine is on which this is tested.
    monkeypatch.setattr(measured_room.Watch, "disturbed", lambda self: False)
    monkeypatch.setattr(machine_room, "measure_peak", peak)
    monkeypatch.setattr(machine_room, "_kernel_call", kernel)
    monkeypatch.setattr(machine_room, "median_times", faster("sdpa"))
    values = {"error": 1e-3, "ratio": 2.0}
    monkeypatch.setattr(machine_room, "measure_float32", lambda: note("float32", values))
    return done


ALL = ["float32", "torch.float32", "torch.bfloat16", "sdpa", "blockwise"]


def decided(run: RunSpec, material: Material, machine: MachineSpec = FREE) -> Decisions:
    found = decide(machine)
    decide_kernel(found, make_model(run, material, found.machine), run)
    return found


def test_the_next_run_measures_nothing_and_decides_the_same(
    run: RunSpec, material: Material, counted: list[str]
) -> None:
    first, second = (decided(run, material) for _ in range(2))
    assert counted == ALL
    assert second.machine == first.machine
    assert second.peaks == first.peaks
    assert first.reasons.keys() == second.reasons.keys()
    for key in ("float32_matmul_precision", "precision", "kernel"):
        assert second.reasons[key] == f"{first.reasons[key]}, as measured on {today()}"


def today() -> str:
    return f"{datetime.now():%Y-%m-%d}"


@pytest.mark.parametrize(
    ("changes", "again"),
    [
        (["model.num_layers=3", "seed=7", "budget=9steps", "optimizer.lr=0.5"], []),
        (["batch_size=6", "grad_accum_steps=3"], []),
        (["batch_size=6"], ALL[3:]),
        (["model.context_length=16"], ALL[3:]),
        (["model.dim=64"], ALL[3:]),
        (["model.attention.mask.kind=window"], ALL[3:]),
        (["model.position.kind=none"], ALL[3:]),
        (["data.packing=document_mask"], ALL[3:]),
    ],
)
def test_a_kernel_is_measured_again_for_another_layer(
    run: RunSpec, material: Material, counted: list[str], changes: list[str], again: list[str]
) -> None:
    run = run.override("batch_size=2")
    decided(run, material)
    del counted[:]
    decided(run.override(*changes), material)
    assert counted == again


def test_another_machine_or_setting_is_measured(
    run: RunSpec, material: Material, counted: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for change in (
        lambda patch: patch.setattr(machine_room, "cpu_name", lambda: "another CPU"),
        lambda patch: patch.setattr(torch, "__version__", "3.0"),
        lambda patch: patch.setattr(machine_room, "version", lambda: "another"),
        lambda patch: patch.setattr(torch, "get_num_threads", lambda: 64),
        lambda patch: patch.setitem(os.environ, "ONEDNN_MAX_CPU_ISA", "AVX2"),
    ):
        decided(run, material)
        del counted[:]
        with monkeypatch.context() as patch:
            change(patch)  # type: ignore[no-untyped-call]
            decided(run, material)
        assert counted == ALL


def test_other_parts_from_outside_are_measured(
    run: RunSpec, material: Material, counted: list[str]
) -> None:
    decided(run, material)
    parts = (PartsFile(name="mine.py", sha256="0" * 64),)
    decided(run.model_copy(update={"parts": parts}), material)
    assert counted == ALL + ALL[3:]


@pytest.mark.parametrize(
    ("given", "asked"),
    [
        ({"kernel": "blockwise"}, []),
        ({"float32_matmul_precision": "highest"}, []),
        ({"float32_matmul_precision": "medium"}, ALL[1:]),
        ({"precision": "fp32"}, [ALL[1], *ALL[3:]]),
        ({"precision": "bf16"}, [ALL[2]]),
    ],
)
def test_a_given_value_is_no_question_but_part_of_others(
    run: RunSpec, material: Material, counted: list[str], given: dict[str, str], asked: list[str]
) -> None:
    decided(run, material)
    del counted[:]
    found = decided(run, material, FREE.model_copy(update=given))
    assert counted == asked
    assert not found.reasons.keys() & given.keys()


def test_a_kernel_that_failed_is_tried_again(
    run: RunSpec, material: Material, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A compiler may have been installed meanwhile."""
    tried = []

    def kernel(name: str, *_: object) -> Any:
        def call() -> None:
            tried.append(name)
            if name == "flex" and tried.count("flex") == 1:
                raise RuntimeError("no compiler here")

        return call

    monkeypatch.setitem(machine_room.RIVALS, "cpu", ("sdpa", "flex"))
    monkeypatch.setattr(machine_room, "_kernel_call", kernel)
    monkeypatch.setattr(machine_room, "median_times", faster("flex"))
    assert [decided(run, material).machine.kernel for _ in range(3)] == ["sdpa", "flex", "flex"]
    assert tried == ["sdpa", "flex"] * 2


@pytest.mark.slow
def test_a_run_trains_the_same_whether_it_measured_or_not(run: RunSpec, tmp_path: Path) -> None:
    """Measuring draws random numbers; the run must not see them."""
    free = run.override(
        "machine.precision=auto", "machine.kernel=auto", "model.embedding.dropout=0.1"
    )
    first, second = (train(free, tmp_path / name) for name in ("first", "second"))
    told = second.environment()["decisions"]
    for key in ("precision", "kernel"):
        assert f", as measured on {today()}" in told[key]["reason"]
    assert second.environment()["peak_flops"] == first.environment()["peak_flops"]
    assert timeless(second) == timeless(first)
    assert second.model_file.read_bytes() == first.model_file.read_bytes()
