"""Attention by locality-sensitive hashing, between tokens with similar vectors."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from archwright.classic.spec import lsh as spec
from archwright.parts.context import Context
from archwright.parts.linear import Linear, project, set_blocks
from archwright.parts.masks import AttentionMask
from archwright.parts.mixers.base import Mixer
from archwright.parts.mixers.scales import SCORE_SCALES
from archwright.parts.norms import upcast, without_autocast
from archwright.parts.sharing import LayerInfo
from archwright.parts.token_layout import TokenLayout
from archwright.spec.errors import UserError

EPS = 1e-6
"""Epsilon in the norm of keys."""
SELF, HIDDEN = -1e5, -1e9
"""Scores of a token with itself (used only if it sees no other token) and of hidden pairs."""
NOTHING = -1
"""Index of an empty slot of a chunk."""


class LSHAttention(Mixer):
    """out(concat_h(sum_r w_r softmax(scale q_h k_h^T) v_h)), with k = q / rms(q), over hash rounds r.

    In round r, a query sees the keys of its chunk and of neighbouring chunks. The weight w_r is the softmax over rounds
    of log sum exp(scores). The bucket of a vector x is argmax([x R, -x R]) with a random R. Tokens are sorted by
    document, bucket and position. Each document has separate chunks, so packing does not change its logits. The last
    chunk of a round precedes the first chunk of the next round, cyclically.

    There is no cache: texts are complete. Shapes: x and the result [batch, length, dim]; q and v [batch,
    heads, length, head_dim], scores [batch, heads, chunks, chunk, chunks seen * chunk].

    Kitaev et al., 2020, section 2; Andoni et al., 2015 (the hash).

    Args:
        spec: open sizes follow from `dim`.
        layer: place in the model.

    Raises:
        UserError: `num_buckets` is "auto", which depends on the model's context length.
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
        """Return the mixer's output; without a context, each sequence is a text from position 0."""
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
        # Recomputed layers reuse the buckets, because rounding errors could change them.
        buckets = context.kept(self, lambda: self._hashed(q.detach()).to(self._narrow))
        return buckets.long()

    @property
    def _narrow(self) -> torch.dtype:
        """Narrowest dtype for bucket numbers."""
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
        # A number with mixed radices: one digit per factor.
        bucket, below = torch.zeros_like(turned[0][..., 0], dtype=torch.long), 1
        for number, part in zip(self.factors, turned, strict=True):
            bucket = bucket + below * torch.cat((part, -part), -1).argmax(-1)
            below *= number
        return bucket

    def rotations(self, like: Tensor) -> Float[Tensor, "heads rounds head_dim directions"]:
        """Return the random directions R, drawn from `hash_seed`."""
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
        """Return the chunks of this pass, shared by layers with the same mask and sizes."""
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
    """Slots of sorted tokens in chunks, separate for each document of a sequence; padding is its last document.

    The last chunk of a document may be partly empty. There is 1 row if all sequences have the same chunks.
    """

    size: int
    """Slots per chunk."""
    num_chunks: int
    """Chunks per round, in the sequence with most chunks."""
    num_rounds: int
    num_buckets: int
    are_sorted: bool
    """True if a document has several chunks, so that the order of its tokens matters."""
    index: Int[Tensor, "rows length"]
    """Index of each token in its document."""
    document: Int[Tensor, "rows length"]
    """Number of each token's document in its sequence."""
    places: Int[Tensor, "rows length"]
    """Slot of each sorted token of a round, counted over all chunks."""
    beside: Int[Tensor, "rows all_chunks seen"]
    """Chunks visible to each chunk, numbered over all rounds."""

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
    """Return the chunks of the texts in a layout."""
    length, device = layout.length, layout.device
    index, document, counts = _documents(layout)
    plain = layout.index is None
    longest = length if plain else int(counts.max())
    are_sorted = longest > size
    if not are_sorted:  # one chunk per document, in any order
        size, rounds, before, after = longest, 1, 0, 0
    chunks = -(-counts // size)  # [rows, documents]
    # Number of the chunk after each document.
    behind = chunks.cumsum(-1)
    total = -(-length // size) if plain else int(behind[:, -1].max())
    sort = document.sort(dim=-1).values
    # Rank of each sorted token in its document, plus the first slot of the document.
    places = torch.arange(length, device=device) - (counts.cumsum(-1) - counts).gather(-1, sort)
    places = places + (behind - chunks).gather(-1, sort) * size
    # Document of each chunk, its number of chunks and its first chunk; an empty chunk is one document.
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
    # Cyclic over the chunks of all rounds of one document.
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
    """Return index and document of tokens [rows, length], and lengths of documents [rows, documents]."""
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
    """Attend to the visible chunks in each round, and average rounds by their denominators.

    Args:
        order: columns of the tokens in each round, sorted by document.
    """
    batch, heads, length, _ = q.shape
    rounds, size = chunks.num_rounds, chunks.size
    total = chunks.num_chunks * size
    order = order.expand(batch, heads, rounds, length)
    places = chunks.places[:, None, None].expand_as(order)
    empty = order.new_full((batch, heads, rounds, total), length)
    # Column in each slot, or `length` if it is empty: [batch, heads, rounds * chunks * size]
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
    query = at.clamp(max=length - 1).unflatten(-1, (-1, size))[..., None]
    visible = mask.shows(row, head, query, here, there) & (there != NOTHING)
    scores = scores.masked_fill(~visible, HIDDEN).masked_fill(here == there, SELF)
    denominators = scores.logsumexp(-1, keepdim=True)
    weights = F.dropout((scores - denominators).exp(), dropout, dropout > 0)
    # [batch, heads, all places, head_dim]
    mixed = (weights.to(seen_v.dtype) @ seen_v).flatten(2, 3)

    # Slot of each column, the inverse of the sort, counted over all rounds.
    back = torch.empty_like(order).scatter(-1, order, places)
    back = back + torch.arange(rounds, device=q.device)[:, None] * total
    back = back.flatten(2)  # [batch, heads, rounds * length]
    # [batch, heads, rounds, length, head_dim]
    mixed = _rows(mixed, back).unflatten(2, (rounds, length))
    if rounds == 1:
        only: Tensor = mixed.squeeze(2)  # [batch, heads, length, head_dim]
        return only
    # log Z of each round: [batch, heads, rounds, length]
    log_z = denominators.flatten(2).gather(-1, back).unflatten(2, (rounds, length))
    # As published: for a token that sees only itself, float32 resolves log 2 next to SELF to 0.004.
    shares = (log_z - log_z.logsumexp(2, keepdim=True)).exp()
    # [batch, heads, length, head_dim]
    out: Tensor = (mixed * shares[..., None].to(mixed.dtype)).sum(2)
    return out


def _normed(x: Tensor) -> Tensor:
    """Return x / rms(x) over the last axis, computed in float32 or wider."""
    wide = upcast(x)
    return (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + EPS)).to(x.dtype)


def _rows(x: Tensor, at: Tensor) -> Tensor:
    """Gather vectors of x [batch, heads, n, width] at `at` [batch, heads, m]: [batch, heads, m, width]."""
    first = torch.arange(x.shape[0] * x.shape[1], device=x.device) * x.shape[2]
    index = at + first.view(*x.shape[:2], 1)  # [batch, heads, m]
    # One table [batch * heads * n, width]: the gradient of an embedding is a sum per row.
    return F.embedding(index, x.flatten(0, 2))


def _beside(x: Tensor, beside: Tensor) -> Tensor:
    """Gather visible chunks of x [batch, heads, chunks, size, width]: [batch, heads, chunks, seen * size, width]."""
    batch, heads, number, _, width = x.shape
    if beside.shape[-1] == 1 and number == 1:
        return x
    at = beside.flatten(1)[:, None].expand(batch, heads, -1)  # [batch, heads, chunks * seen]
    seen = _rows(x.flatten(3), at)  # [batch, heads, chunks * seen, size * width]
    # [batch, heads, chunks, seen * size, width]
    return seen.view(batch, heads, number, -1, width)
