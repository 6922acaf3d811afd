"""Rotary positions: rotations of queries and keys."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from archwright.parts.positions.scaling import SCALINGS, RoPEScaling
from archwright.parts.token_layout import TokenLayout
from archwright.spec import positions as spec
from archwright.spec.positions import rotary_dim


class _Tables(NamedTuple):
    cos: Tensor
    sin: Tensor


class Rotation(_Tables):
    """Rotation of a head at each position, in float32: cosines and signed sines, [rows, length, 1, head_dim] each.

    Coordinates that do not rotate have cosine 1 and sine 0.
    """

    def of(self, dtype: torch.dtype, heads: int) -> Sequence[Tensor]:
        """Return both tables in a dtype for a number of heads; all layers of a pass share the result."""
        if torch.compiler.is_compiling():
            return [_for_all_heads(table.to(dtype), heads) for table in self]
        made: dict[Any, Sequence[Tensor]] = self.__dict__
        key = f"{dtype} of {heads}"
        if key not in made:
            made[key] = [_for_all_heads(table.to(dtype), heads) for table in self]
        return made[key]


class Rotary(nn.Module):
    """Rotate each pair of coordinates by the angle position * theta^(-2i/r), i = 0 .. r/2 - 1.

    (a, b) -> (a cos - b sin, a sin + b cos), over the first r = fraction * head_dim coordinates;
    pairs are (i, i + r/2) or (2i, 2i + 1). Angles are float32 or wider. One instance serves all
    layers: `forward` computes the rotation once per pass, and each layer applies it with `rotate`.

    Su et al., 2021, RoFormer, section 3.4.2; scalings as in `scaling.py`.
    """

    def __init__(self, spec: spec.RoPE, head_dim: int) -> None:
        super().__init__()
        if "auto" in spec.scaling.model_dump().values():
            raise ValueError(
                'scaling: found "auto"; give original_length and attention_factor, or a resolved spec'
            )
        self.spec, self.head_dim = spec, head_dim
        self.num_rotary = rotary_dim(spec, head_dim)
        self.scaling: RoPEScaling = SCALINGS.make(spec.scaling, spec)
        self.frequencies: Tensor
        self.register_buffer("frequencies", self._frequencies(), persistent=False)

    @property
    def follows_length(self) -> bool:
        """True if angles depend on the length of the text, so that caches store unrotated keys."""
        return self.scaling.follows_length

    def forward(
        self,
        positions: Int[Tensor, "rows length"],
        spans: Int[Tensor, "rows length"] | None = None,
    ) -> Rotation:
        """Return the rotation at positions in texts of `spans` tokens (default: last position + 1)."""
        frequencies = self.frequencies
        if self.follows_length:
            if spans is None:
                spans = positions.amax(-1, keepdim=True).expand_as(positions) + 1
            frequencies = self.scaling.at_length(self.frequencies, spans)[..., None, :]
        # [rows, length, 1, pairs]
        angles = positions[..., None, None].to(self.frequencies.dtype) * frequencies
        factor = self.scaling.attention_factor
        cos, sin = angles.cos() * factor, angles.sin() * factor
        if self.spec.pairing == "half":
            cos, sin = torch.cat((cos, cos), -1), torch.cat((-sin, sin), -1)
        else:
            # [rows, length, 1, pairs, 2] -> [rows, length, 1, 2 * pairs]
            cos = torch.stack((cos, cos), -1).flatten(-2)
            # [rows, length, 1, 2 * pairs]
            sin = torch.stack((-sin, sin), -1).flatten(-2)
        passthrough = self.head_dim - self.num_rotary
        return Rotation(F.pad(cos, (0, passthrough), value=1.0), F.pad(sin, (0, passthrough)))

    def rotate(
        self, x: Float[Tensor, "batch length heads head_dim"], rotation: Rotation
    ) -> Float[Tensor, "batch length heads head_dim"]:
        """Rotate queries or keys."""
        halves = self.spec.pairing == "half"
        # Without gradients, the operations of published models, for the same rounding.
        if not torch.is_grad_enabled():
            cos, sin = rotation.of(x.dtype, x.shape[2])
            return (x * cos).add_(_partner(x, self.num_rotary, halves).mul_(sin))
        rotated: Tensor = _Rotate.apply(  # type: ignore[no-untyped-call]
            x, *rotation, self.num_rotary, halves
        )
        return rotated

    def rotate_query(self, query: Tensor, rotation: Rotation) -> Tensor:
        """Rotate queries [batch, length, heads, head_dim]."""
        return self.rotate(query, rotation)

    def rotate_key(self, key: Tensor, rotation: Rotation) -> Tensor:
        """Rotate keys [batch, length, heads, head_dim]."""
        return self.rotate(key, rotation)

    def reset_parameters(self) -> None:
        with torch.no_grad():
            self.frequencies.copy_(self._frequencies())

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "Rotary":
        """Move frequencies to the model's device, but not to a 16-bit dtype, which is too coarse for angles."""
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        if self.frequencies.dtype in (torch.float16, torch.bfloat16):
            self.frequencies = self._frequencies().to(self.frequencies.device)
        return self

    def _frequencies(self) -> Float[Tensor, " pairs"]:
        """Return theta^(-2i/r) after the scaling, in float32."""
        r = self.num_rotary
        plain = 1.0 / self.spec.theta ** (torch.arange(0, r, 2, dtype=torch.float32) / r)
        return self.scaling.frequencies(plain, self.head_dim)

    def extra_repr(self) -> str:
        return f"theta {self.spec.theta:g}, {self.num_rotary} coordinates, {self.spec.pairing}"


def rotation(rotary: nn.Module, layout: TokenLayout) -> Any:
    """Return the rotation at the positions of a layout."""
    inputs = [layout.position_ids_or_range()]
    # Encodings from outside the package may take positions only.
    if follows_length(rotary):
        inputs.append(layout.lengths_so_far_or_end())
    return rotary(*inputs)


@runtime_checkable
class FollowsLength(Protocol):
    """Rotary encoding with angles that may depend on the length of the text."""

    @property
    def follows_length(self) -> bool:
        """True if they do, so that caches store unrotated keys."""


def follows_length(rotary: nn.Module) -> bool:
    """True if angles depend on the length of the text, so that caches store unrotated keys."""
    return isinstance(rotary, FollowsLength) and rotary.follows_length


class _Rotate(torch.autograd.Function):
    """x cos + partner(x) sin. The gradient is the inverse rotation, so only cosines and sines are saved."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, cos: Tensor, sin: Tensor, num_rotary: int, halves: bool
    ) -> Tensor:
        ctx.save_for_backward(cos, sin)
        ctx.layout = (num_rotary, halves)
        # [rows, length, heads or 1, head_dim]
        cos, sin = (_for_all_heads(table.to(x.dtype), x.shape[2]) for table in (cos, sin))
        return _partner(x, num_rotary, halves).mul_(sin).addcmul_(x, cos)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None, None]:
        cos, sin = ctx.saved_tensors
        rotated = _Rotate.apply(grads[0], cos, -sin, *ctx.layout)  # type: ignore[no-untyped-call]
        return rotated, None, None, None, None


def _partner(x: Tensor, num_rotary: int, halves: bool) -> Tensor:
    """Return a new tensor with the two members of each pair swapped."""
    rotating, passthrough = x[..., :num_rotary], x[..., num_rotary:]
    if halves:
        first, second = rotating.chunk(2, -1)
        return torch.cat((second, first, passthrough), -1)
    # [..., pairs, 2] and back to [..., 2 * pairs]
    swapped = rotating.unflatten(-1, (-1, 2)).flip(-1).flatten(-2)
    return torch.cat((swapped, passthrough), -1) if passthrough.shape[-1] else swapped


def _for_all_heads(table: Tensor, heads: int) -> Tensor:
    """Repeat a table [1, length, 1, head_dim] for all heads, which makes the product much faster."""
    repeats = table.shape[0] == 1 and table.shape[1] > 1
    return table.expand(-1, -1, heads, -1).contiguous() if repeats else table
