"""This machine's peak of matrix products, measured."""

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


def _product(a: torch.Tensor, b: torch.Tensor) -> None:
    a @ b
    if a.device.type == "cuda":
        torch.cuda.synchronize()
