"""Peaks of matrix products, measured once in an hour."""

import json
import time
from pathlib import Path

import pytest
import torch

from archwright.machine import peaks
from archwright.machine.peaks import measure_peak, peak_of

CPU = torch.device("cpu")


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[torch.dtype]:
    """Dtypes that were measured, in order; each result is larger than the last."""
    done: list[torch.dtype] = []

    def measure(device: torch.device, dtype: torch.dtype) -> float:
        done.append(dtype)
        return 1e9 * len(done)

    monkeypatch.setattr(peaks, "measure_peak", measure)
    return done


def test_a_peak_is_a_speed_of_this_machine() -> None:
    assert 1e7 < measure_peak(CPU, torch.float32, seconds=0.01) < 1e14


def test_a_peak_is_measured_once(measured: list[torch.dtype], cache: Path) -> None:
    assert peak_of(CPU, torch.float32) == peak_of(CPU, torch.float32) == 1e9
    assert peak_of(CPU, torch.bfloat16) == 2e9
    assert measured == [torch.float32, torch.bfloat16]


def test_other_threads_have_another_peak(
    measured: list[torch.dtype], cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    peak_of(CPU, torch.float32)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 64)
    assert peak_of(CPU, torch.float32) == 2e9


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
    assert peak_of(CPU, torch.float32) == peak_of(CPU, torch.float32) == 2e9


@pytest.mark.parametrize(("kept", "peak"), [(5.0, 1e9), (7e9, 7e9)])
def test_the_faster_of_two_measurements_is_kept(
    kept: float, peak: float, measured: list[torch.dtype], cache: Path
) -> None:
    """Other work can only make a peak look low."""
    peak_of(CPU, torch.float32)
    (file,) = (cache / "measured").iterdir()
    file.write_text(json.dumps({"peak": kept, "time": time.time() - 2 * 3600}))
    measured.clear()
    assert peak_of(CPU, torch.float32) == peak_of(CPU, torch.float32) == peak
    assert measured == [torch.float32]
