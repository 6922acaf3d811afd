"""Tensor parallelism: ranks split the heads or hidden values of branches, and the rows of vocabulary tables.

A split branch is a sum over ranks. Its input is equal on all ranks, so the input's gradient is all-reduced; its output
is all-reduced. Complete parameters inside a split branch have a partial gradient on each rank. Other branches are
replicated. Embeddings are split by rows as such sums; heads all-gather their logits.

Sequence parallelism: between branches each rank has a chunk of the tokens. Inputs of branches are all-gathered and
outputs reduce-scattered; parameters of norms in between have partial gradients.

Source: Korthikanti et al., 2022, section 4.2.2.
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
from archwright.parts.feedforward import Gated, Plain, RouterAuxLoss
from archwright.parts.linear import to_autocast_dtype
from archwright.parts.mixers.attention import AttentionMixer
from archwright.scale.cuts import (
    branch_paths,
    cut_axes,
    distinct_layers,
    own_part,
    share_sizes,
    shared_branches,
    shared_position,
    stacks,
)
from archwright.scale.exchange import Pass, exchanged


def split_branches(
    model: Decoder,
    group: dist.ProcessGroup,
    *,
    sequence: bool = True,
    stages: Sequence[Sequence[Layer]] = (),
) -> tuple[dict[str, int], frozenset[str]]:
    """Replace parameters by their shards, and add collectives to the branches.

    Args:
        model: Complete model, with equal values on all ranks.
        sequence: Whether stacks use sequence parallelism if they allow it.
        stages: Layers of each pipeline stage, if there are several.

    Returns:
        The split axis of each sharded parameter and buffer, and the names of complete parameters with partial
        gradients.
    """
    size = group.size()
    branches = shared_branches(model)
    positions = {position for b in branches if (position := shared_position(b)) is not None}
    axes: dict[Tensor, int] = {}
    inside: set[Tensor] = set()
    for part in (*branches, *positions):
        axes |= dict(cut_axes(part))
        inside.update(part.parameters())
        share_sizes(part, size)
    for stack, _ in stacks(model):
        tokens = _SequenceSplit(group) if sequence and shares_tokens(stack) else None
        for layer in dict.fromkeys(stack.stack):
            for name in layer.branches:
                _connect(branch := layer.branch(name), group, tokens, cut=branch in branches)
            if tokens is not None:
                inside.update(layer.residual.parameters())
        if tokens is not None:
            for layers in stages or ([*stack.stack],):
                layers[0].register_forward_pre_hook(tokens.before_layers)
                layers[-1].register_forward_hook(tokens.after_layers)
    for table in shared_tables(model, size):
        axes |= {p: 0 for p in (table.weight, table.bias) if p is not None}
        inside.update(table.parameters())
        if isinstance(table, Head):
            _connect_head(table, group)
        else:
            _connect_embedding(table, group)
    for tensor, axis in axes.items():
        tensor.data = own_part(tensor.data, axis, size, group.rank())
    named = [*model.named_parameters(), *model.named_buffers()]
    return (
        {name: axes[tensor] for name, tensor in named if tensor in axes},
        frozenset(n for n, t in named if t in inside and t not in axes),
    )


def shared_tables(model: Decoder, size: int) -> list[TokenEmbedding | Head]:
    """Return the embeddings and heads that ranks can split by rows, one row per token."""
    tables = [m for m in model.modules() if isinstance(m, TokenEmbedding | Head)]
    # A tied weight is complete in both modules if one of them needs it.
    replicated = {m.weight for m in tables if not m.vocab_parallel or len(m.weight) % size}
    return [m for m in tables if m.weight not in replicated]


def computed_alike(model: Decoder, size: int) -> list[str]:
    """Return the names of branches and tables that are replicated."""
    shared, tables = shared_branches(model), shared_tables(model, size)
    named = (
        (name, layer.branch(name)) for layer in distinct_layers(model) for name in layer.branches
    )
    replicated = dict.fromkeys(name for name, branch in named if branch not in shared)
    ends = {"embedding": model.get_submodule("embedding"), "head": model.head}
    return [*replicated, *(name for name, end in ends.items() if end not in tables)]


def refusals(model: Decoder, tensor: int) -> Iterator[str]:
    """Yield a line for each size that does not divide by the number of ranks."""
    shared = shared_branches(model)
    if not shared:
        yield (
            f"scale.tensor: found {tensor}; expected 1, as no branch of this model can be shared by its heads or "
            "hidden values"
        )
    lines = dict[str, None]()
    for path, branch, _ in branch_paths(model):
        for size, number in shared[branch].sizes.items() if branch in shared else ():
            if number % tensor:
                lines[
                    f"{path}.{size}: found {number}; expected a multiple of scale.tensor = {tensor}"
                ] = None
    yield from lines


def shares_tokens(stack: Stack) -> bool:
    """True if all modules between the branches of a stack process each token separately."""
    layers = [*stack.stack]
    plain = all(layer.residual.is_per_token and not reads_embedding(layer) for layer in layers)
    return plain and len({*layers}) == len(layers) and not stack.spec.residual.is_reversible


class _SequenceSplit:
    """Sequence parallelism of one stack.

    Attributes:
        length: Number of tokens on all ranks in this pass.
    """

    def __init__(self, group: dist.ProcessGroup) -> None:
        self.group, self.length = group, 0

    def before_layers(self, module: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """Keep the local chunk of tokens."""
        self.length = args[0].shape[1]
        return self.exchanged(args[0], "own", "all"), *args[1:]

    def after_layers(self, module: nn.Module, args: tuple[Any, ...], out: Tensor) -> Tensor:
        """All-gather the tokens."""
        return self.exchanged(out, "all", "own")

    def exchanged(self, x: Tensor, forward: Pass, backward: Pass) -> Tensor:
        """Apply an operation to tokens, and the reverse one to their gradient."""
        return exchanged(x, self.group, forward, backward, self.length)


def _connect(
    branch: Branch, group: dist.ProcessGroup, tokens: _SequenceSplit | None, *, cut: bool
) -> None:
    """Add collectives to the input and output of a branch."""
    if not cut and tokens is None:
        return
    for m in branch.inputs:
        m.can_join = False  # joined maps of several branches would read before `enter`

    # Routers and recurrences read their input in float32; for maps autocast would round it after the gather.
    narrows = isinstance(branch, AttentionMixer | Plain | Gated)

    def enter(module: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
        x = to_autocast_dtype(args[0]) if narrows else args[0]
        if tokens is None:
            return exchanged(x, group, "same", "sum"), *args[1:]
        return tokens.exchanged(x, "all", "own_sum" if cut else "own"), *args[1:]

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
    """Sum the embeddings of all ranks; each rank has zeros for tokens outside its rows."""
    forward = embedding.forward

    def of_local_rows(index: Tensor, *args: Any) -> Tensor:
        rows = len(cast(Tensor, embedding.weight))
        index = index - group.rank() * rows
        mine = (index >= 0) & (index < rows)
        x = forward(index.clamp(0, rows - 1), *args)
        return exchanged(torch.where(mine[..., None], x, 0), group, "sum", "same")

    setattr(embedding, "forward", of_local_rows)  # noqa: B010


class _VocabShards:
    """Equal shards of the vocabulary, one per rank."""

    def __init__(self, group: dist.ProcessGroup, size: int) -> None:
        self.group, self.size = group, size
        self.start = group.rank() * (size // group.size())

    def max(self, x: Tensor) -> Tensor:
        dist.all_reduce(x, dist.ReduceOp.MAX, group=self.group)
        return x

    def sum(self, x: Tensor) -> Tensor:
        dist.all_reduce(x, group=self.group)
        return x


def _connect_head(head: Head, group: dist.ProcessGroup) -> None:
    """All-gather the logits of the vocabulary shards, unless a loss needs only the local ones."""
    head.vocab = _VocabShards(group, len(head.weight))

    def enter(module: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
        return exchanged(args[0], group, "same", "sum"), *args[1:]

    def leave(module: nn.Module, args: tuple[Any, ...], out: Any) -> Any:
        return out if args[1:] else exchanged(out, group, "all_columns", "own_columns")

    head.register_forward_pre_hook(enter)
    head.register_forward_hook(leave)


def _share_auxiliary(module: Any, group: dist.ProcessGroup) -> None:
    """Divide the gradient of an auxiliary loss, which is equal on all ranks, by their number."""
    loss = vars(module).get(AUXILIARY)
    if isinstance(loss, RouterAuxLoss):
        mean_score, rest = (
            exchanged(t, group, "same", "share") for t in (loss.mean_score, loss.rest)
        )
        setattr(module, AUXILIARY, loss._replace(mean_score=mean_score, rest=rest))
