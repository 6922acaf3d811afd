"""The library for float32 products is chosen only where products stay float32."""

import pytest
import torch

from archwright.machine import products
from archwright.machine.products import float32_choice, measure_float32


def test_the_process_is_left_as_it_was_and_what_is_chosen_is_float32() -> None:
    before = torch.get_float32_matmul_precision()
    best, reason = float32_choice(**measure_float32())
    assert torch.get_float32_matmul_precision() == before
    assert best in ("highest", "medium")
    assert "times as fast" in reason
    torch.set_float32_matmul_precision(best)
    try:
        a, b = (torch.randn(256, 256) for _ in range(2))
        exact = a.double() @ b.double()
        assert (a @ b - exact).abs().max() / exact.abs().max() < 1e-5
    finally:
        torch.set_float32_matmul_precision(before)


def test_a_fast_path_that_rounds_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(products, "_error", lambda a, b: 3e-3)
    times = iter([1.0, 0.1])
    monkeypatch.setattr(products, "_seconds", lambda a, b: next(times))
    assert float32_choice(**measure_float32())[0] == "highest"


def test_a_path_that_is_no_faster_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(products, "_error", lambda a, b: 3e-7)
    times = iter([1.0, 0.99])
    monkeypatch.setattr(products, "_seconds", lambda a, b: next(times))
    assert float32_choice(**measure_float32())[0] == "highest"
