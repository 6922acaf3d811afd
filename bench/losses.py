"""Time of the loss, forward and backward, beside torch's on logits in float32.

Run as `python bench/losses.py`. Contenders take turns in one process; medians of CPU time of one thread.
"""

import ctypes
import statistics
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from archwright.losses import cross_entropy

SHAPES = [(2048, 2048), (4096, 2048), (4096, 8192)]
ROUNDS = 15


def main() -> None:
    keep_memory()
    torch.set_num_threads(1)
    print(f"torch {torch.__version__}, milliseconds: torch, this package, ratio")
    for z_loss in (0.0, 1e-4):
        for shape in SHAPES:
            for dtype in (torch.float32, torch.bfloat16):
                logits = torch.randn(shape).to(dtype).requires_grad_()
                targets = torch.randint(shape[1], shape[:1])
                theirs, ours = measure(logits, targets, z_loss)
                print(
                    f"{list(shape)!s:<14} {str(dtype)[6:]:<9} z_loss {z_loss:<7} "
                    f"{theirs * 1e3:7.2f} {ours * 1e3:7.2f} {theirs / ours:5.2f}"
                )


def plain(logits: Tensor, targets: Tensor, z_loss: float) -> Tensor:
    logits = logits.float()
    loss = F.cross_entropy(logits, targets)
    return loss + z_loss * logits.logsumexp(-1).square().mean() if z_loss else loss


def measure(logits: Tensor, targets: Tensor, z_loss: float) -> list[float]:
    contenders: list[Callable[[], Tensor]] = [
        lambda: plain(logits, targets, z_loss),
        lambda: cross_entropy(logits, targets, z_loss=z_loss).total,
    ]
    seconds: list[list[float]] = [[], []]
    for _ in range(ROUNDS):
        for contender, taken in zip(contenders, seconds, strict=True):
            logits.grad = None
            start = time.process_time()
            contender().backward()
            taken.append(time.process_time() - start)
    return [statistics.median(taken) for taken in seconds]


def keep_memory() -> None:
    """Keep freed memory, as training does; fresh pages would cost more than the arithmetic."""
    libc = ctypes.CDLL(None)
    for option, value in [(-4, 0), (-1, 2**31 - 1), (-2, 2**28)]:
        libc.mallopt(option, value)


if __name__ == "__main__":
    main()
