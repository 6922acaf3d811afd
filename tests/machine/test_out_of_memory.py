import pytest
import torch

from archwright.machine.out_of_memory import explain_out_of_memory
from archwright.spec.errors import UserError


def too_much_for_torch() -> None:
    torch.empty(2**60, dtype=torch.uint8)


def too_much_for_python() -> None:
    bytearray(2**62)


def too_much_for_a_gpu() -> None:
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB")


@pytest.mark.parametrize("ask", [too_much_for_torch, too_much_for_python, too_much_for_a_gpu])
def test_it_is_one_line(ask: object) -> None:
    assert callable(ask)
    with pytest.raises(UserError, match="lower batch_size") as caught, explain_out_of_memory():
        ask()
    assert len(caught.value.lines) == 1


def test_other_failures_stay_what_they_are() -> None:
    with pytest.raises(RuntimeError, match="something else"), explain_out_of_memory():
        raise RuntimeError("something else")
