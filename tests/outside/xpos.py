"""xPos from outside the package: rotary positions whose queries grow and keys shrink with their place.

archwright train modern --parts xpos.py model.position.kind=xpos
"""

from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

import archwright as aw
from archwright.parts.positions import Rotary, Rotation
from archwright.spec.choice import Tokens
from archwright.spec.positions import RoPE


class XPos(RoPE):
    """RoPE, and pair i of a query is multiplied by zeta_i^(n / scale_base), that of a key divided by it, so that
    scores fall with distance (Sun et al., 2022, A Length-Extrapolatable Transformer, section 3)."""

    kind: Literal["xpos"] = "xpos"  # type: ignore[assignment]
    scale_base: Tokens = 512
    """Distance over which a pair falls to zeta_i, in tokens."""
    smoothing: float = 0.4
    """gamma in zeta_i = (2i/r + gamma) / (1 + gamma)."""


class XPosRotation(NamedTuple):
    """What turns queries and keys at each position, [rows, length, 1, head_dim] each."""

    query: Rotation
    key: Rotation


class XPosRotary(Rotary):
    """Turn pairs as RoPE, times zeta_i^(n / scale_base) for queries and its inverse for keys, at position n."""

    def __init__(self, spec: XPos, head_dim: int) -> None:
        super().__init__(spec, head_dim)
        self.base, self.smoothing = spec.scale_base, spec.smoothing

    def forward(  # type: ignore[override]
        self, positions: Tensor, lengths: Tensor | None = None
    ) -> XPosRotation:
        plain = super().forward(positions, lengths)
        r, device = self.num_rotary, positions.device
        zeta = (torch.arange(0, r, 2, device=device) / r + self.smoothing) / (1 + self.smoothing)
        scale = zeta.to(plain.cos.dtype) ** (positions[..., None, None] / self.base)
        # A factor for each coordinate: both of a pair have the same, and those that do not turn have 1.
        repeated = {
            "half": torch.cat((scale, scale), -1),
            "interleaved": scale.repeat_interleave(2, -1),
        }[self.spec.pairing]
        factor = F.pad(repeated, (0, self.head_dim - r), value=1.0)
        return XPosRotation(*(Rotation(plain.cos * f, plain.sin * f) for f in (factor, 1 / factor)))

    def rotate_query(self, query: Tensor, rotation: XPosRotation) -> Tensor:  # type: ignore[override]
        return self.rotate(query, rotation.query)

    def rotate_key(self, key: Tensor, rotation: XPosRotation) -> Tensor:  # type: ignore[override]
        return self.rotate(key, rotation.key)


aw.register(XPos, XPosRotary)
