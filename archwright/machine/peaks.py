"""Peak speed of matrix products, measured on a quiet machine and cached for a week. No decision depends on it."""

import contextlib
import hashlib
import json
import os
import time
from datetime import timedelta
from pathlib import Path
from typing import NamedTuple

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
"""Age after which it is repeated; the faster result counts."""
FORMAT = 2
"""Format number of cache files."""
UNDISTURBED = 0.9
"""Minimum processor time of an undisturbed product, divided by wall time and threads."""
SETTINGS = ("ATEN_", "DNNL_", "GOMP_", "KMP_", "MKL_", "OMP_", "ONEDNN_")
"""Prefixes of environment variables that change the speed of torch's libraries."""


class Peak(NamedTuple):
    """FLOP/s of matrix products, and whether no other work disturbed them."""

    flops: float
    quiet: bool


class _Kept(BaseModel):
    """Contents of a file: the peak of a quiet machine, and the seconds of the epoch when it was measured."""

    peak: float = Field(gt=0, lt=1e30)
    time: float


def peak_of(device: torch.device, dtype: torch.dtype) -> Peak:
    """Return the peak of matrix products in `dtype`, from the cache or measured now."""
    is_cuda = device.type == "cuda"
    facts = {
        "format": FORMAT,
        "torch": torch.__version__,
        "name": torch.cuda.get_device_name() if is_cuda else cpu_name(),
        "dtype": str(dtype),
        "float32_matmul_precision": torch.get_float32_matmul_precision(),
        "threads": torch.get_num_threads(),
        "settings": {k: v for k, v in sorted(os.environ.items()) if k.startswith(SETTINGS)},
    }
    digest = hashlib.blake2b(json.dumps(facts).encode(), digest_size=16).hexdigest()
    file = cache_folder("measured", f"{digest}.json")
    cached = _read(file)
    if cached and time.time() - cached.time < FRESH.total_seconds():
        return Peak(cached.peak, quiet=True)
    measured = measure_peak(device, dtype)
    if not measured.quiet:
        return Peak(cached.peak, quiet=True) if cached else measured
    peak = max(measured.flops, cached.peak if cached else 0.0)
    with contextlib.suppress(ValueError):  # no permission to write: the next run measures again
        sweep(file.parent, r"[0-9a-f]{32}\.json")
        atomic_write(file, _Kept(peak=peak, time=time.time()).model_dump_json())
    return Peak(peak, quiet=True)


def measure_peak(device: torch.device, dtype: torch.dtype, seconds: float = 0.1) -> Peak:
    """Return the FLOP/s of the fastest undisturbed matrix product within `seconds`.

    On a CPU a product is undisturbed if its threads had their cores all the time. If all products are disturbed, the
    fastest one counts, and the machine is not quiet. On a GPU, other processes are not noticed.
    """
    size = SIZE[device.type]
    a, b = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))
    _product(a, b)
    least = UNDISTURBED * torch.get_num_threads() if device.type == "cpu" else 0.0
    times: list[tuple[bool, float]] = []
    while len(times) < 3 or sum(wall for _, wall in times) < seconds:
        start, cpu = time.perf_counter(), time.process_time()
        _product(a, b)
        wall = time.perf_counter() - start
        times.append((time.process_time() - cpu < least * wall, wall))
    disturbed, wall = min(times)
    return Peak(2 * size**3 / wall, quiet=not disturbed)


def measure_bandwidth(device: torch.device, seconds: float = 0.1) -> float:
    """Return the bytes/s, read and written, of the fastest copy of a large tensor."""
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
        cached = _Kept.model_validate_json(file.read_bytes())
    except (OSError, ValueError):
        return None
    return cached if 0 <= time.time() - cached.time < KEPT.total_seconds() else None
