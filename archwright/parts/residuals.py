"""Residual wirings: the ways in which a layer's branches join the residual stream.

The stream keeps its dtype, float32 under autocast. Narrower results of branches are widened before they are added,
because torch adds two dtypes slowly.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from functools import partial, reduce
from operator import add
from typing import Any, Protocol, runtime_checkable

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from archwright.parts.context import Context
from archwright.parts.linear import Linear, can_join, fused_linears, to_autocast_dtype
from archwright.parts.registry import Registry
from archwright.parts.sharing import LayerInfo
from archwright.spec import residuals as spec
from archwright.spec.errors import UserError

Stream = Float[Tensor, "batch length dim"]
Streams = Float[Tensor, "batch length streams_dim"]
"""All streams of a wiring, next to each other."""


@runtime_checkable
class Wired(Protocol):
    """A branch with its context and state bound: f(x), or f(x, results of its `inputs`)."""

    @property
    def inputs(self) -> Sequence[Linear]: ...

    def __call__(self, x: Tensor, projected: Sequence[Tensor] | None = None) -> Tensor: ...


Branches = Mapping[str, Wired]
"""Branches by name, in order."""
Groups = Mapping[str, Branches]
"""Groups of branches, in order. The branches of a group read the same normed stream, and their results are added."""
Norms = nn.ModuleDict | Mapping[str, nn.Module]


class Wiring(nn.Module):
    """Base of residual wirings: norms of the groups, dropout and multiplier of the branches, and streams.

    A wiring with n streams holds them next to each other: x [batch, length, n dim].

    Args:
        spec: The residual choice.
        dim: Width of one stream.
        layer: Place of the layer in the model; `layer.new_norm` makes a norm of the layer's kind.
        groups: Names of the branches. `spec.norm_names(groups)` are those of the norms.

    Attributes:
        provides: As in `Branch`.
        reads_from: As in `Branch`.
    """

    provides: Mapping[str, int] = {}
    reads_from: Mapping[str, int] = {}

    def __init__(
        self, spec: spec.Residual, dim: int, layer: LayerInfo, groups: spec.Groups
    ) -> None:
        super().__init__()
        self.spec: Any = spec
        self.dropout, self.multiplier, self.streams = spec.dropout, spec.multiplier, spec.streams
        names = spec.norm_names(groups)
        self.norms = nn.ModuleDict({name: layer.new_norm(dim) for name in names})

    def forward(self, x: Stream, groups: Groups, context: Context | None = None) -> Stream:
        """Return the stream after the layer. A wiring on its own needs no context."""
        raise NotImplementedError

    def widen(self, x: Stream) -> Streams:
        """Return the streams of the first layer: by default n copies of x."""
        return x if self.streams == 1 else torch.cat([x] * self.streams, -1)

    def narrow(self, x: Streams) -> Float[Tensor, "batch length output_dim"]:
        """Return the input of the last norm from the streams of the last layer: by default their sum."""
        # [batch, length, streams, dim] to [batch, length, dim]
        return x if self.streams == 1 else x.unflatten(-1, (self.streams, -1)).sum(-2)

    @property
    def is_per_token(self) -> bool:
        """Whether the wiring handles each token alone, so that ranks may split the tokens of a text."""
        return not self.provides and not self.reads_from

    def add(self, x: Stream, h: Tensor, branches: Branches, norms: Norms | None = None) -> Stream:
        """Return x + sum of multiplier_f * dropout(norm_f(f(h))) over branches f, in the dtype of x.

        Args:
            norms: Norms of the branches' results. Default: none.
        """
        for term in self.terms(x.dtype, h, branches, norms):
            x = x + term
        return x

    def terms(
        self, dtype: torch.dtype, h: Tensor, branches: Branches, norms: Norms | None = None
    ) -> Iterator[Stream]:
        """Yield the term of each branch, in the dtype of the stream."""
        for name, out in outputs(h, branches).items():
            out = out if norms is None else norms[name](out)
            out = F.dropout(out, self.dropout, self.training).to(dtype)
            yield out if self.multiplier[name] == 1 else out * self.multiplier[name]


def outputs(h: Tensor, branches: Branches) -> dict[str, Tensor]:
    """Return f(h) for each branch f. Branches that all declare `inputs` share one matrix product for them."""
    inputs = {name: branch.inputs for name, branch in branches.items()}
    maps = [read for maps in inputs.values() for read in maps]
    if len(branches) < 2 or not all(inputs.values()) or not can_join(maps):
        return {name: branch(h) for name, branch in branches.items()}
    projected = iter(fused_linears(to_autocast_dtype(h), maps))
    return {name: f(h, [next(projected) for _ in inputs[name]]) for name, f in branches.items()}


class PostNorm(Wiring):
    """x = norm(x + f(x)) for each group f in turn (Vaswani et al., 2017, section 3.1)."""

    def forward(self, x: Stream, groups: Groups, context: Context | None = None) -> Stream:
        for name, branches in groups.items():
            x = self.norms[name](self.add(x, x, branches))
        return x


class PreNorm(Wiring):
    """x = x + f(norm(x)) for each group f in turn (Xiong et al., 2020, figure 1b).

    One group may have no norm. Global tokens may have a norm of their own before attention (Phang et al., 2022,
    Pegasus-X).
    """

    def __init__(self, spec: spec.PreNorm, dim: int, layer: LayerInfo, groups: spec.Groups) -> None:
        super().__init__(spec, dim, layer, groups)
        self.num_global, has_norm = layer.global_tokens, spec.global_norm and "attention" in groups
        self.global_norm = layer.new_norm(dim) if has_norm and self.num_global else None

    @property
    def is_per_token(self) -> bool:
        return self.global_norm is None and super().is_per_token

    def forward(self, x: Stream, groups: Groups, context: Context | None = None) -> Stream:
        for name, branches in groups.items():
            h = self.norms[name](x) if name in self.norms else x
            if self.global_norm is not None and context is not None and name == "attention":
                is_global = context.layout.index_or_range() < self.num_global  # [rows, length]
                # All of x is normed, though few tokens are global.
                h = torch.where(is_global[..., None], self.global_norm(x), h)
            x = self.add(x, h, branches)
        return x


class SandwichNorm(Wiring):
    """x = x + norm_out(f(norm_in(x))) for each group f in turn (Ding et al., 2021, section 2.4)."""

    def __init__(
        self, spec: spec.SandwichNorm, dim: int, layer: LayerInfo, groups: spec.Groups
    ) -> None:
        super().__init__(spec, dim, layer, groups)
        outputs = [f for group in groups.values() for f in group]
        self.out_norms = nn.ModuleDict({name: layer.new_norm(dim) for name in outputs})

    def forward(self, x: Stream, groups: Groups, context: Context | None = None) -> Stream:
        for name, branches in groups.items():
            x = self.add(x, self.norms[name](x), branches, self.out_norms)
        return x


class OutputNorm(Wiring):
    """x = x + norm(f(x)) for each group f in turn (OLMo 2, section 3.1)."""

    def forward(self, x: Stream, groups: Groups, context: Context | None = None) -> Stream:
        for branches in groups.values():
            x = self.add(x, x, branches, self.norms)
        return x


class Parallel(Wiring):
    """x = x + sum of f(norm_f(x)) over all groups f, with one norm for all or one each.

    With one norm, the maps that read it are computed as one product. Chowdhery et al., 2022, PaLM,
    section 2; Black et al., 2022, GPT-NeoX, section 2.1.
    """

    def forward(self, x: Stream, groups: Groups, context: Context | None = None) -> Stream:
        if "shared" in self.norms:
            everything = {name: f for group in groups.values() for name, f in group.items()}
            return self.add(x, self.norms["shared"](x), everything)
        start = x
        for name, branches in groups.items():
            x = self.add(x, self.norms[name](start), branches)
        return x


class NormedResidual(Wiring):
    """h = norm(x), x = alpha h + f(h) for each group f in turn (MiniMax-01, section 2.2)."""

    def forward(self, x: Stream, groups: Groups, context: Context | None = None) -> Stream:
        for name, branches in groups.items():
            h = self.norms[name](x)
            x = self.add(h * self.spec.alpha[name], h, branches)
        return x


class DeepNorm(Wiring):
    """x = norm(alpha x + f(x)) for each group f in turn (Wang et al., 2022, DeepNet, section 3)."""

    def __init__(
        self, spec: spec.DeepNorm, dim: int, layer: LayerInfo, groups: spec.Groups
    ) -> None:
        super().__init__(spec, dim, layer, groups)
        if spec.alpha == "auto":
            raise UserError(
                'residual.alpha: found "auto", which follows from the number of layers; give a number, or take '
                "the layer of a resolved spec: spec.resolved()"
            )

    def forward(self, x: Stream, groups: Groups, context: Context | None = None) -> Stream:
        for name, branches in groups.items():
            x = self.norms[name](self.add(x * self.spec.alpha, x, branches))
        return x


Step = Callable[[Stream], Stream]
"""The sum that a group of branches adds to one stream, as a function of the other stream."""


class Reversible(Wiring):
    """x1, x2 = x2, x1 + f(norm(x2)) for each group f in turn, over streams side by side.

    Shape of x, which is x1 next to x2: [batch, length, 2 dim].

    With attention and a feed-forward: y1 = x1 + attention(x2), y2 = x2 + feedforward(y1).

    Gomez et al., 2017, section 3.1; Kitaev et al., 2020, section 3.
    """

    def narrow(self, x: Streams) -> Float[Tensor, "batch length output_dim"]:
        # Both streams, or their mean: [batch, length, 2, dim] to [batch, length, dim]
        return x if self.spec.join == "concat" else x.unflatten(-1, (2, -1)).mean(-2)

    def forward(
        self,
        x: Float[Tensor, "batch length both"],
        groups: Groups,
        context: Context | None = None,
    ) -> Float[Tensor, "batch length both"]:
        """Return both streams after the layer; `context.replay` records the random numbers of each group."""
        replay = None if context is None else context.replay
        first, second = x.chunk(2, -1)
        for step in self.steps(groups):
            with nullcontext() if replay is None else replay.next():
                first, second = second, first + step(second)
        return torch.cat((first, second), -1)

    def steps(self, groups: Groups) -> list[Step]:
        """Return the sum that each group adds to one stream, as a function of the other."""
        return [partial(self._added, name, branches) for name, branches in groups.items()]

    def _added(self, name: str, branches: Branches, x: Stream) -> Stream:
        return reduce(add, self.terms(x.dtype, self.norms[name](x), branches))


RESIDUALS = Registry(
    spec.Residual,
    "(spec, dim, layer, groups)",
    Wiring,
    {
        spec.PostNorm: PostNorm,
        spec.PreNorm: PreNorm,
        spec.SandwichNorm: SandwichNorm,
        spec.OutputNorm: OutputNorm,
        spec.Parallel: Parallel,
        spec.NormedResidual: NormedResidual,
        spec.DeepNorm: DeepNorm,
        spec.Reversible: Reversible,
    },
)
"""Subclasses of `Wiring`, called as residual(x, groups, context). They are built from the names of the branches in
groups (`layer` is a `LayerInfo`) and called with the branches themselves."""
