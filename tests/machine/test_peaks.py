"""Peaks of matrix products, measured once in an hour."""

import json
import time
from datetime import timedelta
from pathlib import Path

import pytest
import torch

from archwright.machine import peaks
from archwright.machine.peaks import Peak, measure_peak, peak_of

CPU = torch.device("cpu")


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[torch.dtype]:
    """Dtypes that were measured, in order; each result is larger than the last."""
    done: list[torch.dtype] = []

    def measure(device: torch.device, dtype: torch.dtype) -> Peak:
        done.append(dtype)
        return Peak(1e9 * len(done), quiet=True)

    monkeypatch.setattr(peaks, "measure_peak", measure)
    return done


def test_a_peak_is_a_speed_of_this_machine() -> None:
    assert 1e7 < measure_peak(CPU, torch.float32, seconds=0.01).flops < 1e14


@pytest.mark.parametrize(
    ("shares", "found"),
    [
        ([1.0, 0.95, 1.0], Peak(2 * 1024**3 / 2.0, quiet=True)),  # all undisturbed: the fastest
        ([0.5, 0.3, 1.0], Peak(2 * 1024**3 / 3.0, quiet=True)),  # undisturbed once: that product
        ([0.5, 0.3, 0.4], Peak(2 * 1024**3 / 2.0, quiet=False)),
    ],
)
def test_a_product_counts_if_it_had_the_cores_all_the_time(
    shares: list[float], found: Peak, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Products of 4, 2 and 3 seconds, whose threads computed for a share of them."""
    clock = {"wall": 0.0, "cpu": 0.0}
    steps = iter([(0.0, 0.0), *zip((4.0, 2.0, 3.0), shares, strict=True)])

    def product(a: torch.Tensor, b: torch.Tensor) -> None:
        wall, share = next(steps)
        clock["wall"] += wall
        clock["cpu"] += share * wall * 2

    monkeypatch.setattr(peaks, "_product", product)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    monkeypatch.setattr(time, "perf_counter", lambda: clock["wall"])
    monkeypatch.setattr(time, "process_time", lambda: clock["cpu"])
    assert measure_peak(CPU, torch.float32) == found


def test_a_peak_next_to_other_work_is_not_kept(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disturbed, quiet = Peak(5e9, quiet=False), Peak(4e9, quiet=True)
    results = iter([disturbed, quiet, disturbed])
    monkeypatch.setattr(peaks, "measure_peak", lambda device, dtype: next(results))
    monkeypatch.setattr(peaks, "FRESH", timedelta(0))
    found = [peak_of(CPU, torch.float32) for _ in range(3)]
    assert found == [disturbed, quiet, quiet]


def test_a_peak_is_measured_once(measured: list[torch.dtype], cache: Path) -> None:
    assert peak_of(CPU, torch.float32) == peak_of(CPU, torch.float32) == Peak(1e9, True)
    assert peak_of(CPU, torch.bfloat16) == Peak(2e9, True)
    assert measured == [torch.float32, torch.bfloat16]


def test_other_threads_have_another_peak(
    measured: list[torch.dtype], cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    peak_of(CPU, torch.float32)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 64)
    assert peak_of(CPU, torch.float32) == Peak(2e9, True)


@pytest.mark.parametrize(
    "content",
    [
        "",
        "{",
        '{"peak": -1, "time": 0}',
        json.dumps({"peak": 5.0, "time": time.time() - 8 * 24 * 3600}),
        json.dumps({"peak": 5.0, "time": time.time() + 3600}),
    ],
    ids=["empty", "cut", "negative", "old", "future"],
)
def test_a_damaged_or_old_file_is_measured_again(
    content: str, measured: list[torch.dtype], cache: Path
) -> None:
    peak_of(CPU, torch.float32)
    (file,) = (cache / "measured").iterdir()
    file.write_text(content)
    assert peak_of(CPU, torch.float32) == peak_of(CPU, torch.float32) == Peak(2e9, True)


@pytest.mark.parametrize(("kept", "peak"), [(5.0, 1e9), (7e9, 7e9)])
def test_the_faster_of_two_measurements_is_kept(
    kept: float, peak: float, measured: list[torch.dtype], cache: Path
) -> None:
    peak_of(CPU, torch.float32)
    (file,) = (cache / "measured").iterdir()
    file.write_text(json.dumps({"peak": kept, "time": time.time() - 2 * 3600}))
    measured.clear()
    assert peak_of(CPU, torch.float32) == peak_of(CPU, torch.float32) == Peak(peak, True)
    assert measured == [torch.float32]
