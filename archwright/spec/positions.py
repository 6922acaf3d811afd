"""Position encodings."""

import math
from collections.abc import Iterator
from typing import Any, ClassVar, Literal

from pydantic import Field

from archwright.spec.choice import (
    AutoFloat,
    AutoTokens,
    Choice,
    Floats,
    ModelSizes,
    ScaleDown,
)


class Scaling(Choice):
    """The axis of scalings of RoPE's frequencies f, for texts longer than in training."""

    axis: ClassVar[str] = "scaling"
    spans_head: ClassVar[bool] = False
    """True if pairs span the whole head, although RoPE rotates only a fraction of it."""

    @property
    def switch_length(self) -> int | None:
        """Text length above which all angles change at once; None if there is none."""
        return None

    def numbers(self, sizes: ModelSizes) -> dict[str, Any]:
        values, length = self.model_dump(), sizes.context_length
        found: dict[str, Any] = {}
        if values.get("original_length") == "auto":
            found["original_length"] = length
        if values.get("attention_factor") == "auto":
            original = {"original_length": length, **values, **found}["original_length"]
            found["attention_factor"] = self.auto_attention_factor(original)
        return found

    def auto_attention_factor(self, original_length: int) -> float:
        """Return the factor of cosines and sines for "auto"."""
        return 1.0

    def options_for_pairs(self, number: int) -> dict[str, Any]:
        """Return the options that change for heads with `number` pairs of coordinates."""
        return {}


class NoScaling(Scaling):
    """Unscaled frequencies."""

    kind: Literal["none"] = "none"


class LinearScaling(Scaling):
    """f / factor: positions are interpolated (Chen et al., 2023)."""

    kind: Literal["linear"] = "linear"
    factor: float = Field(2.0, ge=1)
    """Ratio of the longest text to the training length."""


class DynamicNTK(Scaling):
    """theta' = theta (s n / L - (s - 1))^(r / (r - 2)) if the text's length n exceeds L (Peng et al., 2023, YaRN,
    section 3.3)."""

    kind: Literal["dynamic"] = "dynamic"
    factor: float = Field(2.0, ge=1)
    """The factor s."""
    original_length: AutoTokens = Field("auto", examples=[256])
    """Training length L, in tokens; auto: context_length."""


class YaRN(Scaling):
    """Slow frequencies are divided by the factor, fast ones stay and those between are blended. Cosines and sines are
    multiplied by attention_factor (Peng et al., 2023, YaRN, section 3.4)."""

    kind: Literal["yarn"] = "yarn"
    factor: float = Field(2.0, ge=1)
    """Ratio of the longest text to the training length."""
    original_length: AutoTokens = Field("auto", examples=[256])
    """Training length, in tokens; auto: context_length."""
    beta_fast: float = Field(32.0, gt=0)
    """Frequencies with more turns than this within the original length stay unscaled."""
    beta_slow: float = Field(1.0, gt=0)
    """Frequencies with fewer turns than this within the original length are divided."""
    attention_factor: AutoFloat = Field("auto", examples=[1.0])
    """Factor of cosines and sines; auto: 0.1 ln(factor) + 1."""
    truncate: bool = True
    """Round the bounds of the blended range to whole frequencies."""

    def auto_attention_factor(self, original_length: int) -> float:
        return 0.1 * math.log(self.factor) + 1


class Llama3Scaling(Scaling):
    """Long wavelengths are divided by the factor, short ones stay and those between are blended (Llama 3.1)."""

    kind: Literal["llama3"] = "llama3"
    factor: float = Field(8.0, ge=1)
    """Ratio of the longest text to the training length."""
    original_length: AutoTokens = Field("auto", examples=[256])
    """Training length, in tokens; auto: context_length."""
    low_freq_factor: float = Field(1.0, gt=0)
    """Wavelengths above original_length / low_freq_factor are divided."""
    high_freq_factor: float = Field(4.0, gt=0)
    """Wavelengths below original_length / high_freq_factor stay unscaled."""

    def contradictions(self, sizes: ModelSizes) -> Iterator[str]:
        low, high = self.low_freq_factor, self.high_freq_factor
        if high < low:
            yield f"high_freq_factor: found {high:g}; expected at least low_freq_factor = {low:g}"


class LongRoPE(Scaling):
    """Each frequency has its divisor, from one list up to the original length and from another beyond; cosines and
    sines are multiplied by a factor (Ding et al., 2024)."""

    kind: Literal["longrope"] = "longrope"
    short: Floats = ()
    """Divisors up to the original length, one per pair of coordinates; empty: all 1."""
    long: Floats = ()
    """Divisors of all positions of a longer text; empty: all 1."""
    factor: float = Field(2.0, ge=1)
    """Ratio of the longest text to the training length."""
    original_length: AutoTokens = Field("auto", examples=[256])
    """Training length, in tokens; auto: context_length."""
    attention_factor: AutoFloat = Field("auto", examples=[1.0])
    """Factor of cosines and sines; auto: sqrt(1 + ln(factor) / ln(original_length))."""

    @property
    def switch_length(self) -> int | None:
        assert self.original_length != "auto"
        return None if self.short == self.long else self.original_length

    def auto_attention_factor(self, original_length: int) -> float:
        return math.sqrt(1 + math.log(self.factor) / math.log(max(2, original_length)))

    def options_for_pairs(self, number: int) -> dict[str, Any]:
        """Keep `number` evenly spaced divisors."""
        found = {}
        for name, divisors in (("short", self.short), ("long", self.long)):
            if divisors:
                step = len(divisors) / number
                found[name] = tuple(divisors[int(i * step)] for i in range(number))
        return found


class Proportional(Scaling):
    """theta^(-2i/head_dim), the frequencies of a fully rotated head, for the rotated pairs. Pairs span the whole head
    (Gemma 4)."""

    kind: Literal["proportional"] = "proportional"
    spans_head: ClassVar[bool] = True


class Position(Choice):
    """The axis of position encodings."""

    axis: ClassVar[str] = "position"
    absolute: ClassVar[bool] = False
    """True if it is added to the embedding, once for the model, instead of acting inside attention."""
    scores: ClassVar[bool] = False
    """True if it is added to attention scores, instead of rotating queries and keys."""
    ends: ClassVar[bool] = False
    """True if there are no positions beyond context_length."""

    @property
    def switch_length(self) -> int | None:
        """Text length above which all angles change at once; None if there is none."""
        return None

    def num_absolute_parameters(self, dim: int, context_length: int) -> int:
        """Return the number of parameters of the encoding added to the embedding."""
        return 0

    def num_parameters(self, dim: int, num_heads: int, head_dim: int) -> int:
        """Return the number of parameters in one layer's attention, or in all layers if shared."""
        return 0

    @property
    def is_shared(self) -> bool:
        """True if attentions of equal sizes share its parameters."""
        return False

    @property
    def rotates(self) -> bool:
        """True if it rotates queries and keys."""
        return not (self.absolute or self.scores)


class NoPosition(Position):
    """No encoding: order is known only from the causal mask (Kazemnejad et al., 2023)."""

    kind: Literal["none"] = "none"

    @property
    def rotates(self) -> bool:
        return False


class Sinusoidal(Position):
    """Sines and cosines of position * theta^(-2i/dim), added to the embedding (Vaswani et al., 2017, section 3.5)."""

    kind: Literal["sinusoidal"] = "sinusoidal"
    absolute: ClassVar[bool] = True
    theta: float = Field(10_000.0, gt=1)
    """Base of the wavelengths, which run from 2 pi to 2 pi theta tokens."""
    layout: Literal["interleaved", "half"] = "interleaved"
    """interleaved: sines and cosines alternate, as in the paper; half: all sines come first, as in Marian."""
    offset: int = Field(0, ge=0, le=2**30, examples=[2])
    """Position of the first token (2 in XGLM)."""
    spacing: Literal["paper", "fairseq"] = "paper"
    """paper: wavelengths theta^(2i/dim); fairseq: theta^(i / (dim/2 - 1)), with theta as the last."""


class Learned(Position):
    """A trained vector per position, added to the embedding (Gehring et al., 2017; GPT-2)."""

    kind: Literal["learned"] = "learned"
    absolute: ClassVar[bool] = True
    ends: ClassVar[bool] = True
    offset: int = Field(0, ge=0, le=2**30, examples=[2])
    """Row of position 0, if earlier rows of the table have other uses (2 in OPT)."""

    def num_absolute_parameters(self, dim: int, context_length: int) -> int:
        return (context_length + self.offset) * dim


class RoPE(Position):
    """Rotate pair i of query and key coordinates by position * theta^(-2i/r) (Su et al., 2021)."""

    kind: Literal["rope"] = "rope"
    theta: float = Field(10_000.0, gt=1)
    """Base of the frequencies theta^(-2i/r), with r the number of rotated coordinates."""
    fraction: float = Field(1.0, gt=0, le=1, examples=[0.25])
    """Share of each head's coordinates that rotate, from the first on."""
    pairing: Literal["half", "interleaved"] = "half"
    """Coordinates of a pair. half: (i, i + r/2), as in Llama; interleaved: (2i, 2i + 1), as in the paper."""
    scaling: Scaling = Field(NoScaling(), examples=[{"kind": "yarn", "factor": 4.0}])
    """Scaling of the frequencies for longer texts."""

    @property
    def switch_length(self) -> int | None:
        return self.scaling.switch_length

    def numbers(self, sizes: ModelSizes) -> dict[str, Any]:
        return {"scaling": self.scaling.numbers(sizes)}

    def scaled_down(self, to: ScaleDown) -> dict[str, Any]:
        changes = self.scaling.options_for_pairs(rotary_dim(self, to.head_dim) // 2)
        return {"scaling": changes} if changes else {}


class ALiBi(Position):
    """Scores fall with distance: slope_h (k - q), with slopes 2^(-bias_max h/num_heads) for heads h = 1, 2 ... if their
    number is a power of two (Press et al., 2021)."""

    kind: Literal["alibi"] = "alibi"
    scores: ClassVar[bool] = True
    scaled: bool = False
    """Multiply the slopes by the score scale, as Falcon does; BLOOM and MPT do not."""
    bias_max: int = Field(8, ge=1)
    """Exponent of the last head's slope: 8 in the paper, 16 in MPT-7B-StoryWriter."""


class T5Bias(Position):
    """A learned number per head for each bucket of distances, added to the scores
    (Raffel et al., 2019, section 2.1)."""

    kind: Literal["t5"] = "t5"
    scores: ClassVar[bool] = True
    num_buckets: int = Field(32, ge=4, le=2**12)
    """Rows of the table; short distances have one each, long distances share rows on a log scale."""
    max_distance: int = Field(128, ge=2, le=2**30)
    """Distances from this one on share the last bucket."""
    shared: bool = True
    """Use one table for all layers (T5), not one per layer (umT5)."""

    def num_parameters(self, dim: int, num_heads: int, head_dim: int) -> int:
        return self.num_buckets * num_heads

    @property
    def is_shared(self) -> bool:
        return self.shared


class TransformerXL(Position):
    """Scores q (k + r) + u k + v r, with r a linear map of the distance's sinusoidal vector and u, v learned per head
    (Dai et al., 2019, section 3.3; Gopher)."""

    kind: Literal["transformer_xl"] = "transformer_xl"
    scores: ClassVar[bool] = True
    has_streams: ClassVar[bool] = False
    theta: float = Field(10_000.0, gt=1)
    """Base of the wavelengths of the distance's vector."""

    def num_parameters(self, dim: int, num_heads: int, head_dim: int) -> int:
        return (dim + 2) * num_heads * head_dim


def rotary_dim(rope: RoPE, head_dim: int) -> int:
    """Return the number of paired coordinates of a head."""
    return head_dim if rope.scaling.spans_head else int(head_dim * rope.fraction)
