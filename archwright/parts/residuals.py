"""Residual wirings, each written once: how a layer's branches join the stream.

The stream keeps its dtype, float32 under autocast; a branch's narrower result is widened first, as torch's
sum of two dtypes is slow.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from functools import partial, reduce
from operator import add
from typing import Protocol, runtime_checkable

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from archwright.parts.linear import Linear, fused_linears, to_autocast_dtype
from archwright.parts.registry import Registry
from archwright.parts.replay import Replay
from archwright.spec import residuals as spec
from archwright.spec.errors import UserError

Stream = Float[Tensor, "batch length dim"]


@runtime_checkable
class Wired(Protocol):
    """A branch as a wiring has it: called with x, or with x and the results of its `inputs`."""

    @property
    def inputs(self) -> Sequence[Linear]: ...

    def __call__(self, x: Tensor, projected: Sequence[Tensor] | None = None) -> Tensor: ...


Branches = Mapping[str, Wired]
"""Branches by name and in order."""
Groups = Mapping[str, Branches]
"""Branches of a layer in groups, in order. Those of a group read the same normed stream and are added."""
NewNorm = Callable[[], nn.Module]
Norms = nn.ModuleDict | Mapping[str, nn.Module]


class Wiring(nn.Module):
    """Base of wirings: a norm for each group of branches, and what happens to a branch before it is added.

    Args:
        norms: names of the norms; groups, where each has one.
    """

    def __init__(self, spec: spec.Residual, norms: Iterable[str], new_norm: NewNorm) -> None:
        super().__init__()
        self.dropout, self.multiplier = spec.dropout, spec.multiplier
        self.norms = nn.ModuleDict({name: new_norm() for name in norms})

    def add(self, x: Stream, h: Tensor, branches: Branches, norms: Norms | None = None) -> Stream:
        """Return x + sum of multiplier_f * dropout(norm_f(f(h))) over branches f, in the dtype of x.

        Args:
            norms: those of the branches' results, if there are any.
        """
        for term in self.terms(x.dtype, h, branches, norms):
            x = x + term
        return x

    def terms(
        self, dtype: torch.dtype, h: Tensor, branches: Branches, norms: Norms | None = None
    ) -> Iterator[Stream]:
        """Yield what each branch adds to a stream of a dtype."""
        for name, out in outputs(h, branches).items():
            out = out if norms is None else norms[name](out)
            out = F.dropout(out, self.dropout, self.training).to(dtype)
            yield out if self.multiplier[name] == 1 else out * self.multiplier[name]


def outputs(h: Tensor, branches: Branches) -> dict[str, Tensor]:
    """Return f(h) for each branch f. Where all say which maps read h, these are computed as one product."""
    inputs = {name: branch.inputs for name, branch in branches.items()}
    maps = [read for maps in inputs.values() for read in maps]
    if len(branches) < 2 or not all(inputs.values()) or not all(m.can_join for m in maps):
        return {name: branch(h) for name, branch in branches.items()}
    projected = iter(fused_linears(to_autocast_dtype(h), maps))
    return {name: f(h, [next(projected) for _ in inputs[name]]) for name, f in branches.items()}


class PostNorm(Wiring):
    """x = norm(x + f(x)) for each group f in turn (Vaswani et al., 2017, section 3.1)."""

    def forward(self, x: Stream, groups: Groups) -> Stream:
        for name, branches in groups.items():
            x = self.norms[name](self.add(x, x, branches))
        return x


class PreNorm(Wiring):
    """x = x + f(norm(x)) for each group f in turn (Xiong et al., 2020, figure 1b); one may have no norm, and global
    tokens one of their own before attention (Phang et al., 2022, Pegasus-X)."""

    def __init__(self, spec: spec.PreNorm, groups: spec.Groups, new_norm: NewNorm) -> None:
        super().__init__(spec, [name for name in groups if name != spec.skip_norm], new_norm)

    def forward(
        self,
        x: Stream,
        groups: Groups,
        norm_global: Callable[[Stream, Stream], Stream] | None = None,
    ) -> Stream:
        """Return the stream behind the layer.

        Args:
            norm_global: what attention reads, of the stream and its norm, where global tokens have one of their own.
        """
        for name, branches in groups.items():
            h = self.norms[name](x) if name in self.norms else x
            h = norm_global(x, h) if norm_global is not None and name == "attention" else h
            x = self.add(x, h, branches)
        return x


class SandwichNorm(Wiring):
    """x = x + norm_out(f(norm_in(x))) for each group f in turn (Ding et al., 2021, section 2.4)."""

    def __init__(self, spec: spec.SandwichNorm, groups: spec.Groups, new_norm: NewNorm) -> None:
        super().__init__(spec, groups, new_norm)
        self.out_norms = nn.ModuleDict({f: new_norm() for group in groups.values() for f in group})

    def forward(self, x: Stream, groups: Groups) -> Stream:
        for name, branches in groups.items():
            x = self.add(x, self.norms[name](x), branches, self.out_norms)
        return x


class OutputNorm(Wiring):
    """x = x + norm(f(x)) for each group f in turn (OLMo 2, section 3.1)."""

    def __init__(self, spec: spec.OutputNorm, groups: spec.Groups, new_norm: NewNorm) -> None:
        super().__init__(spec, [f for group in groups.values() for f in group], new_norm)

    def forward(self, x: Stream, groups: Groups) -> Stream:
        for branches in groups.values():
            x = self.add(x, x, branches, self.norms)
        return x


class Parallel(Wiring):
    """x = x + sum of f(norm_f(x)) over all groups f, with one norm for all or one each.

    With one norm, the maps that read it are computed as one product. Chowdhery et al., 2022, PaLM,
    section 2; Black et al., 2022, GPT-NeoX, section 2.1.
    """

    def __init__(self, spec: spec.Parallel, groups: spec.Groups, new_norm: NewNorm) -> None:
        super().__init__(spec, groups if spec.num_norms == 2 else ["shared"], new_norm)

    def forward(self, x: Stream, groups: Groups) -> Stream:
        if "shared" in self.norms:
            everything = {name: f for group in groups.values() for name, f in group.items()}
            return self.add(x, self.norms["shared"](x), everything)
        start = x
        for name, branches in groups.items():
            x = self.add(x, self.norms[name](start), branches)
        return x


class NormedResidual(Wiring):
    """h = norm(x), x = alpha h + f(h) for each group f in turn (MiniMax-01, section 2.2)."""

    def __init__(self, spec: spec.NormedResidual, groups: spec.Groups, new_norm: NewNorm) -> None:
        super().__init__(spec, groups, new_norm)
        self.alpha = spec.alpha

    def forward(self, x: Stream, groups: Groups) -> Stream:
        for name, branches in groups.items():
            h = self.norms[name](x)
            x = self.add(h * self.alpha[name], h, branches)
        return x


class DeepNorm(Wiring):
    """x = norm(alpha x + f(x)) for each group f in turn (Wang et al., 2022, DeepNet, section 3)."""

    def __init__(self, spec: spec.DeepNorm, groups: spec.Groups, new_norm: NewNorm) -> None:
        super().__init__(spec, groups, new_norm)
        if spec.alpha == "auto":
            raise UserError(
                'residual.alpha: found "auto", which follows from the number of layers; give a number, or take '
                "the layer of a resolved spec: spec.resolved()"
            )
        self.alpha = spec.alpha

    def forward(self, x: Stream, groups: Groups) -> Stream:
        for name, branches in groups.items():
            x = self.norms[name](self.add(x * self.alpha, x, branches))
        return x


Step = Callable[[Stream], Stream]
"""What a group of branches adds to one stream, of the other."""


class Reversible(Wiring):
    """x1, x2 = x2, x1 + f(norm(x2)) for each group f in turn, over both streams side by side: x [batch, length, 2 dim].

    Gomez et al., 2017, section 3.1; Kitaev et al., 2020, section 3: with attention and a feed-forward, y1 = x1 +
    attention(x2) and y2 = x2 + feedforward(y1).
    """

    def forward(
        self, x: Float[Tensor, "batch length both"], groups: Groups, replay: Replay | None = None
    ) -> Float[Tensor, "batch length both"]:
        """Return the streams behind the layer.

        Args:
            replay: what lets each group draw the random numbers again that it draws now.
        """
        first, second = x.chunk(2, -1)
        for step in self.steps(groups):
            with nullcontext() if replay is None else replay.next():
                first, second = second, first + step(second)
        return torch.cat((first, second), -1)

    def steps(self, groups: Groups) -> list[Step]:
        """Return what each group adds to one stream, as a function of the other."""
        return [partial(self._added, name, branches) for name, branches in groups.items()]

    def _added(self, name: str, branches: Branches, x: Stream) -> Stream:
        return reduce(add, self.terms(x.dtype, self.norms[name](x), branches))


RESIDUALS = Registry(
    spec.Residual,
    "(spec, groups, new_norm)",
    nn.Module,
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
"""Modules, best below `Wiring`: x = residual(x, groups). They are made of the names of the branches in groups, and
called with the branches themselves."""
