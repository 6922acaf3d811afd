"""Residual wirings, each written once: how a layer's branches join the stream.

The stream keeps its dtype, float32 under autocast; a branch's narrower result is widened first, as torch's
sum of two dtypes is slow.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, runtime_checkable

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from archwright.parts.linear import Linear, fused_linears, to_autocast_dtype
from archwright.parts.registry import Registry
from archwright.spec import residuals as spec
from archwright.spec.errors import UserError

Stream = Float[Tensor, "batch length dim"]


class Branch(nn.Module):
    """A module between two points of the stream, whose maps that read x may be computed with those of others."""

    @property
    def inputs(self) -> Sequence[Linear]:
        """The maps that read x; `forward` is given their results, in this order, where a wiring has computed them."""
        return ()


@runtime_checkable
class Wired(Protocol):
    """A branch as a wiring has it: called with x, or with x and the results of its `inputs`."""

    @property
    def inputs(self) -> Sequence[Linear]: ...

    def __call__(self, x: Tensor, projected: Sequence[Tensor] | None = None) -> Tensor: ...


Branches = Mapping[str, Wired]
"""Branches of a layer, by name and in order."""
NewNorm = Callable[[], nn.Module]


class Wiring(nn.Module):
    """Base of wirings: a norm for each branch, and what happens to a branch before it is added."""

    def __init__(self, spec: spec.Residual, branches: list[str], new_norm: NewNorm) -> None:
        super().__init__()
        self.dropout, self.multiplier = spec.dropout, spec.multiplier
        self.norms = nn.ModuleDict({name: new_norm() for name in branches})

    def added(self, name: str, out: Tensor, x: Stream) -> Stream:
        """Return multiplier * dropout(out) in the dtype of the stream."""
        out = F.dropout(out, self.dropout, self.training).to(x.dtype)
        return out if self.multiplier[name] == 1 else out * self.multiplier[name]


class PostNorm(Wiring):
    """x = norm(x + f(x)) for each branch f in turn (Vaswani et al., 2017, section 3.1)."""

    def forward(self, x: Stream, branches: Branches) -> Stream:
        for name, branch in branches.items():
            x = self.norms[name](x + self.added(name, branch(x), x))
        return x


class PreNorm(Wiring):
    """x = x + f(norm(x)) for each branch f in turn (Xiong et al., 2020, figure 1b); one may have no norm."""

    def __init__(self, spec: spec.PreNorm, branches: list[str], new_norm: NewNorm) -> None:
        super().__init__(spec, [name for name in branches if name != spec.skip_norm], new_norm)

    def forward(self, x: Stream, branches: Branches) -> Stream:
        for name, branch in branches.items():
            read = self.norms[name](x) if name in self.norms else x
            x = x + self.added(name, branch(read), x)
        return x


class SandwichNorm(Wiring):
    """x = x + norm_out(f(norm_in(x))) for each branch f in turn (Ding et al., 2021, section 2.4)."""

    def __init__(self, spec: spec.SandwichNorm, branches: list[str], new_norm: NewNorm) -> None:
        super().__init__(spec, branches, new_norm)
        self.out_norms = nn.ModuleDict({name: new_norm() for name in branches})

    def forward(self, x: Stream, branches: Branches) -> Stream:
        for name, branch in branches.items():
            out = self.out_norms[name](branch(self.norms[name](x)))
            x = x + self.added(name, out, x)
        return x


class OutputNorm(Wiring):
    """x = x + norm(f(x)) for each branch f in turn (OLMo 2, section 3.1)."""

    def forward(self, x: Stream, branches: Branches) -> Stream:
        for name, branch in branches.items():
            x = x + self.added(name, self.norms[name](branch(x)), x)
        return x


class Parallel(Wiring):
    """x = x + sum of f(norm_f(x)) over all branches f, with one norm for all or one each.

    With one norm, the maps that read it are computed as one product. Chowdhery et al., 2022, PaLM,
    section 2; Black et al., 2022, GPT-NeoX, section 2.1.
    """

    def __init__(self, spec: spec.Parallel, branches: list[str], new_norm: NewNorm) -> None:
        super().__init__(spec, branches if spec.num_norms == 2 else ["shared"], new_norm)

    def forward(self, x: Stream, branches: Branches) -> Stream:
        if "shared" in self.norms:
            outs = _together(self.norms["shared"](x), branches)
        else:
            outs = {name: branch(self.norms[name](x)) for name, branch in branches.items()}
        for name, out in outs.items():
            x = x + self.added(name, out, x)
        return x


def _together(x: Tensor, branches: Branches) -> dict[str, Tensor]:
    """Return every branch of one vector, whose maps are read as one."""
    inputs = {name: branch.inputs for name, branch in branches.items()}
    if len(branches) < 2 or not all(inputs.values()):
        return {name: branch(x) for name, branch in branches.items()}
    projected = iter(
        fused_linears(to_autocast_dtype(x), [read for maps in inputs.values() for read in maps])
    )
    return {
        name: branch(x, [next(projected) for _ in inputs[name]])
        for name, branch in branches.items()
    }


class NormedResidual(Wiring):
    """h = norm(x), x = alpha h + f(h) for each branch f in turn (MiniMax-01, section 2.2)."""

    def __init__(self, spec: spec.NormedResidual, branches: list[str], new_norm: NewNorm) -> None:
        super().__init__(spec, branches, new_norm)
        self.alpha = spec.alpha

    def forward(self, x: Stream, branches: Branches) -> Stream:
        for name, branch in branches.items():
            h = self.norms[name](x)
            x = h * self.alpha[name] + self.added(name, branch(h), h)
        return x


class DeepNorm(Wiring):
    """x = norm(alpha x + f(x)) for each branch f in turn (Wang et al., 2022, DeepNet, section 3)."""

    def __init__(self, spec: spec.DeepNorm, branches: list[str], new_norm: NewNorm) -> None:
        super().__init__(spec, branches, new_norm)
        if spec.alpha == "auto":
            raise UserError(
                'residual.alpha: found "auto", which follows from the number of layers; give a number, or take '
                "the layer of a resolved spec: spec.resolved()"
            )
        self.alpha = spec.alpha

    def forward(self, x: Stream, branches: Branches) -> Stream:
        for name, branch in branches.items():
            x = self.norms[name](x * self.alpha + self.added(name, branch(x), x))
        return x


RESIDUALS = Registry(
    spec.Residual,
    "(spec, branches, new_norm)",
    nn.Module,
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
"""Modules, best below `Wiring`: x = residual(x, branches). They are made of the branches' names and called with the
branches themselves."""
