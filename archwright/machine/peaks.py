"""Measured peaks of matrix products, kept for a week. They are for utilisation figures and decide no arithmetic."""

import contextlib
import hashlib
import json
import os
import time
from datetime import timedelta
from pathlib import Path

import torch
from pydantic import BaseModel, Field

from archwright.files import atomic_write, sweep
from archwright.machine.rules import cpu_name
from archwright.text.cache import cache_folder

SIZE = {"cpu": 1024, "cuda": 8192}
"""Side of the square matrices: large enough to reach the peak."""
KEPT = timedelta(days=7)
"""Lifetime of a measurement."""
FRESH = timedelta(hours=1)
"""Age from which it is repeated; the faster one is kept, because other work makes a peak look low."""
SETTINGS = ("ATEN_", "DNNL_", "GOMP_", "KMP_", "MKL_", "OMP_", "ONEDNN_")
"""Prefixes of environment variables that change the speed of torch's libraries."""


class _Kept(BaseModel):
    """Contents of a file: the peak and the seconds of the epoch when it was measured."""

    peak: float = Field(gt=0, lt=1e30)
    time: float


def peak_of(device: torch.device, dtype: torch.dtype) -> float:
    """Return the FLOP/s of matrix products in `dtype`, from the cache or measured now."""
    is_cuda = device.type == "cuda"
    facts = {
        "torch": torch.__version__,
        "name": torch.cuda.get_device_name() if is_cuda else cpu_name(),
        "dtype": str(dtype),
        "float32_matmul_precision": torch.get_float32_matmul_precision(),
        "threads": torch.get_num_threads(),
        "settings": {k: v for k, v in sorted(os.environ.items()) if k.startswith(SETTINGS)},
    }
    digest = hashlib.blake2b(json.dumps(facts).encode(), digest_size=16).hexdigest()
    file = cache_folder("measured", f"{digest}.json")
    kept = _read(file)
    if kept and time.time() - kept.time < FRESH.total_seconds():
        return kept.peak
    peak = max(measure_peak(device, dtype), kept.peak if kept else 0.0)
    with contextlib.suppress(ValueError):  # no permission to write: the next run measures again
        sweep(file.parent, r"[0-9a-f]{32}\.json")
        atomic_write(file, _Kept(peak=peak, time=time.time()).model_dump_json())
    return peak


def measure_peak(device: torch.device, dtype: torch.dtype, seconds: float = 0.1) -> float:
    """Return the FLOP/s of the fastest matrix product within `seconds`."""
    size = SIZE[device.type]
    a, b = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))
    _product(a, b)
    times: list[float] = []
    while sum(times) < seconds or len(times) < 3:
        start = time.perf_counter()
        _product(a, b)
        times.append(time.perf_counter() - start)
    return 2 * size**3 / min(times)


def measure_bandwidth(device: torch.device, seconds: float = 0.1) -> float:
    """Return the bytes/s that copies of a large tensor read and write, by the fastest copy."""
    source = torch.ones(2**26, device=device)  # 268 MB: more than caches hold
    target = torch.empty_like(source)
    times: list[float] = []
    while sum(times) < seconds or len(times) < 3:
        start = time.perf_counter()
        target.copy_(source)
        if device.type == "cuda":
            torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    return 2 * source.nbytes / min(times)


def _product(a: torch.Tensor, b: torch.Tensor) -> None:
    a @ b
    if a.device.type == "cuda":
        torch.cuda.synchronize()


def _read(file: Path) -> _Kept | None:
    """Return the contents of a file; None if it is missing, damaged or too old."""
    try:
        kept = _Kept.model_validate_json(file.read_bytes())
    except (OSError, ValueError):
        return None
    return kept if 0 <= time.time() - kept.time < KEPT.total_seconds() else None
