"""Recurrences: mixers with a state of one size for texts of any length."""

from collections.abc import Iterator
from typing import Any, ClassVar, Literal

from pydantic import Field

from archwright.spec.attention import given_or_auto, num_heads_of
from archwright.spec.choice import (
    AutoCount,
    AutoWidth,
    Choice,
    Count,
    ModelSizes,
    OptionalFloat,
    ScaleDown,
    Spec,
    Width,
)
from archwright.spec.mixers import Recurrence
from archwright.spec.norms import LayerNorm, Norm, RMSNorm


class Decay(Choice):
    """The axis of decays: factors exp(g) of the state before each write, g <= 0."""

    axis: ClassVar[str] = "decay"
    has_step: ClassVar[bool] = False
    """True if the decay also has a step size per token and head, for write = "step"."""
    per_channel: ClassVar[bool] = False
    """True if each key channel has a separate decay."""

    def num_parameters(self, dim: int, num_heads: int, key_dim: int, *, bias: bool) -> int:
        """Return the number of parameters, from resolved values."""
        return 0


class NoDecay(Decay):
    """No decay: g = 0 (Yang et al., 2024, DeltaNet)."""

    kind: Literal["none"] = "none"


class FixedDecay(Decay):
    """A fixed decay for each of H heads, h from 1 (Sun et al., 2023, RetNet, eq. 8; Qin et al., 2024, Lightning
    Attention-2, section 3)."""

    kind: Literal["fixed"] = "fixed"
    rates: Literal["retention", "slopes"] = "retention"
    """retention: exp(g) = 1 - 2^(-4 - h); slopes: g = -2^(-8 h / H), as the slopes of ALiBi."""
    slower_with_depth: bool = False
    """Multiply g by 1 - layer / (num_layers - 1), layer from 0 (MiniMax-01)."""


class _Steps(Decay):
    """Initial step sizes: log-uniform from least to most, as the softplus of a bias."""

    least_step: float = Field(0.001, gt=0)
    """Least initial step."""
    most_step: float = Field(0.1, gt=0)
    """Largest initial step."""
    least_rate: float = Field(1.0, ge=0)
    """Least initial rate; rates are uniform."""
    most_rate: float = Field(16.0, gt=0)
    """Largest initial rate."""

    def contradictions(self, sizes: ModelSizes) -> Iterator[str]:
        for name in ("step", "rate"):
            least, most = getattr(self, f"least_{name}"), getattr(self, f"most_{name}")
            if least > most:
                yield f"least_{name}: found {least}; expected at most most_{name} = {most}"


class HeadDecay(_Steps):
    """g = -rate step, with step = softplus(W x + b) and a learned rate > 0 per head (Dao and Gu, 2024, Mamba-2)."""

    kind: Literal["per_head"] = "per_head"
    has_step: ClassVar[bool] = True
    clamp_min: float = Field(0.0, ge=0)
    """Least step (time_step_limit of Mamba-2)."""
    clamp_max: OptionalFloat = Field("none", examples=[0.5])
    """Largest step."""

    def num_parameters(self, dim: int, num_heads: int, key_dim: int, *, bias: bool) -> int:
        return num_heads * (dim + bias + 2)


class ChannelDecay(_Steps):
    """g = -rate softplus(f(x) + b) per key channel, with a learned rate per head (Kimi Team, 2025, Kimi Linear)."""

    kind: Literal["per_channel"] = "per_channel"
    per_channel: ClassVar[bool] = True
    rank: Width | Literal["none"] = Field("none", examples=[16])
    """Rank of f(x) = W_2 W_1 x; none: W x."""
    lower_bound: float | Literal["none"] = Field("none", examples=[-5.0])
    """g = lower_bound sigmoid(rate (f(x) + b)) with this negative bound (Ling 2.5); none: no bound."""

    def contradictions(self, sizes: ModelSizes) -> Iterator[str]:
        yield from super().contradictions(sizes)
        if self.lower_bound != "none" and self.lower_bound >= 0:
            yield f'lower_bound: found {self.lower_bound}; expected a negative number or "none"'

    def scaled_down(self, to: ScaleDown) -> dict[str, Any]:
        return super().scaled_down(to) | _smaller("rank", self.rank, to)

    def num_parameters(self, dim: int, num_heads: int, key_dim: int, *, bias: bool) -> int:
        size = num_heads * key_dim
        return _low_rank(dim, size, self.rank) + bias * size + size + num_heads


class SigmoidDecay(Decay):
    """g = log sigmoid(W_2 W_1 x + b) / divisor per key channel (Yang et al., 2024, Gated Linear Attention, section
    4.3)."""

    kind: Literal["sigmoid"] = "sigmoid"
    per_channel: ClassVar[bool] = True
    rank: Width | Literal["none"] = 16
    """Width between W_1 and W_2; none: a single matrix."""
    divisor: float = Field(16.0, gt=0)
    """Divisor of the log of the decay, so that initial decays are near 1."""

    def scaled_down(self, to: ScaleDown) -> dict[str, Any]:
        return super().scaled_down(to) | _smaller("rank", self.rank, to)

    def num_parameters(self, dim: int, num_heads: int, key_dim: int, *, bias: bool) -> int:
        size = num_heads * key_dim
        return _low_rank(dim, size, self.rank) + size


class Multipliers(Spec):
    """Factors of the projections of x, before convolutions and functions (Falcon-H1)."""

    query: float = 1.0
    """Factor of queries."""
    key: float = 1.0
    """Factor of keys."""
    value: float = 1.0
    """Factor of values."""
    gate: float = 1.0
    """Factor of the gate."""
    decay: float = 1.0
    """Factor of the maps of the decay."""


class LinearRecurrence(Recurrence):
    """S = exp(g) S + k v^T, o = S^T q in heads; with the delta rule, S = exp(g) S; S = S + k (beta (v - S^T k))^T.

    Linear attention (Katharopoulos et al., 2020), RetNet, GLA, SSD (Mamba-2), DeltaNet, gated DeltaNet and KDA are
    special cases.
    """

    kind: Literal["linear"] = "linear"
    takes: ClassVar[frozenset[str]] = frozenset({"segment_ids", "padding_mask"})
    not_results: ClassVar[frozenset[str]] = frozenset({"chunk_size"})
    num_heads: AutoCount = Field("auto", examples=[4])
    """Heads of values, each with a state; auto: dim / head_dim. If both are auto, heads are at least 64 wide."""
    num_key_heads: AutoCount = Field("auto", examples=[2])
    """Heads of queries and keys, shared by groups of value heads; auto: num_heads."""
    head_dim: AutoWidth = Field("auto", examples=[128])
    """Width of a query and key; auto: dim / num_heads."""
    value_head_dim: AutoWidth = Field("auto", examples=[32])
    """Width of a value; auto: head_dim. A state has head_dim x value_head_dim numbers."""
    decay: Decay = Field(HeadDecay(), examples=[{"kind": "per_channel"}])
    """Factor of the state before each write."""
    write: Literal["added", "step", "delta"] = "delta"
    """added: add k v^T; step: add k (step v)^T, with the decay's step (SSD); delta: replace the value of k (delta
    rule)."""
    beta_max: Literal[1, 2] = 1
    """Largest strength beta of the delta rule; 2 allows negative eigenvalues (Grazzi et al., 2024)."""
    conv_width: Count | Literal["none"] = 4
    """Tokens read by the convolutions of queries, keys and values."""
    conv_bias: bool = False
    """Biases of the convolutions."""
    activation: Literal["none", "silu"] = "silu"
    """Function of queries, keys and values, after the convolutions."""
    qk_norm: Literal["none", "l2"] = "l2"
    """l2: scale queries and keys to length 1."""
    scale: Literal["none", "sqrt"] = "sqrt"
    """sqrt: divide queries by sqrt(head_dim)."""
    skip: bool = False
    """Add D v to the output, with a learned number D per head (Mamba-2)."""
    out_norm: Norm = Field(RMSNorm(eps=1e-5), examples=[{"kind": "layer"}])
    """Norm over the output."""
    out_norm_over: Literal["head", "group", "all"] = "head"
    """head: norm over each head; group: over the heads that share a key (Mamba-2); all: over all heads (MiniMax-01)."""
    gate: Literal["none", "silu", "sigmoid"] = "silu"
    """Multiply the output by this function of a map of x."""
    gate_position: Literal["before", "after"] = "after"
    """Gate before the norm (Mamba-2) or after it."""
    gate_rank: Width | Literal["none"] = Field("none", examples=[16])
    """Width between two matrices of the gate; none: a single matrix."""
    bias: bool = False
    """Biases of all projections."""
    multipliers: Multipliers = Multipliers()
    """Factors of projections."""
    chunk_size: Count = 64
    """Tokens computed at once, which changes speed and memory but not results."""

    def heads(self, dim: int) -> dict[str, int]:
        """Return the numbers of heads and their widths, by field name."""
        num_heads = num_heads_of(self.num_heads, self.head_dim, dim)
        head_dim = given_or_auto(self.head_dim, max(1, dim // num_heads))
        return {
            "num_heads": num_heads,
            "num_key_heads": given_or_auto(self.num_key_heads, num_heads),
            "head_dim": head_dim,
            "value_head_dim": given_or_auto(self.value_head_dim, head_dim),
        }

    def numbers(self, sizes: ModelSizes) -> dict[str, Any]:
        return self.heads(sizes.dim)

    def contradictions(self, sizes: ModelSizes) -> Iterator[str]:
        heads = self.heads(sizes.dim)
        if heads["num_heads"] % heads["num_key_heads"]:
            yield (
                f"num_key_heads: found {heads['num_key_heads']}; expected a divisor of num_heads = "
                f"{heads['num_heads']}"
            )
        if self.write == "step" and not self.decay.has_step:
            yield f'write: found "step" with decay.kind = "{self.decay.kind}"; expected decay.kind = "per_head"'
        if self.beta_max != 1 and self.write != "delta":
            yield f'beta_max: found {self.beta_max} with write = "{self.write}"; expected 1, or write = "delta"'
        if self.gate_rank != "none" and self.gate == "none":
            yield f'gate_rank: found {self.gate_rank} with gate = "none"; expected "none"'
        if self.conv_bias and self.conv_width == "none":
            yield 'conv_bias: found true with conv_width = "none"; expected false'

    def scaled_down(self, to: ScaleDown) -> dict[str, Any]:
        return super().scaled_down(to) | _smaller("gate_rank", self.gate_rank, to)

    @property
    def rule(self) -> str:
        return {"added": "linear", "step": "SSD", "delta": "delta rule"}[self.write]

    @property
    def one_line(self) -> str:
        decay = "" if self.decay.is_none else f", {self.decay.kind} decay"
        return (
            f"{self.rule} in {self.num_heads}/{self.num_key_heads} heads, states of "
            f"{self.head_dim} x {self.value_head_dim}{decay}"
        )

    def num_parameters(self, dim: int) -> int:
        heads, key_dim, value_dim = (
            int(self.num_heads),
            int(self.head_dim),
            int(self.value_head_dim),
        )
        keys, values = int(self.num_key_heads) * key_dim, heads * value_dim
        total = dim * (2 * keys + 2 * values) + self.bias * (2 * keys + values + dim)
        if self.gate != "none":
            total += _low_rank(dim, values, self.gate_rank) + self.bias * values
        if self.conv_width != "none":
            total += (2 * keys + values) * (self.conv_width + self.conv_bias)
        if self.write == "delta":
            total += heads * (dim + self.bias)
        total += self.decay.num_parameters(dim, heads, key_dim, bias=self.bias)
        normed = value_dim if self.out_norm_over == "head" else values
        return total + self.skip * heads + self.out_norm.num_parameters(normed)


class ShortConvolution(Recurrence):
    """y = W_out (c * conv(b * x)) with b, c, x = W_in u: gates around a short convolution of each channel
    (Liquid AI, 2025, LFM2 Technical Report). Its state is the last width - 1 tokens of b * x."""

    kind: Literal["short_conv"] = "short_conv"
    takes: ClassVar[frozenset[str]] = frozenset({"segment_ids", "padding_mask"})
    width: Count = 3
    """Tokens that the convolution reads, including the token itself."""
    bias: bool = False
    """Biases of both projections and of the convolution."""

    @property
    def one_line(self) -> str:
        return f"gated convolution over {self.width} tokens"

    def num_parameters(self, dim: int) -> int:
        return (4 * dim + self.width + 5 * self.bias) * dim


class RWKV7(Recurrence):
    """S = diag(w) S - (a * h) h^T S + k v^T, o = S^T r in heads, h = k / |k|: decays w and rates a per key channel
    (Peng et al., 2025, RWKV-7 "Goose", section 4). Later layers mix their values with the first layer's values."""

    kind: Literal["rwkv7"] = "rwkv7"
    takes: ClassVar[frozenset[str]] = frozenset({"segment_ids", "padding_mask"})
    num_heads: AutoCount = Field("auto", examples=[12])
    """Heads, each with a state; auto: dim / head_dim. If both are auto, heads are at least 64 wide."""
    head_dim: AutoWidth = Field("auto", examples=[32])
    """Width of a head's vectors; auto: dim / num_heads. A state has head_dim x head_dim numbers."""
    decay_rank: AutoWidth = Field("auto", examples=[64])
    """Width between the two matrices of decays; auto: 1.8 sqrt(dim) to the nearest multiple of 32, at least 32."""
    rate_rank: AutoWidth = Field("auto", examples=[64])
    """Width between the two matrices of rates; auto: as for decays."""
    value_rank: AutoWidth = Field("auto", examples=[32])
    """Width between the two matrices of the share of first values; auto: the same of 1.3 sqrt(dim)."""
    gate_rank: AutoWidth = Field("auto", examples=[128])
    """Width between the two matrices of the gate; auto: the same of 0.6 dim^0.8."""
    norm_eps: float = Field(64e-5, gt=0)
    """Added to the variance of a head's output in its norm."""

    @property
    def head_norm(self) -> Norm:
        """Norm of each head's output."""
        return LayerNorm(eps=self.norm_eps)

    def numbers(self, sizes: ModelSizes) -> dict[str, Any]:
        heads = num_heads_of(self.num_heads, self.head_dim, sizes.dim)
        widths = {"decay_rank": 1.8, "rate_rank": 1.8, "value_rank": 1.3}
        widths = {name: factor * sizes.dim**0.5 for name, factor in widths.items()}
        widths["gate_rank"] = 0.6 * sizes.dim**0.8
        return {
            "num_heads": heads,
            "head_dim": given_or_auto(self.head_dim, max(1, sizes.dim // heads)),
            **{
                name: given_or_auto(getattr(self, name), max(32, 32 * round(width / 32)))
                for name, width in widths.items()
            },
        }

    def scaled_down(self, to: ScaleDown) -> dict[str, Any]:
        changes = super().scaled_down(to)
        for name, value in self:
            if name.endswith("_rank") and value != "auto":
                changes |= _smaller(name, value, to)
        return changes

    @property
    def one_line(self) -> str:
        return f"RWKV-7 in {self.num_heads} heads, states of {self.head_dim} x {self.head_dim}"

    def num_parameters(self, dim: int) -> int:
        size = int(self.num_heads) * int(self.head_dim)
        ranks = int(self.decay_rank) + int(self.rate_rank) + int(self.gate_rank)
        # Six token shifts; biases of decays and rates, three vectors of keys and the bonus, and a norm.
        total = 4 * dim * size + ranks * (dim + size) + 6 * dim + 7 * size
        return total + self.num_later_parameters(dim)

    def num_later_parameters(self, dim: int) -> int:
        size = int(self.num_heads) * int(self.head_dim)
        return int(self.value_rank) * (dim + size) + size


def _low_rank(d_in: int, d_out: int, rank: int | Literal["none"]) -> int:
    """Return the numbers in one matrix, or in two with `rank` values between them."""
    return d_in * d_out if rank == "none" else rank * (d_in + d_out)


def _smaller(name: str, rank: int | Literal["none"], to: ScaleDown) -> dict[str, Any]:
    """Return the change of a rank that keeps its ratio to the model's width."""
    return {} if rank == "none" else {name: max(2, rank * to.dim // to.old.dim)}
