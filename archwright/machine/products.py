"""Which library computes float32 matrix products on the CPU."""

import time

import torch
from torch import Tensor

SIZE = 512
"""Side of the matrices that are tried."""

WORTHWHILE = 1.1
"""How much faster "medium" must be to be chosen."""
STILL_FLOAT32 = 1e-5
"""Largest error, relative to the largest result, of products that are float32: ten times what it is."""


def measure_float32() -> dict[str, float]:
    """Return the error of "medium" float32 products, and how many times as fast as "highest" they are.

    "medium" allows bfloat16, and on processors with matrix units that is what happens; on others, where
    the usual library may be slow, it is a faster library for true float32. So both are tried, and
    the process is left as it was.
    """
    before = torch.get_float32_matmul_precision()
    generator = torch.Generator().manual_seed(0)
    a, b = (torch.randn(SIZE, SIZE, generator=generator) for _ in range(2))
    try:
        torch.set_float32_matmul_precision("highest")
        usual = _seconds(a, b)
        torch.set_float32_matmul_precision("medium")
        return {"error": _error(a, b), "ratio": usual / _seconds(a, b)}
    finally:
        torch.set_float32_matmul_precision(before)


def float32_choice(error: float, ratio: float) -> tuple[str, str]:
    """Return which name to use where "medium" products have this error and speed, and why."""
    best = "medium" if error < STILL_FLOAT32 and ratio > WORTHWHILE else "highest"
    return (
        best,
        f'"medium" float32 products have error {error:.0e} and are {ratio:.2f} times as fast',
    )


def _error(a: Tensor, b: Tensor) -> float:
    """Return the largest error of a product in each layout, of which libraries may treat one differently."""
    exact = a.double() @ b.double()
    results = (
        a @ b,
        (b.t() @ a.t()).t(),
        torch.bmm(a[None], b[None])[0],
        a.t().contiguous().t() @ b,
    )
    return max(float((x - exact).abs().max() / exact.abs().max()) for x in results)


def _seconds(a: Tensor, b: Tensor) -> float:
    times = []
    for _ in range(6):
        start = time.perf_counter()
        a @ b
        times.append(time.perf_counter() - start)
    return min(times[1:])
