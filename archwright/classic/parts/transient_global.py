"""LongT5's transient-global attention: a local mask, and sums of all blocks of the text."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from archwright.classic.parts.equal_heads import EqualHeads
from archwright.classic.spec import transient_global as spec
from archwright.parts.context import Context
from archwright.parts.kernels.scores import Bias, RepeatedKeys
from archwright.parts.linear import Linear, project, set_blocks, to_autocast_dtype
from archwright.parts.masks import WHOLE, AttentionMask, Ranges, united
from archwright.parts.norms import NORMS, upcast
from archwright.parts.positions import POSITIONS
from archwright.parts.sharing import LayerInfo, Shared
from archwright.parts.states import KVCache
from archwright.parts.token_layout import TokenLayout


class TransientGlobalAttention(EqualHeads[spec.TransientGlobalAttention]):
    """out(concat_h(softmax(scale q_h [k_h; s_h]^T) [v_h; u_h])), with s = key(g) and u = value(g) of sums g.

    g_i = norm(x_ib + ... + x_(ib + b - 1)) is the sum of a block of b tokens. All tokens of a text see its sums and the
    keys that the mask shows. Remaining tokens belong to the last complete block; a text shorter than a block has no
    sum. Positions on scores have a second table, for distances from the query to a sum in blocks. There is no cache:
    texts are complete. Shapes: x and the result [batch, length, dim]; q, k and v [batch, length, num_heads, head_dim];
    g [batch, sums, dim]; s and u [batch, sums, num_heads, head_dim].

    Guo et al., 2022, LongT5, section 3.1.2; the end of a text as in transformers, modeling_longt5.py.

    Args:
        spec: open sizes follow from `dim`.
        layer: place in the model; without it, the mixer has no positions.
    """

    def __init__(
        self, spec: spec.TransientGlobalAttention, dim: int, layer: LayerInfo | None = None
    ) -> None:
        layer = layer or LayerInfo()
        super().__init__(spec, dim, layer)
        self.dim = dim
        self.query.score_gain = self.scale * self.head_dim**0.5
        self.out = Linear(self.value.d_out, dim, bias=spec.bias.out, is_residual_output=True)
        set_blocks(self.num_heads, self.out)
        self.norm: nn.Module = NORMS.make(spec.norm, dim)
        self.position = self.own_position
        position, of_sums = layer.position, (dim, self.num_heads, self.head_dim)

        def new() -> nn.Module:
            module: nn.Module = POSITIONS.make(position, *of_sums, two_way=True)
            return module

        self.sum_relative: Shared[nn.Module] | None = None
        if position.scores and position.is_shared:
            self.sum_relative = layer.shared("sums", (position, *of_sums), new)
        elif position.scores:
            self.sum_relative = Shared("", new())
        # An unshared table is a submodule of this layer.
        unshared = self.sum_relative is not None and not self.sum_relative.name
        self.sum_position = self.sum_relative.value if unshared and self.sum_relative else None

    @property
    def kept_per_token(self) -> int:
        return 0

    @property
    def generates_indefinitely(self) -> bool:  # type: ignore[override]
        return False

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
        view = self._view(context)
        sums = to_autocast_dtype(self.norm(view.summed(x)))  # [batch, sums, dim]
        q, k, v = projected
        # [k; s] and [v; u]: [batch, sums + length, width]
        k, v = (
            torch.cat((map_(sums).to(p.dtype), p), 1)
            for map_, p in ((self.key, k), (self.value, v))
        )
        # [batch, length or sums + length, heads, head_dim]
        q, k, v = (p.unflatten(-1, (self.num_heads, self.head_dim)) for p in (q, k, v))
        of_tokens: Bias | None = None
        of_sums: Bias | None = None
        if self.relative is not None and self.sum_relative is not None:
            q, of_tokens = self.relative.value(q, view.of_tokens, self.scale)
            of_sums = self.sum_relative.value(q, view.of_sums, self.scale)[1]
        if view.pattern.repeats:
            of_tokens = RepeatedKeys(view.of_tokens.log_times, of_tokens)
        bias = None if of_tokens is None else _Beside(of_sums, of_tokens, view)
        # [batch, length, heads, head_dim]
        mixed = self.kernel.run(q, k, v, view, self.score_mods(bias))
        out: Tensor = self.out(mixed.flatten(-2))  # [batch, length, dim]
        return out

    def _view(self, context: Context) -> "SumsMask":
        """Return the mask with sums, shared by layers with the same mask and block size."""
        mask, size = context.mask(self.pattern, self.num_heads), self.spec.block_size
        return mask.once(f"sums of {size}", lambda mask: sums_mask(mask, size))

    def new_state(self, batch: int) -> KVCache | None:  # type: ignore[override]
        return None

    def prepare(self, context: Context) -> None:
        view = self._view(context)
        self.prepare_mask(view)
        _ = view.of_tokens, view.of_sums

    def extra_repr(self) -> str:
        return f"{self.num_heads} heads of {self.head_dim}, sums of {self.spec.block_size}"


@dataclass(frozen=True, kw_only=True)
class SumsMask(AttentionMask):
    """Mask with sums of blocks, visible to all tokens of their document, as keys before the tokens.

    There is 1 row if all sequences have the same layout.
    """

    num_sums: int
    """Number of sums in the sequence with most sums."""
    sum_of: Int[Tensor, "rows length"]
    """Column of each token's sum; `num_sums` if it has none."""
    block_of: Int[Tensor, "rows length"]
    """Number of each token's sum in its document."""
    number: Int[Tensor, "rows sums"]
    """Number of each sum in its document."""
    document_of: Int[Tensor, "rows length"]
    """Number of each token's document in its sequence, counted from 1; 0: padding."""
    document: Int[Tensor, "rows sums"]
    """Number of each sum's document; -1 for unused columns."""

    def summed(self, x: Float[Tensor, "batch length dim"]) -> Float[Tensor, "batch sums dim"]:
        """Return the sums of blocks of x, computed in float32 or wider."""
        wide = upcast(x)
        index = self.sum_of[..., None].expand_as(wide)  # [batch, length, dim]
        # An extra sum collects tokens without one.
        sums = wide.new_zeros(len(x), self.num_sums + 1, x.shape[-1]).scatter_add(1, index, wide)
        return sums[:, :-1].to(x.dtype)

    @property
    def of_tokens(self) -> AttentionMask:
        """Mask between tokens."""
        return self.once("tokens", lambda mask: AttentionMask(mask.pattern, mask.layout))

    @property
    def of_sums(self) -> AttentionMask:
        """Mask between tokens and sums, with positions counted in blocks."""
        return self.once("sums", lambda _: self._of_sums())

    def _of_sums(self) -> AttentionMask:
        at = replace(self.layout, position_ids=self.block_of)
        sums = TokenLayout(self.num_sums, self.layout.device, position_ids=self.number)
        return AttentionMask(WHOLE, at, sums)

    @property
    def keys_at(self) -> TokenLayout:
        return TokenLayout(self.num_sums + self.layout.length, self.layout.device)

    @property
    def is_plain_causal(self) -> bool:
        return False

    @property
    def num_rows(self) -> int:
        return self.of_tokens.num_rows

    def allows(self, row: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        seen = self.of_tokens.allows(row, head, query, (key - self.num_sums).clamp(min=0))
        if not self.num_sums:
            return seen
        at = row if len(self.document) > 1 else 0
        sums = self.document[at, key.clamp(max=self.num_sums - 1)]
        return torch.where(key < self.num_sums, self.document_of[at, query] == sums, seen)

    def ranges_of_rows(self, first: int, stop: int) -> list[Ranges]:
        number, sums = self.num_sums, [(0, self.num_sums)] * (self.num_sums > 0)
        rows = self.of_tokens.ranges_of_rows(first, stop)
        return [united([*sums, *((a + number, b + number) for a, b in row)]) for row in rows]


def sums_mask(mask: AttentionMask, size: int) -> SumsMask:
    """Return a mask with sums of blocks of `size` tokens before its keys."""
    at, index = mask.layout, mask.layout.index_or_range()
    real = torch.ones_like(index).bool() if at.padding_mask is None else at.padding_mask
    # Complete blocks of each token's text.
    blocks = at.text_lengths // size
    block_of = torch.minimum(index // size, blocks - 1)
    starts = (index == 0) & real
    documents, behind = starts.cumsum(-1), (blocks * starts).cumsum(-1)
    number = at.length // size if at.index is None else int(behind[:, -1].max())
    sum_of = torch.where(real & (blocks > 0), behind - blocks + block_of, number)

    def of_sums(of_tokens: Tensor, rest: int) -> Tensor:
        """Return the common value of the tokens of each sum: [rows, sums]."""
        values = of_tokens.new_full((len(index), number + 1), rest)
        return values.scatter_(1, sum_of, of_tokens)[:, :-1]

    return SumsMask(
        mask.pattern,
        at,
        num_sums=number,
        sum_of=sum_of,
        block_of=block_of,
        number=of_sums(block_of, 0),
        document_of=documents * real,
        document=of_sums(documents, -1),
    )


@dataclass(frozen=True)
class _Beside:
    """Bias of the scores of sums, followed by tokens."""

    sums: Bias | None
    tokens: Bias | None
    view: SumsMask

    def block(
        self, first: int, stop: int, key_first: int, key_stop: int
    ) -> Float[Tensor, "rows heads queries keys"]:
        between, device = self.view.num_sums, self.view.layout.device
        cuts = (
            (self.sums, key_first, min(key_stop, between)),
            (self.tokens, max(key_first - between, 0), key_stop - between),
        )
        parts = [
            torch.zeros(1, 1, stop - first, end - start, device=device)
            if bias is None
            else bias.block(first, stop, start, end)
            for bias, start, end in cuts
            if start < end
        ]
        # [rows, heads], or 1 for all
        alike = torch.broadcast_shapes(*(part.shape[:2] for part in parts))
        return torch.cat([part.expand(*alike, -1, -1) for part in parts], -1)
