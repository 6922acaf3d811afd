"""Attention by locality-sensitive hashing: of all keys, those whose vectors point where the query's does."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from archwright.parts.context import Context
from archwright.parts.linear import Linear, project, set_blocks
from archwright.parts.masks import AttentionMask
from archwright.parts.mixers.base import Mixer
from archwright.parts.mixers.scales import SCORE_SCALES
from archwright.parts.norms import upcast, without_autocast
from archwright.parts.sharing import LayerInfo
from archwright.parts.token_layout import TokenLayout
from archwright.spec import attention as spec
from archwright.spec.errors import UserError

EPS = 1e-6
"""Of the norm of keys."""
SELF, HIDDEN = -1e5, -1e9
"""Scores of a token with itself, which counts only where nothing else is seen, and of what is not seen."""
NOTHING = -1
"""Index of a place in a chunk where no token stands."""


class LSHAttention(Mixer):
    """out(concat_h(sum_r w_r softmax(scale q_h k_h^T) v_h)) over the keys in the chunks that round r of hashing puts
    beside the query, with k = q / rms(q) and w_r = softmax over r of log sum exp(scores): each round weighs as much
    as its denominator.

    A vector x falls into bucket argmax([x R, -x R]) with a random R. Tokens are sorted by document, bucket and place,
    and every document is cut into chunks of its own, so that it has the logits that it has alone. Before the first
    chunk of a round stands the last of the round before, and before the first round the last one.

    Texts are read as a whole: there is no cache. Shapes: x and the result [batch, length, dim]; q and v [batch,
    heads, length, head_dim], scores [batch, heads, chunks, chunk, chunks seen * chunk].

    Kitaev et al., 2020, section 2; Andoni et al., 2015 (the hash).

    Args:
        spec: sizes that it leaves open follow from `dim`.
        layer: where it stands.

    Raises:
        UserError: a number of buckets that is left open, which follows from the length of the model's texts.
    """

    generates_indefinitely = False

    def __init__(self, spec: spec.LSHAttention, dim: int, layer: LayerInfo | None = None) -> None:
        super().__init__()
        if spec.num_buckets == "auto":
            raise UserError(
                'attention.num_buckets: found "auto", which follows from context_length; give a number, or take the '
                "layer of a resolved spec: spec.resolved()"
            )
        layer, sizes = layer or LayerInfo(), spec.heads(dim)
        self.spec = spec.model_copy(update=sizes)
        self.num_heads, self.head_dim = sizes["num_heads"], sizes["head_dim"]
        factors = spec.num_buckets if isinstance(spec.num_buckets, tuple) else (spec.num_buckets,)
        self.factors = factors
        self.pattern = layer.pattern(spec.mask, self.num_heads)
        self.scale: float = SCORE_SCALES.make(spec.scale, self.head_dim, layer.number)
        width = self.num_heads * self.head_dim
        self.query_key = Linear(dim, width, deepnorm=False)
        self.value = Linear(dim, width)
        self.out = Linear(width, dim, is_residual_output=True)
        set_blocks(self.num_heads, self.query_key, self.value, self.out)
        self._rotations: Tensor | None = None

    @property
    def inputs(self) -> list[Linear]:
        return [self.query_key, self.value]

    def forward(
        self,
        x: Float[Tensor, "batch length dim"],
        context: Context | None = None,
        state: None = None,
        projected: Sequence[Tensor] | None = None,
    ) -> Float[Tensor, "batch length dim"]:
        """Return what the heads make of x; alone, without a context, each row is a text that begins at position 0."""
        if context is None:
            context = Context.alone(x)
        if projected is None:
            projected = project(x, self.inputs)
        # [batch, heads, length, head_dim]
        q, v = (p.unflatten(-1, (self.num_heads, self.head_dim)).transpose(1, 2) for p in projected)
        chunks = self._chunks(context)
        order = chunks.order(self._buckets(q, context) if chunks.are_sorted else None)
        mixed = attend_in_chunks(
            q,
            v,
            chunks,
            order,
            context.mask(self.pattern, self.num_heads),
            scale=self.scale,
            dropout=self.spec.dropout if self.training else 0.0,
        )
        # [batch, length, heads * head_dim]
        out: Tensor = self.out(mixed.transpose(1, 2).flatten(-2))
        return out

    def _buckets(self, q: Tensor, context: Context) -> Int[Tensor, "batch heads rounds length"]:
        """Return the bucket of each token in each round."""
        # A pass that computes layers again must find the buckets that it had: rounding moves tokens between them.
        found = context.kept(self, lambda: self._hashed(q.detach()).to(self._narrow))
        return found.long()

    @property
    def _narrow(self) -> torch.dtype:
        """The narrowest type that holds the number of a bucket."""
        number = math.prod(self.factors)
        return next(
            t for t in (torch.uint8, torch.int16, torch.int32) if number <= torch.iinfo(t).max
        )

    def _hashed(self, q: Tensor) -> Int[Tensor, "batch heads rounds length"]:
        with without_autocast(q.device.type):
            q = upcast(q)
            rotations = self.rotations(q)
            # [batch, heads, rounds, length, directions]
            turned = (q[:, :, None] @ rotations).split([n // 2 for n in self.factors], -1)
        bucket, below = torch.zeros_like(turned[0][..., 0], dtype=torch.long), 1
        for number, part in zip(self.factors, turned, strict=True):
            bucket = bucket + below * torch.cat((part, -part), -1).argmax(-1)
            below *= number
        return bucket

    def rotations(self, like: Tensor) -> Float[Tensor, "heads rounds head_dim directions"]:
        """Return what vectors are hashed by, drawn from the seed alone."""
        if self._rotations is None:
            dice = torch.Generator().manual_seed(self.spec.hash_seed)
            shape = (self.num_heads, self.head_dim, self.spec.num_hashes, sum(self.factors) // 2)
            drawn = torch.randn(shape, generator=dice, device="cpu")
            # [heads, rounds, head_dim, directions]
            self._rotations = drawn.transpose(1, 2).contiguous()
        if self._rotations.device != like.device or self._rotations.dtype != like.dtype:
            return self._rotations.to(like)
        return self._rotations

    def _chunks(self, context: Context) -> "Chunks":
        """Return the chunks of this pass, computed once for all layers with the same mask and sizes."""
        mask, spec = context.mask(self.pattern, self.num_heads), self.spec
        sizes = (spec.chunk_size, spec.num_hashes, spec.chunks_before, spec.chunks_after)
        buckets = math.prod(self.factors)
        name = f"chunks of {sizes} for {buckets} buckets"
        return mask.once(name, lambda mask: chunks_of(mask.layout, *sizes, buckets))

    def prepare(self, context: Context) -> None:
        self._chunks(context)

    def extra_repr(self) -> str:
        return f"{self.num_heads} heads of {self.head_dim}, {self.spec.num_hashes} hashes"


@dataclass(frozen=True)
class Chunks:
    """Where sorted tokens stand in chunks: each document of a row has its own, one after another, the last of them
    not always full. Padding is the last document of its row. Where all rows are alike, there is 1."""

    size: int
    """Places of a chunk."""
    num_chunks: int
    """Chunks of a round, of the row with most."""
    num_rounds: int
    num_buckets: int
    are_sorted: bool
    """Whether some document has several chunks, so that it matters which token stands where."""
    index: Int[Tensor, "rows length"]
    """The index of each token in its document."""
    document: Int[Tensor, "rows length"]
    """The number of each token's document in its row."""
    places: Int[Tensor, "rows length"]
    """Where the tokens of a round stand once they are sorted, counted in places of all chunks."""
    beside: Int[Tensor, "rows all_chunks seen"]
    """The chunks that each chunk sees, among those of all rounds."""

    def order(
        self, buckets: Int[Tensor, "batch heads rounds length"] | None
    ) -> Int[Tensor, "rows heads rounds length"]:
        """Return the columns of a round's tokens, sorted by document, bucket and column."""
        key = self.document[:, None, None]  # [rows, 1, 1, length]
        if buckets is not None:
            key = key * self.num_buckets + buckets
        return key.argsort(dim=-1, stable=True)


def chunks_of(
    layout: TokenLayout, size: int, rounds: int, before: int, after: int, num_buckets: int
) -> Chunks:
    """Return the chunks of texts that stand as `layout` says."""
    length, device = layout.length, layout.device
    index, document, counts = _documents(layout)
    plain = layout.index is None
    longest = length if plain else int(counts.max())
    are_sorted = longest > size
    if not are_sorted:  # one chunk holds all that is seen, in whatever order
        size, rounds, before, after = longest, 1, 0, 0
    chunks = -(-counts // size)  # [rows, documents]
    behind = chunks.cumsum(-1)
    total = -(-length // size) if plain else int(behind[:, -1].max())
    sort = document.sort(dim=-1).values
    places = torch.arange(length, device=device) - (counts.cumsum(-1) - counts).gather(-1, sort)
    places = places + (behind - chunks).gather(-1, sort) * size
    # Of each chunk, the document, its number of chunks and the first of them; one that holds nothing is alone.
    at = torch.arange(total, device=device).expand(len(counts), -1).contiguous()  # [rows, chunks]
    owner = (at[..., None] >= behind[:, None]).sum(-1)  # [rows, chunks]
    held = owner < counts.shape[1]
    owner = owner.clamp(max=counts.shape[1] - 1)
    number = torch.where(held, chunks.gather(-1, owner), 1)[:, None, :, None]
    first = torch.where(held, (behind - chunks).gather(-1, owner), at)[:, None, :, None]
    round_of = torch.arange(rounds, device=device)[:, None, None]
    steps = torch.arange(-before, after + 1, device=device)
    # [rows, rounds, chunks, seen]
    place = round_of * number + at[:, None, :, None] - first + steps
    place = place % (rounds * number)
    beside = place // number * total + first + place % number
    return Chunks(
        size,
        total,
        rounds,
        num_buckets,
        are_sorted,
        index,
        document,
        places,
        beside.flatten(1, 2),  # [rows, rounds * chunks, seen]
    )


def _documents(layout: TokenLayout) -> tuple[Tensor, Tensor, Tensor]:
    """Return index and document of tokens [rows, length], and tokens of documents [rows, documents]."""
    index = layout.index_or_range()
    if layout.index is None:
        counts = torch.full((1, 1), layout.length, device=layout.device)
        return index, torch.zeros_like(index), counts
    real = layout.padding_mask
    real = torch.ones_like(index, dtype=torch.bool) if real is None else real
    document = ((index == 0) & real).cumsum(-1) - 1
    number = int(document.max()) + 1
    document = torch.where(real, document, number)
    counts = index.new_zeros(len(index), number + 1)
    return index, document, counts.scatter_add(-1, document, torch.ones_like(document))


def attend_in_chunks(
    q: Float[Tensor, "batch heads length head_dim"],
    v: Float[Tensor, "batch heads length head_dim"],
    chunks: Chunks,
    order: Int[Tensor, "#batch #heads rounds length"],
    mask: AttentionMask,
    *,
    scale: float,
    dropout: float = 0.0,
) -> Float[Tensor, "batch heads length head_dim"]:
    """Return what tokens take from those beside them, with tokens in a given order.

    Args:
        order: the columns of each round's tokens, one document after another.
    """
    batch, heads, length, _ = q.shape
    rounds, size = chunks.num_rounds, chunks.size
    total = chunks.num_chunks * size
    order = order.expand(batch, heads, rounds, length)
    places = chunks.places[:, None, None].expand_as(order)
    empty = order.new_full((batch, heads, rounds, total), length)
    # The column in each place, [batch, heads, rounds * chunks * size]; `length` where no token stands.
    at = empty.scatter(-1, places, order).flatten(2)
    nothing = chunks.index.new_full((len(chunks.index), 1), NOTHING)
    index = torch.cat((chunks.index, nothing), -1).expand(batch, -1)[:, None].expand(-1, heads, -1)
    index = index.gather(-1, at).unflatten(-1, (-1, size))  # [batch, heads, all chunks, size]

    # [batch, heads, all chunks, size, head_dim]
    sorted_q, sorted_v = (
        _rows(F.pad(x, (0, 0, 0, 1)), at).unflatten(2, (-1, size)) for x in (q, v)
    )
    k, seen_v = (_beside(x, chunks.beside) for x in (_normed(sorted_q), sorted_v))
    # [batch, heads, all chunks, size, seen * size]
    scores = sorted_q @ k.mT
    scores = upcast(scores) * scale
    here, there = index[..., None], _beside(index[..., None], chunks.beside).mT
    row = torch.arange(batch, device=q.device).view(-1, 1, 1, 1, 1)  # [batch, 1, 1, 1, 1]
    head = torch.arange(heads, device=q.device).view(-1, 1, 1, 1)  # [heads, 1, 1, 1]
    visible = mask.shows(row, head, here, there) & (there != NOTHING)
    scores = scores.masked_fill(~visible, HIDDEN).masked_fill(here == there, SELF)
    denominators = scores.logsumexp(-1, keepdim=True)
    weights = F.dropout((scores - denominators).exp(), dropout, dropout > 0)
    # [batch, heads, all places, head_dim]
    mixed = (weights.to(seen_v.dtype) @ seen_v).flatten(2, 3)

    back = torch.empty_like(order).scatter(-1, order, places)
    back = back + torch.arange(rounds, device=q.device)[:, None] * total
    back = back.flatten(2)  # [batch, heads, rounds * length]
    # [batch, heads, rounds, length, head_dim]
    mixed = _rows(mixed, back).unflatten(2, (rounds, length))
    if rounds == 1:
        alone: Tensor = mixed.squeeze(2)  # [batch, heads, length, head_dim]
        return alone
    # [batch, heads, rounds, length]
    found = denominators.flatten(2).gather(-1, back).unflatten(2, (rounds, length))
    # As it is published: of a token that sees itself alone, float32 holds log 2 beside SELF to 0.004.
    shares = (found - found.logsumexp(2, keepdim=True)).exp()
    out: Tensor = (mixed * shares[..., None].to(mixed.dtype)).sum(
        2
    )  # [batch, heads, length, head_dim]
    return out


def _normed(x: Tensor) -> Tensor:
    """Return x / rms(x) over the last axis, which is computed in float32 or wider."""
    wide = upcast(x)
    return (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + EPS)).to(x.dtype)


def _rows(x: Tensor, at: Tensor) -> Tensor:
    """Return the vectors of x [batch, heads, n, width] at `at` [batch, heads, m]: [batch, heads, m, width]."""
    first = torch.arange(x.shape[0] * x.shape[1], device=x.device) * x.shape[2]
    where = at + first.view(*x.shape[:2], 1)  # [batch, heads, m]
    # From one table [batch * heads * n, width], whose gradient is then summed row by row.
    return F.embedding(where, x.flatten(0, 2))


def _beside(x: Tensor, beside: Tensor) -> Tensor:
    """Return for each chunk of x [batch, heads, chunks, size, width] all that it sees: [batch, heads, chunks, seen *
    size, width]."""
    batch, heads, number, _, width = x.shape
    if beside.shape[-1] == 1 and number == 1:
        return x
    at = beside.flatten(1)[:, None].expand(batch, heads, -1)  # [batch, heads, chunks * seen]
    seen = _rows(x.flatten(3), at)  # [batch, heads, chunks * seen, size * width]
    # [batch, heads, chunks, seen * size, width]
    return seen.view(batch, heads, number, -1, width)
