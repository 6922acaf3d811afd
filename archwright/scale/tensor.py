"""Tensor parallel: branches whose maps are cut up over processes, from outside; and what each process holds of them.

A branch that is cut is a sum with a term for each process: heads, or hidden values, of its own. What enters it is the
same in all processes, so the gradient of that is the sum of theirs; what leaves it is added up. Parameters of the
branch that are not cut have a part of their gradient in each process. All other branches are computed alike.

Rows of a vocabulary are shared as well: of embeddings, which are such sums, and of heads, whose logits are gathered.

Sequence parallel: between branches each process has some of the tokens alone. What enters a branch is gathered, and
what leaves it is dealt out again; parameters of the norms between have a part of their gradient in each process.
Korthikanti et al., 2022, section 4.2.2.
"""

from collections.abc import Iterator, Sequence
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn

from archwright.losses import AUXILIARY
from archwright.model.across_layers import reads_embedding
from archwright.model.model import Decoder, Layer, Stack
from archwright.parts.branch import Branch
from archwright.parts.embeddings import Head, TokenEmbedding
from archwright.parts.feedforward import RouterAuxLoss
from archwright.scale.cuts import (
    cut_axes,
    distinct_layers,
    own_part,
    share_sizes,
    shared_branches,
    shared_position,
)
from archwright.scale.exchange import Pass, add_up, exchanged, gathered


class TensorShards:
    """A model whose branches are cut up over the processes of a group.

    Args:
        model: whole, and the same in all processes; afterwards, what this one holds of it.
        group: the processes; None: this one alone.
        sequence: whether they share the tokens between branches, in stacks that allow it.
        stages: the layers of each stage, where others have some of them.

    Attributes:
        axes: which axis of which parameter or buffer is cut, by name.
        partial: names of whole parameters of which each process has a part of the gradient.
    """

    def __init__(
        self,
        model: Decoder,
        group: dist.ProcessGroup | None,
        *,
        sequence: bool = True,
        stages: Sequence[Sequence[Layer]] = (),
    ) -> None:
        self.group = group
        self.size = 1 if group is None else group.size()
        self.rank = 0 if group is None else group.rank()
        self.axes: dict[str, int] = {}
        self.partial: frozenset[str] = frozenset()
        if group is not None:
            self._cut(model, group, sequence, stages)

    def _cut(
        self,
        model: Decoder,
        group: dist.ProcessGroup,
        sequence: bool,
        stages: Sequence[Sequence[Layer]],
    ) -> None:
        branches = shared_branches(model)
        positions = {position for b in branches if (position := shared_position(b)) is not None}
        axes: dict[Tensor, int] = {}
        inside: set[Tensor] = set()
        for part in (*branches, *positions):
            axes |= dict(cut_axes(part))
            inside.update(part.parameters())
            share_sizes(part, self.size)
        for stack, _ in stacks(model):
            tokens = _Tokens(group) if sequence and shares_tokens(stack) else None
            for layer in dict.fromkeys(stack.stack):
                for name in layer.branches:
                    _connect(branch := layer.branch(name), group, tokens, cut=branch in branches)
                if tokens is not None:
                    inside.update(layer.residual.parameters())
            if tokens is not None:
                for layers in stages or ([*stack.stack],):
                    tokens.deal_out(layers)
        for table in shared_tables(model, self.size):
            axes |= {p: 0 for p in (table.weight, table.bias) if p is not None}
            inside.update(table.parameters())
            (_connect_head if isinstance(table, Head) else _connect_embedding)(table, group)
        for tensor, axis in axes.items():
            tensor.data = own_part(tensor.data, axis, self.size, self.rank)
        named = [*model.named_parameters(), *model.named_buffers()]
        self.axes = {name: axes[tensor] for name, tensor in named if tensor in axes}
        self.partial = frozenset(n for n, t in named if t in inside and t not in axes)

    def shape(self, name: str, own: torch.Size) -> torch.Size:
        """Return the shape of a whole tensor of which processes hold parts of the shape `own`."""
        axis = self.axes.get(name)
        return torch.Size(n * self.size if i == axis else n for i, n in enumerate(own))

    def whole(self, name: str, own: Tensor) -> Tensor:
        """Return a whole tensor of which this process has `own`; all processes ask alike."""
        axis = self.axes.get(name)
        if axis is None or self.group is None:
            return own
        return gathered(own, axis, self.group)

    def own(self, name: str, whole: Tensor) -> Tensor:
        """Return of a whole tensor what this process holds."""
        axis = self.axes.get(name)
        return whole if axis is None else whole.chunk(self.size, axis)[self.rank]

    def add_up(self, gradients: Sequence[Tensor]) -> None:
        """Replace parts of gradients by their sums over processes."""
        if self.group is not None:
            add_up(gradients, self.group)


def shared_tables(model: Decoder, size: int) -> list[TokenEmbedding | Head]:
    """Return the embeddings and heads of a model whose rows, one for each token, so many processes may share."""
    tables = [m for m in model.modules() if isinstance(m, TokenEmbedding | Head)]
    # What a head shares with an embedding is whole for both where it is for one.
    whole = {m.weight for m in tables if not m.vocab_parallel or len(m.weight) % size}
    return [m for m in tables if m.weight not in whole]


def computed_alike(model: Decoder, size: int) -> list[str]:
    """Return what of a model each of so many processes computes in full, by name."""
    shared, tables = shared_branches(model), shared_tables(model, size)
    named = (
        (name, layer.branch(name)) for layer in distinct_layers(model) for name in layer.branches
    )
    found = dict.fromkeys(name for name, branch in named if branch not in shared)
    ends = {"embedding": model.get_submodule("embedding"), "head": model.head}
    return [*found, *(name for name, end in ends.items() if end not in tables)]


def refusals(model: Decoder, tensor: int) -> Iterator[str]:
    """Yield a line for each number of a model that so many processes cannot share out."""
    shared, lines = shared_branches(model), dict[str, None]()
    if not shared:
        yield (
            f"scale.tensor: found {tensor}; expected 1, as no branch of this model can be shared by its heads or "
            "hidden values"
        )
    for stack, prefix in stacks(model):
        kinds = stack.spec.layers.names(stack.spec.num_layers)
        for kind, layer in zip(kinds, stack.stack, strict=True):
            path = prefix if kind == "default" else f"{prefix}.layer_kinds.{kind}"
            for name in layer.branches:
                parallel = shared.get(layer.branch(name))
                for size, number in {} if parallel is None else parallel.sizes.items():
                    if number % tensor:
                        lines[
                            f"{path}.{name}.{size}: found {number}; expected a multiple of scale.tensor = {tensor}"
                        ] = None
    yield from lines


def shares_tokens(stack: Stack) -> bool:
    """Tell whether all that stands between the branches of a stack looks at each token by itself."""
    layers = [*stack.stack]
    plain = all(layer.residual.is_per_token and not reads_embedding(layer) for layer in layers)
    return plain and len({*layers}) == len(layers) and not stack.spec.residual.is_reversible


def stacks(model: nn.Module) -> Iterator[tuple[Stack, str]]:
    """Yield the stacks of layers, with the path of each one's spec, the model's own first."""
    for name, module in model.named_modules():
        if isinstance(module, Stack):
            yield module, f"model.{name}".rstrip(".")


class _Tokens:
    """Tokens of which each process of a group has some, between the branches of a stack."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        self.group = group
        self.length = 0
        """How many there are in this pass."""

    def deal_out(self, layers: Sequence[Layer]) -> None:
        """Let layers have the tokens of this process alone, and what comes behind them all."""
        layers[0].register_forward_pre_hook(self._before)
        layers[-1].register_forward_hook(self._behind)

    def _before(self, module: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
        self.length = args[0].shape[1]
        return self.exchanged(args[0], "own", "all"), *args[1:]

    def _behind(self, module: nn.Module, args: tuple[Any, ...], out: Tensor) -> Tensor:
        return self.exchanged(out, "all", "own")

    def exchanged(self, x: Tensor, forward: Pass, backward: Pass) -> Tensor:
        """Return what processes make of a tensor, whose gradient takes the other way."""
        return exchanged(x, self.group, forward, backward, self.length)


def _connect(
    branch: Branch, group: dist.ProcessGroup, tokens: _Tokens | None, *, cut: bool
) -> None:
    """Let a branch that is cut have the sum of all processes as its result, and of their gradients; and where these
    share tokens, let it read all of them."""
    if not cut and tokens is None:
        return

    def enter(module: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
        if tokens is None:
            return exchanged(args[0], group, "same", "sum"), *args[1:]
        return tokens.exchanged(args[0], "all", "own_sum" if cut else "own"), *args[1:]

    def leave(module: nn.Module, args: tuple[Any, ...], out: Tensor) -> Tensor:
        if cut:
            _share_auxiliary(module, group)
        if tokens is None:
            return exchanged(out, group, "sum", "same")
        return tokens.exchanged(out, "own_sum" if cut else "own", "all")

    def read_source(module: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
        return exchanged(args[0], group, "same", "sum"), *args[1:]

    branch.register_forward_pre_hook(enter)
    branch.register_forward_hook(leave)
    for m in branch.source_maps if cut else ():
        m.register_forward_pre_hook(read_source)


def _connect_embedding(embedding: nn.Module, group: dist.ProcessGroup) -> None:
    """Let an embedding add up what each process finds among the rows that it has."""
    forward = embedding.forward

    def of_own_rows(index: Tensor, *more: Any) -> Tensor:
        rows = len(cast(Tensor, embedding.weight))
        index = index - group.rank() * rows
        mine = (index >= 0) & (index < rows)
        found = forward(index.clamp(0, rows - 1), *more)
        return exchanged(torch.where(mine[..., None], found, 0), group, "sum", "same")

    setattr(embedding, "forward", of_own_rows)  # noqa: B010


def _connect_head(head: nn.Module, group: dist.ProcessGroup) -> None:
    """Let a head give the logits of all processes, each of which has those of some tokens."""

    def enter(module: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
        return exchanged(args[0], group, "same", "sum"), *args[1:]

    def leave(module: nn.Module, args: tuple[Any, ...], out: Tensor) -> Tensor:
        return exchanged(out, group, "all_columns", "own_columns")

    head.register_forward_pre_hook(enter)
    head.register_forward_hook(leave)


def _share_auxiliary(module: Any, group: dist.ProcessGroup) -> None:
    """Let what a branch asks to be minimised, the same in all processes, have a part of its gradient in each."""
    asked = vars(module).get(AUXILIARY)
    if isinstance(asked, RouterAuxLoss):
        mean_score, rest = (
            exchanged(t, group, "same", "share") for t in (asked.mean_score, asked.rest)
        )
        setattr(module, AUXILIARY, asked._replace(mean_score=mean_score, rest=rest))
