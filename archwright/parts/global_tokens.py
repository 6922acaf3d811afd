"""Learned vectors before each text, which go through the layers with it."""

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from archwright.parts.context import Context
from archwright.parts.linear import Embedding
from archwright.parts.token_layout import TokenLayout, document_starts, rows_at


class GlobalTokens(Embedding):
    """[w_1 ... w_g; x]: g learned vectors, then the tokens of a text; in a packed row, before each document.

    Shapes: w [g, dim]; x [batch, length, dim]; the result [batch, length + g documents, dim], with padding behind rows
    of fewer documents than others have. A text begins with its global tokens: places and positions of its own tokens
    are counted on from there.

    Phang et al., 2022, Pegasus-X, section 3.1.
    """

    def before(
        self, x: Float[Tensor, "batch length dim"], context: Context
    ) -> tuple[Float[Tensor, "batch longer dim"], Context, Int[Tensor, "batch length"]]:
        """Return the tokens with those before them, their context, and the columns where those of the text stand."""
        number, at = len(self.weight), context.layout
        weight = self.weight.to(x.dtype)
        if at.segment_ids is None:
            longer = torch.cat((weight.expand(len(x), -1, -1), x), 1)
            columns = torch.arange(number, number + at.length, device=x.device)
            return longer, context.placed(_behind(at, number)), columns.expand(len(x), -1)
        columns, source, layout = _between(at, number)
        assert layout.index is not None
        # A row of zeros behind the others, for what is no token of a text.
        moved = rows_at(F.pad(x, (0, 0, 0, 1)), source)
        vectors = F.embedding(layout.index.clamp(max=number - 1), weight)
        is_global = (source == at.length) & (layout.index < number)
        longer = torch.where(is_global[..., None], vectors, moved)
        return longer, context.placed(layout), columns


def _behind(at: TokenLayout, number: int) -> TokenLayout:
    """Return where the tokens of rows of one text each stand, with so many before them."""

    def moved(given: Tensor | None) -> Tensor | None:
        if given is None:
            return None
        first = torch.arange(number, device=at.device).expand(len(given), -1)
        return torch.cat((first, given + number), 1)

    real, index = at.padding_mask, moved(at.index)
    return TokenLayout(
        number + at.length,
        at.device,
        position_ids=index if at.position_ids is at.index else moved(at.position_ids),
        index=index,
        padding_mask=None if real is None else F.pad(real, (number, 0), value=True),
        prefix=None if at.prefix is None else at.prefix + number,
    )


def _between(at: TokenLayout, number: int) -> tuple[Tensor, Tensor, TokenLayout]:
    """Return columns [batch, length] of tokens, token of each column [batch, longer], and layout."""
    assert at.segment_ids is not None
    assert at.index is not None
    batch, length = at.segment_ids.shape
    starts = document_starts(at.segment_ids)
    documents = starts.cumsum(-1)
    own = torch.arange(length, device=at.device)
    columns = own + documents * number
    longest = length + number * int(documents.max())
    # The columns before the first token of a document; of other tokens, one that is cut off: [batch, length, number].
    before = columns[..., None] - torch.arange(number, 0, -1, device=at.device)
    before = before.masked_fill(~starts[..., None], longest)
    before = before.flatten(1)  # [batch, length * number]
    places = torch.arange(number, device=at.device).repeat(batch, length)

    def laid(of_tokens: Tensor, of_others: Tensor, rest: int) -> Tensor:
        """Return numbers of all columns."""
        found = of_tokens.new_full((batch, longest + 1), rest)
        found.scatter_(1, before, of_others.to(found.dtype))
        return found.scatter_(1, columns, of_tokens)[:, :-1]

    # [batch, length * number]
    ids = at.segment_ids[..., None].expand(-1, -1, number).flatten(1)
    real = torch.ones_like(columns) if at.padding_mask is None else at.padding_mask.long()
    index = laid(at.index + number, places, number)
    given = at.position_ids is not at.index
    positions = at.position_ids_or_range().expand(batch, -1) + number
    layout = TokenLayout(
        longest,
        at.device,
        position_ids=laid(positions, places, number) if given else index,
        index=index,
        segment_ids=laid(at.segment_ids, ids, int(at.segment_ids.max()) + 1),
        padding_mask=laid(real, torch.ones_like(places), 0).bool(),
        prefix=None if at.prefix is None else at.prefix + number,
    )
    source = laid(own.expand(batch, -1), torch.full_like(places, length), length)
    return columns, source, layout
