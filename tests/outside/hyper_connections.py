"""Hyper-connections from outside the package: n residual streams, which each group of branches reads, writes and mixes.

archwright train modern --parts hyper_connections.py model.residual.kind=hyper
"""

from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import archwright as aw
from archwright.parts.context import Context
from archwright.parts.linear import Linear
from archwright.parts.residuals import Groups, Wiring
from archwright.parts.sharing import LayerInfo
from archwright.spec.choice import Count
from archwright.spec.residuals import Groups as Names
from archwright.spec.residuals import Residual


class HyperConnections(Residual):
    """h = sum_i r_i x_i, x_j = sum_i m_ij x_i + w_j f(norm(h)) over n streams x (Zhu et al., 2024, section 2)."""

    kind: Literal["hyper"] = "hyper"
    final_norm: ClassVar[bool] = True
    num_streams: Count = 4
    """Number of streams n."""
    scale: float = 0.01
    """Size of the part of r, w and m that depends on the token."""

    @property
    def streams(self) -> int:
        return self.num_streams


class Connection(nn.Module):
    """r, w and m of one group of branches: static + scale tanh(map(norm(x_i))), for each stream i.

    The static part reads stream `reads`, writes to all, and keeps all streams: at first as pre-norm.
    """

    def __init__(self, spec: HyperConnections, dim: int, reads: int) -> None:
        super().__init__()
        self.streams, self.scale, self.reads = spec.streams, spec.scale, reads
        self.map = Linear(dim, 2 + spec.streams, deepnorm=False)
        self.map.init_gain = 0.0
        self.static = nn.Parameter(torch.empty(spec.streams * (2 + spec.streams)))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return r and w, [batch, length, n], and m, [batch, length, n, n], for streams [batch, length, n, dim]."""
        changes = self.scale * torch.tanh(self.map(F.layer_norm(x, x.shape[-1:]))).to(x.dtype)
        # [batch, length, n, 2 + n]
        weights = self.static.to(x.dtype).view(self.streams, -1) + changes
        return weights[..., 0], weights[..., 1], weights[..., 2:]

    def reset_parameters(self) -> None:
        weights = torch.zeros(self.streams, 2 + self.streams)
        weights[self.reads, 0], weights[:, 1], weights[:, 2:] = 1, 1, torch.eye(self.streams)
        with torch.no_grad():
            self.static.copy_(weights.flatten())


class HyperConnected(Wiring):
    """One connection for each group of branches, in turn. Shape: x [batch, length, n dim]."""

    def __init__(self, spec: HyperConnections, dim: int, layer: LayerInfo, groups: Names) -> None:
        super().__init__(spec, dim, layer, groups)
        first = (layer.number - 1) * len(groups)
        self.connections = nn.ModuleDict(
            {
                name: Connection(spec, dim, (first + i) % spec.streams)
                for i, name in enumerate(groups)
            }
        )

    def forward(self, x: Tensor, groups: Groups, context: Context | None = None) -> Tensor:
        for name, branches in groups.items():
            streams = x.unflatten(-1, (self.streams, -1))  # [batch, length, n, dim]
            read, write, mix = self.connections[name](streams)
            h = self.norms[name]((read[..., None] * streams).sum(-2))
            out = sum(self.terms(x.dtype, h, branches))
            x = (mix.mT @ streams + write[..., None] * out[..., None, :]).flatten(-2)
        return x


aw.register(HyperConnections, HyperConnected)
