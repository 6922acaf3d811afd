"""Fused kernels of liger-kernel, for training on a GPU: norms, gates, and the loss in chunks.

A kernel replaces a part of the package if it computes the same function with the same casts. Passes without gradients
use the package's parts, which round like published models.

Source: Hsu et al., 2024, Liger Kernel: Efficient Triton Kernels for LLM Training.
"""

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from archwright.data.inputs import IGNORE
from archwright.losses import Loss
from archwright.model.model import Decoder
from archwright.parts.embeddings import Head
from archwright.parts.feedforward import Gated, GroupedExperts, Multiplied
from archwright.parts.linear import to_autocast_dtype
from archwright.parts.norms import LayerNorm, RMSNorm
from archwright.spec.errors import UserError
from archwright.spec.machine import MachineSpec

LONGEST = 2**16
"""Maximum width of the kernels' inputs."""


def why_not_fusable(device: str) -> str:
    """Return the missing requirement of liger's kernels; empty if they can run."""
    if device != "cuda":
        return "a GPU"
    if find_spec("liger_kernel") is None:
        return "liger-kernel; install it with: pip install archwright[liger]"
    return ""


def check_liger(machine: MachineSpec) -> None:
    """Refuse `machine.fused="liger"` if its kernels cannot run.

    Raises:
        UserError: There is no GPU, or liger-kernel is not installed.
    """
    if machine.fused == "liger" and (missing := why_not_fusable(machine.device)):
        raise UserError(f'machine.fused: found "liger"; expected "none", as it needs {missing}')


def fuse(model: Decoder, machine: MachineSpec) -> tuple[str, str]:
    """Replace parts by liger's kernels; return the setting that is used, and the replaced parts.

    Compiled layers are unchanged, because the compiler fuses their norms and gates. A loss of all logits at once is
    unchanged; so is one in float16, because gradients summed over a batch could overflow.
    """
    modules: Iterable[nn.Module] = model.modules()
    if machine.compile == "block":
        modules = model.norm.modules()
    counts = Counter(filter(None, [_fused(module) for module in modules]))
    if machine.loss == "chunked" and machine.precision != "fp16" and _is_plain(model.head):
        model.head.__class__ = FusedHead
        counts["loss"] += 1
    if not counts:
        return "none", "liger has none of this model's norms, gates and loss"
    return "liger", ", ".join(f"{number} {name}" for name, number in counts.items())


def unfuse(model: Decoder) -> None:
    """Undo `fuse`."""
    for module in model.modules():
        if plain := PLAIN.get(type(module)):
            module.__class__ = plain
        elif isinstance(module, Gated | GroupedExperts) and isinstance(
            module.activation, FusedGate
        ):
            module.activation = module.activation.plain


class FusedRMSNorm(RMSNorm):
    """RMSNorm in one kernel per pass. liger's casting mode: gemma for float32 weights, llama for the input's dtype."""

    def forward(self, x: Tensor) -> Tensor:
        if not torch.is_grad_enabled():
            return super().forward(x)
        weight, casts = self.factor(torch.float32), "gemma"
        if self.scale_in_input_dtype and weight is not None:
            weight, casts = weight.to(x.dtype), "llama"
        # In place, it would overwrite the gradient of y, which may be used elsewhere.
        y: Tensor = _liger().liger_rms_norm(x, weight, self.eps, casting_mode=casts, in_place=False)
        return y


class FusedLayerNorm(LayerNorm):
    """LayerNorm in one kernel per pass."""

    def forward(self, x: Tensor) -> Tensor:
        if not torch.is_grad_enabled():
            return super().forward(x)
        y: Tensor = _liger().liger_layer_norm(x, self.factor(torch.float32), self.bias, self.eps)
        return y


@dataclass(frozen=True)
class FusedGate:
    """f(gate, up) in one kernel per pass. The backward pass overwrites gate and up, which have no other use."""

    plain: Callable[[Tensor, Tensor], Tensor]
    name: str

    def __call__(self, gate: Tensor, up: Tensor) -> Tensor:
        if not torch.is_grad_enabled():
            return self.plain(gate, up)
        hidden: Tensor = getattr(_liger(), self.name)(gate, up)
        return hidden


class FusedHead(Head):
    """A head that computes the loss in chunks by `fused_cross_entropy`."""


PLAIN: dict[type[nn.Module], type[nn.Module]] = {
    FusedRMSNorm: RMSNorm,
    FusedLayerNorm: LayerNorm,
    FusedHead: Head,
}
"""Replaced class of each fused class."""


def fused_cross_entropy(
    hidden: Tensor, head: FusedHead, targets: Tensor, *, z_loss: float, num_valid: int
) -> Loss:
    """Compute `linear_cross_entropy` in chunks of tokens.

    One kernel computes the loss and overwrites the logits with their gradient. The z term is rounded to the dtype of
    products.

    Args:
        hidden: Hidden states [..., dim].
        targets: Token ids [...].
    """
    rows, flat = to_autocast_dtype(hidden.flatten(0, -2)), targets.flatten()
    result = _liger().liger_fused_linear_cross_entropy(
        rows,
        head.weight.to(rows.dtype),
        flat,
        bias=None if head.bias is None else head.bias.to(rows.dtype),
        ignore_index=IGNORE,
        lse_square_scale=z_loss,
        reduction="sum",
        softcap=head.softcap,
        return_z_loss=True,
        accum_dtype=torch.float32,
    )
    z_sum = result.z_loss.detach().to(result.loss.dtype)
    nll_sum = result.loss.detach() - z_sum
    return Loss(result.loss / num_valid, nll_sum, z_sum / num_valid, (flat != IGNORE).sum())


def _fused(module: nn.Module) -> str:
    """Replace a module if liger has a kernel; return its name for the count."""
    # Only the class changes, so parameters, hooks and names of weights remain, and `unfuse` can undo it.
    if type(module) is RMSNorm and module.shape == (module.dim,) and module.dim <= LONGEST:
        module.__class__ = FusedRMSNorm
        return "norms"
    if type(module) is LayerNorm and _takes(module):
        module.__class__ = FusedLayerNorm
        return "norms"
    if isinstance(module, Gated | GroupedExperts) and (name := _gate(module)):
        module.activation = FusedGate(module.activation, name)
        return "gates"
    return ""


def _takes(norm: LayerNorm) -> bool:
    learned = norm.weight is not None and norm.bias is not None
    return learned and norm.shape == (norm.dim,) and norm.dim <= LONGEST


def _gate(module: Gated | GroupedExperts) -> str:
    """Return the name of liger's function for a gate; empty if there is none."""
    if not isinstance(module.activation, Multiplied) or module.down.d_in > LONGEST:
        return ""
    activation = module.activation.activation
    if isinstance(activation, partial) and activation.func is F.gelu:
        return "liger_geglu" if activation.keywords == {"approximate": "tanh"} else ""
    return "liger_swiglu" if activation is F.silu else ""


def _is_plain(head: Head) -> bool:
    """True if logits are x W^T + b, with or without a soft cap."""
    unscaled = (head.logit_scale, head.logit_divisor) == (1, 1)
    return type(head) is Head and head.transform is None and head.project_out is None and unscaled


def _liger() -> Any:
    """Return liger's functions, imported late because the import loads a compiler."""
    from liger_kernel.transformers import functional

    return functional
