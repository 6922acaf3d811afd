"""Context parallelism: ranks split the tokens of each sequence.

Attention all-gathers keys and values, and uses the mask of the local queries. The gradients of keys and values are
reduce-scattered. Positions and documents are those of complete sequences. Each rank computes a part of the gradient of
each parameter, and FSDP2 sums these parts, as in data parallelism.
"""

from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from archwright.model.model import Decoder
from archwright.parts.context import Context
from archwright.parts.masks import AttentionMask, MaskPattern
from archwright.parts.token_layout import TokenLayout, token_layout
from archwright.scale.cuts import branch_paths
from archwright.scale.exchange import exchanged, gathered
from archwright.scale.processes import stretches
from archwright.spec.model_spec import ModelSpec


def share_texts(model: Decoder, group: dist.ProcessGroup) -> None:
    """Make a model read the chunks of sequences of `stretch_of`."""

    def whole(local: Tensor | None) -> Tensor | None:
        if local is None:
            return None
        return in_order(gathered(local.long(), local.ndim - 1, group), local.ndim - 1, group.size())

    def new_context(
        tokens: Tensor,
        position_ids: Tensor | None = None,
        segment_ids: Tensor | None = None,
        padding_mask: Tensor | None = None,
        prefix_lengths: Tensor | None = None,
    ) -> Context:
        layout = token_layout(
            tokens.repeat(1, group.size()),  # only the shape is used: [batch, complete length]
            whole(position_ids),
            whole(segment_ids),
            whole(padding_mask),
            prefix_lengths,
        )
        return _ChunkContext(layout, tokens, group)

    setattr(model, "new_context", new_context)  # noqa: B010


def in_order(x: Tensor, axis: int, size: int) -> Tensor:
    """Return gathered chunks [.., tokens, ..] in the order of the tokens."""
    if len(stretches(x.shape[axis], 0, size)) == 1:
        return x
    halves = x.chunk(2 * size, axis)  # ranks have one from the front, and one from the back
    return torch.cat([*halves[::2], *halves[::-2]], axis)


class _ChunkContext(Context):
    """Context of a chunk of each sequence.

    Args:
        whole: Layout of complete sequences.
        tokens: Token ids of the chunk [batch, length].
    """

    def __init__(self, whole: TokenLayout, tokens: Tensor, group: dist.ProcessGroup) -> None:
        near, *far = stretches(whole.length, group.rank(), group.size())
        self._near, self._far = near, far[0] if far else None
        self._whole, self._group = whole, group
        layout = whole.columns(*near)
        layout = layout.joined(whole.columns(*self._far)) if self._far else layout
        super().__init__(layout, len(tokens), tokens=tokens)

    def all_keys(self, state: Any, *new: Tensor) -> list[Tensor]:
        assert state is None, "context parallelism has no cache"
        every = [exchanged(x, self._group, "all", "own_sum", self._whole.length) for x in new]
        return [in_order(x, 1, self._group.size()) for x in every]

    def _new_mask(self, pattern: MaskPattern, num_heads: int) -> AttentionMask:
        return AttentionMask(pattern, self._whole).of_columns(*self._near, self._far)


def refusals(model: Decoder, context: int) -> Iterator[str]:
    """Yield a line for each choice that prevents context parallelism."""
    spec = model.spec
    if spec.context_length % context:
        yield (
            f"model.context_length: found {spec.context_length}; expected a multiple of scale.context = {context}"
        )
    if type(model) is not Decoder:
        name = "encoder" if spec.generator.is_none else "generator"
        yield f"model.{name}: found one, whose texts processes do not share; expected none, or scale.context = 1"
        return
    choices = [*beside_the_stream(spec)]
    if not spec.sequence_head.is_none:
        choices.append(("model.sequence_head.kind", spec.sequence_head.kind, '"none"'))
    for path, kind, plain in choices:
        yield f'{path}: found "{kind}", which reads rows as a whole; expected {plain}, or scale.context = 1'
    lines = dict[str, None]()
    for path, branch, choice in branch_paths(model):
        if option := branch.along_text:
            value = getattr(choice, option)
            value = f'"{value}"' if isinstance(value, str) else value
            lines[
                f"{path}.{option}: found {value}, by which tokens depend on others otherwise than through keys and "
                "values; expected another, or scale.context = 1"
            ] = None
    yield from lines


def beside_the_stream(spec: ModelSpec) -> Iterator[tuple[str, str, str]]:
    """Yield path, value and alternative of each choice with more than one residual stream."""
    if spec.is_reversible:
        yield "model.residual.kind", spec.residual.kind, "another"
