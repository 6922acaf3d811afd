"""Precision of a training step: weights in float32, matrix products by autocast."""

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor

from archwright.machine.float8 import Float8Products

DTYPES = {
    "fp32": torch.float32,
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
    "fp8": torch.bfloat16,
}
"""Dtype of autocast; with fp8, of the products that are not in 8 bits."""


class Precision:
    """fp32, or autocast to bf16, fp16 or fp8.

    fp16 scales the loss, because small gradients would vanish. fp8 is bf16 with `Float8Products`, which are emulated on
    devices other than CUDA.

    Args:
        head: Number of outputs of the head, which is not computed in fp8.

    Source: Micikevicius et al., 2017, Mixed Precision Training, section 3.2.
    """

    def __init__(self, name: str, device: torch.device, head: int | None = None) -> None:
        self.name, self.device, self.dtype = name, device, DTYPES[name]
        emulated = device.type != "cuda"
        self.products = Float8Products(head, emulated=emulated) if name == "fp8" else None
        self.scaler = torch.amp.GradScaler(device.type) if name == "fp16" else None

    @contextmanager
    def autocast(self) -> Iterator[None]:
        """Context of a forward pass."""
        with ExitStack() as stack:
            if self.name != "fp32":
                stack.enter_context(torch.autocast(self.device.type, dtype=self.dtype))
            if self.products is not None:
                stack.enter_context(self.products)
            yield

    @property
    def scales(self) -> bool:
        """True if losses are scaled, so that gradients may overflow in some steps."""
        return self.scaler is not None

    def scaled(self, loss: Tensor) -> Tensor:
        """Return the loss for the backward pass."""
        return loss if self.scaler is None else self.scaler.scale(loss)

    def unscale(self, optimizers: Iterable[torch.optim.Optimizer]) -> None:
        """Divide gradients by the loss scale, before clipping."""
        if self.scaler is not None:
            for optimizer in optimizers:
                self.scaler.unscale_(optimizer)

    def step(self, optimizer: torch.optim.Optimizer) -> None:
        """Update parameters, unless scaled gradients overflowed."""
        optimizer.step() if self.scaler is None else self.scaler.step(optimizer)

    def update(self) -> None:
        """Adapt the loss scale after a step."""
        if self.scaler is not None:
            self.scaler.update()

    def state(self) -> dict[str, Any]:
        """Return the state for a checkpoint."""
        return {} if self.scaler is None else dict(self.scaler.state_dict())

    def restore(self, state: dict[str, Any]) -> None:
        """Restore a state."""
        if self.scaler is not None:
            self.scaler.load_state_dict(state)
