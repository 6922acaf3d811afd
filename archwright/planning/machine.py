"""Peak FLOP/s and memory bandwidth of this machine, measured."""

import statistics
import time

import torch

SIZE = {"cpu": 1024, "cuda": 8192}
"""Side of the square matrices that are multiplied: large enough to reach the peak."""


def measure_peak(device: torch.device, dtype: torch.dtype, seconds: float = 0.1) -> float:
    """Return the FLOP/s of matrix products in `dtype`: the best of the products that fit in `seconds`."""
    size = SIZE[device.type]
    a, b = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))
    _product(a, b)
    times: list[float] = []
    while sum(times) < seconds or len(times) < 3:
        start = time.perf_counter()
        _product(a, b)
        times.append(time.perf_counter() - start)
    return 2 * size**3 / statistics.quantiles(times, n=4)[0]


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
