"""Learned vectors that are prepended to each sequence."""

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from archwright.parts.context import Context
from archwright.parts.linear import Embedding
from archwright.parts.token_layout import TokenLayout, document_starts, rows_at


class GlobalTokens(Embedding):
    """[w_1 ... w_g; x]: g learned vectors before the tokens of each sequence or packed document.

    Shapes: w [g, dim]; x [batch, length, dim]; the result [batch, length + g documents, dim]. Rows with
    fewer documents have padding at the end. Indices and positions start with 0 at the first global token, and with g at
    the first token of the sequence.

    Phang et al., 2022, Pegasus-X, section 3.1.
    """

    def before(
        self, x: Float[Tensor, "batch length dim"], context: Context
    ) -> tuple[Float[Tensor, "batch longer dim"], Context, Int[Tensor, "batch length"]]:
        """Return the extended input, its context, and the columns of the original tokens."""
        number, at = len(self.weight), context.layout
        weight = self.weight.to(x.dtype)
        if at.segment_ids is None:
            longer = torch.cat((weight.expand(len(x), -1, -1), x), 1)
            columns = torch.arange(number, number + at.length, device=x.device)
            return longer, context.placed(_shifted(at, number)), columns.expand(len(x), -1)
        columns, source, layout = _interleaved(at, number)
        assert layout.index is not None
        # The zero row at the end is the source of all columns without a token.
        moved = rows_at(F.pad(x, (0, 0, 0, 1)), source)
        vectors = F.embedding(layout.index.clamp(max=number - 1), weight)
        is_global = (source == at.length) & (layout.index < number)
        longer = torch.where(is_global[..., None], vectors, moved)
        return longer, context.placed(layout), columns


def _shifted(at: TokenLayout, number: int) -> TokenLayout:
    """Return the layout after prepending `number` tokens to rows without documents."""

    def moved(index: Tensor | None) -> Tensor | None:
        if index is None:
            return None
        first = torch.arange(number, device=at.device).expand(len(index), -1)
        return torch.cat((first, index + number), 1)

    real, index = at.padding_mask, moved(at.index)
    return TokenLayout(
        number + at.length,
        at.device,
        position_ids=index if at.position_ids is at.index else moved(at.position_ids),
        index=index,
        padding_mask=None if real is None else F.pad(real, (number, 0), value=True),
        prefix=None if at.prefix is None else at.prefix + number,
    )


def _interleaved(at: TokenLayout, number: int) -> tuple[Tensor, Tensor, TokenLayout]:
    """Return columns [batch, length] of tokens, token of each column [batch, longer], and layout."""
    assert at.segment_ids is not None
    assert at.index is not None
    batch, length = at.segment_ids.shape
    starts = document_starts(at.segment_ids)
    documents = starts.cumsum(-1)
    tokens = torch.arange(length, device=at.device)
    columns = tokens + documents * number
    longest = length + number * int(documents.max())
    # Columns before the first token of a document, [batch, length, number]. Other tokens use `longest`, cut off below.
    before = columns[..., None] - torch.arange(number, 0, -1, device=at.device)
    before = before.masked_fill(~starts[..., None], longest)
    before = before.flatten(1)  # [batch, length * number]
    places = torch.arange(number, device=at.device).repeat(batch, length)

    def merged(of_tokens: Tensor, of_globals: Tensor, padding: int) -> Tensor:
        """Return one value per column, [batch, longest]."""
        values = of_tokens.new_full((batch, longest + 1), padding)
        values.scatter_(1, before, of_globals.to(values.dtype))
        return values.scatter_(1, columns, of_tokens)[:, :-1]

    # [batch, length * number]
    ids = at.segment_ids[..., None].expand(-1, -1, number).flatten(1)
    real = torch.ones_like(columns) if at.padding_mask is None else at.padding_mask.long()
    index = merged(at.index + number, places, number)
    has_positions = at.position_ids is not at.index
    positions = at.position_ids_or_range().expand(batch, -1) + number
    layout = TokenLayout(
        longest,
        at.device,
        position_ids=merged(positions, places, number) if has_positions else index,
        index=index,
        segment_ids=merged(at.segment_ids, ids, int(at.segment_ids.max()) + 1),
        padding_mask=merged(real, torch.ones_like(places), 0).bool(),
        prefix=None if at.prefix is None else at.prefix + number,
    )
    source = merged(tokens.expand(batch, -1), torch.full_like(places, length), length)
    return columns, source, layout
