"""Context parallel: the tokens of each row shared by processes, from outside; attention alone sees those of others.

Each process has a chunk of the sequence, of every row. Attention asks the context of its pass for the keys and values
of all tokens, which are all-gathered, and for a mask, which is that of its queries among these keys. The gradients of
keys and values are reduce-scattered: added up over processes, of which each takes those of its own tokens. Positions
and documents are those of whole rows, of which a process knows its chunk and the others' where these are not plain.

Parameters have a part of their gradient in each process, which sees as many tokens; FSDP2 adds these up, as it does
with rows.
"""

from collections.abc import Iterator
from typing import Any

import torch.distributed as dist
from torch import Tensor

from archwright.model.model import Decoder
from archwright.parts.context import Context
from archwright.parts.masks import AttentionMask, MaskPattern
from archwright.parts.token_layout import TokenLayout, token_layout
from archwright.scale.exchange import exchanged, gathered
from archwright.spec.model_spec import ModelSpec


def share_texts(model: Decoder, group: dist.ProcessGroup) -> None:
    """Let passes of a model be over chunks of sequences of which the other processes of a group have the rest.

    Args:
        model: its passes are given the chunk of this process, and have a context that knows whole rows.
        group: in the order of their chunks, which are equally long.
    """

    def whole(own: Tensor | None) -> Tensor | None:
        # What is not given is given in no process.
        return None if own is None else gathered(own.long(), own.ndim - 1, group)

    def new_context(
        tokens: Tensor,
        position_ids: Tensor | None = None,
        segment_ids: Tensor | None = None,
        padding_mask: Tensor | None = None,
        prefix_lengths: Tensor | None = None,
    ) -> Context:
        layout = token_layout(
            tokens.repeat(1, group.size()),  # which has the shape of whole rows
            whole(position_ids),
            whole(segment_ids),
            whole(padding_mask),
            prefix_lengths,
        )
        return _SharedStretch(layout, tokens, group)

    setattr(model, "new_context", new_context)  # noqa: B010


class _SharedStretch(Context):
    """The context of the chunk of sequences that this process of a group has.

    Args:
        whole: where the tokens of whole rows stand.
        tokens: ids of those of the chunk, [batch, length].
    """

    def __init__(self, whole: TokenLayout, tokens: Tensor, group: dist.ProcessGroup) -> None:
        start = group.rank() * tokens.shape[1]
        self._columns = (start, start + tokens.shape[1])
        self._whole, self._group = whole, group
        super().__init__(whole.columns(*self._columns), len(tokens), tokens=tokens)

    def all_keys(self, state: Any, *new: Tensor) -> list[Tensor]:
        assert state is None, "processes that share texts keep nothing of them"
        return [exchanged(x, self._group, "all", "own_sum", self._whole.length) for x in new]

    def _new_mask(self, pattern: MaskPattern, num_heads: int) -> AttentionMask:
        return AttentionMask(pattern, self._whole).of_columns(*self._columns)


def refusals(model: Decoder, context: int) -> Iterator[str]:
    """Yield a line for each choice of a model by which tokens depend on others in a way that processes do not share."""
    spec, lines = model.spec, dict[str, None]()
    if spec.context_length % context:
        yield (
            f"model.context_length: found {spec.context_length}; expected a multiple of scale.context = {context}"
        )
    if type(model) is not Decoder:
        name = "encoder" if spec.generator.is_none else "generator"
        yield f"model.{name}: found one, whose texts processes do not share; expected none, or scale.context = 1"
        return
    for path, found, none in _of_whole_rows(spec):
        yield f"{path}: found {found}, which reads rows as a whole; expected {none}, or scale.context = 1"
    for kind, layer in zip(spec.layers.names(spec.num_layers), model.stack, strict=True):
        path = "model" if kind == "default" else f"model.layer_kinds.{kind}"
        for name in layer.branches:
            if option := layer.branch(name).along_text:
                choice = spec.layers_by_kind[kind].branches[name]
                lines[_of_branch(f"{path}.{name}.{option}", getattr(choice, option))] = None
    yield from lines


def _of_branch(path: str, value: object) -> str:
    found = f'"{value}"' if isinstance(value, str) else value
    return (
        f"{path}: found {found}, by which tokens depend on others otherwise than through keys and values; "
        "expected another, or scale.context = 1"
    )


def beside_the_stream(spec: ModelSpec) -> Iterator[tuple[str, object, str]]:
    """Yield what of a model hands on more than one stream: path, value, and what does not."""
    if spec.is_reversible:
        yield "model.residual.kind", f'"{spec.residual.kind}"', "another"


def _of_whole_rows(spec: ModelSpec) -> Iterator[tuple[str, object, str]]:
    """Yield what of a model stands around layers and looks at rows as a whole: path, value, and what does not."""
    yield from beside_the_stream(spec)
    if not spec.sequence_head.is_none:
        yield "model.sequence_head.kind", f'"{spec.sequence_head.kind}"', '"none"'
