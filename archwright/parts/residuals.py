"""Residual wirings: the ways in which a layer's branches join the residual stream.

The stream keeps its dtype, float32 under autocast. Narrower results of branches are widened before they are added,
because torch adds two dtypes slowly.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from archwright.parts.branch import Branch
from archwright.parts.context import Context
from archwright.parts.linear import Linear, can_join, fused_linears, to_autocast_dtype
from archwright.parts.registry import Registry
from archwright.parts.sharing import LayerInfo
from archwright.spec import residuals as spec
from archwright.spec.errors import UserError

Stream = Float[Tensor, "batch length dim"]
Streams = Float[Tensor, "batch length streams_dim"]
"""All streams of a wiring, next to each other."""


class Wired:
    """A branch with its context and state bound: f(x), or f(x, results of its `inputs`)."""

    def __init__(self, branch: Branch, given: Mapping[str, Any] = MappingProxyType({})) -> None:
        self.branch, self.given = branch, given

    @property
    def inputs(self) -> Sequence[Linear]:
        """Maps of x, which a wiring may compute together with other branches' maps."""
        return self.branch.inputs

    def __call__(self, x: Tensor, projected: Sequence[Tensor] | None = None) -> Tensor:
        given = self.given if projected is None else {**self.given, "projected": projected}
        out: Tensor = self.branch(x, **given)
        return out


Branches = Mapping[str, Wired]
"""Branches by name, in order."""
Groups = Mapping[str, Branches]
"""Groups of branches, in order. The branches of a group read the same normed stream, and their results are added."""
Norms = nn.ModuleDict | Mapping[str, nn.Module]
WholePass = Callable[[Iterable[Any], Streams, Context, Iterable[nn.Parameter]], Streams]
"""whole_pass(layers, x, context, shared): streams after all layers; `shared` are parameters outside of layers."""


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
    whole_pass: WholePass | None = None
    """Runs all layers of a stack as one operation, which may recompute them; None: one after another."""

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

    One group may have no norm.
    """

    def forward(self, x: Stream, groups: Groups, context: Context | None = None) -> Stream:
        for name, branches in groups.items():
            h = self.norms[name](x) if name in self.norms else x
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
    },
)
"""Subclasses of `Wiring`, called as residual(x, groups, context). They are built from the names of the branches in
groups (`layer` is a `LayerInfo`) and called with the branches themselves."""
