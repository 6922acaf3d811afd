"""Training objectives: inputs and targets for a text."""

import math
from collections.abc import Iterator
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from archwright.spec.choice import Choice, Count, ModelSizes, Spec


class Objective(Choice):
    """The axis of training objectives: inputs and targets for a text."""

    axis: ClassVar[str] = "objective"
    causal: ClassVar[bool]
    """True if no token may see later tokens; otherwise some layer must be bidirectional."""
    defines_bits_per_byte: ClassVar[bool] = False
    """True if the targets of a window are all its tokens after the first, once each and in order, so that their losses
    add up to the loss of the text."""
    generates_text: ClassVar[bool] = False
    """True if the model learns to continue a text, so that a run ends with a sample."""
    overlap: ClassVar[int] = 0
    """Tokens that a training window shares with the next one."""
    has_source: ClassVar[bool] = False
    """True if each example has a source and a target, which requires a model with an encoder."""
    has_pairs: ClassVar[bool] = False
    """True if sources and targets come as pairs from data.pairs instead of from a text."""
    packs_documents: ClassVar[bool] = False
    """True if, with packing = "document_mask", each document of a window has a source and a target."""
    has_generator: ClassVar[bool] = False
    """True if a generator proposes tokens and the model detects the replaced ones."""
    has_prefix: ClassVar[bool] = False
    """True if each text begins with a fully visible prefix, which requires a mask with one."""

    @property
    def second_task(self) -> str:
        """Name of a second task in addition to predicting tokens; empty if there is none."""
        return ""

    @property
    def judges_rows(self) -> bool:
        """True if rows are two segments and the model predicts whether they belong together."""
        return False

    @property
    def second_weight(self) -> float:
        """Factor of the second task's loss in the sum."""
        return 1.0

    @property
    def second_cases(self) -> str:
        """Unit of the second task: row or token."""
        return "row"

    @property
    def special_tokens(self) -> tuple[str, ...]:
        """Special tokens that the tokenizer must have."""
        return ()

    @property
    def loss_unit(self) -> Literal["nats per token", "nats per predicted token"]:
        """Unit of the mean of -ln p over all targets."""
        return "nats per token" if self.defines_bits_per_byte else "nats per predicted token"

    def window_length(self, context_length: int) -> int:
        """Return the tokens of a text for one row of at most `context_length` inputs."""
        return context_length + self.overlap

    @property
    def least_context(self) -> int:
        """Least model.context_length for a row of inputs."""
        return 1

    def target_length(self, context_length: int) -> int:
        """Return the decoder's tokens per source of `context_length` tokens."""
        return context_length

    @property
    def drawn_share(self) -> float:
        """Share of a text's tokens that a generator replaces by samples."""
        return 0.0

    def stride(self, context_length: int) -> int:
        """Return the default stride of evaluation windows: half a context, or a whole one."""
        return max(1, context_length // 2) if self.defines_bits_per_byte else context_length


class NextToken(Objective):
    """-ln p(x_(t+1) | x_1 ... x_t) at each token x_t: a language model from left to right (Bengio et al., 2003)."""

    kind: Literal["next_token"] = "next_token"
    causal: ClassVar[bool] = True
    defines_bits_per_byte: ClassVar[bool] = True
    generates_text: ClassVar[bool] = True
    overlap: ClassVar[int] = 1


class PrefixLM(Objective):
    """-ln p(x_(t+1) | x_1 ... x_t) at each token after a prefix, with attention in both directions within the prefix
    (Raffel et al., 2019, T5, section 3.2.1). The length of the prefix is drawn for each row."""

    kind: Literal["prefix_lm"] = "prefix_lm"
    causal: ClassVar[bool] = True
    generates_text: ClassVar[bool] = True
    overlap: ClassVar[int] = 1
    has_prefix: ClassVar[bool] = True
    shortest: float = Field(0.0, ge=0, le=1)
    """Least share of a row in its prefix."""
    longest: float = Field(1.0, ge=0, le=1)
    """Largest share of a row in its prefix; shares are drawn uniformly."""

    def contradictions(self, sizes: ModelSizes) -> Iterator[str]:
        if self.shortest > self.longest:
            yield f"shortest: found {self.shortest}; expected at most longest = {self.longest}"


class MaskedTokens(Objective):
    """-ln p(x_t | the text with some tokens hidden) at each token chosen for prediction. Most chosen tokens are
    replaced by the mask token, some by a random token, and some stay unchanged (Devlin et al., 2018, BERT, section
    3.1). They are drawn again each time a text is read, as in RoBERTa (Liu et al., 2019, section 4.1)."""

    kind: Literal["masked_tokens"] = "masked_tokens"
    causal: ClassVar[bool] = False
    share: float = Field(0.15, gt=0, le=1)
    """Share of tokens chosen for prediction."""
    kept: float = Field(0.1, ge=0, le=1)
    """Share of chosen tokens that stay unchanged."""
    random: float = Field(0.1, ge=0, le=1)
    """Share of chosen tokens replaced by a random token."""
    mask_token: str = Field("[MASK]", min_length=1)
    """Special token that replaces the other chosen tokens."""
    longest_run: int = Field(1, ge=1, le=64, examples=[3])
    """Longest run of neighbouring tokens chosen together; lengths n from 1 to this are drawn with a probability
    proportional to 1 / n (Lan et al., 2019, ALBERT, section 4.1)."""
    segments: Literal["one", "next", "order"] = "one"
    """Contents of a row. one: a single text. next, order: two segments of a text and a second loss, added to the first,
    for predicting whether the second segment follows the first. It does in half of the rows. In the others, the second
    segment is from another row (next: Devlin et al., 2018, section 3.1), or the two are swapped (order: Lan et al.,
    2019, section 3.1)."""
    class_token: str = Field("[CLS]", min_length=1)
    """Special token at the start of a row of two segments."""
    separator_token: str = Field("[SEP]", min_length=1)
    """Special token at the end of each of two segments."""

    @property
    def special_tokens(self) -> tuple[str, ...]:
        pair = (self.class_token, self.separator_token) if self.judges_rows else ()
        return (self.mask_token, *pair)

    @property
    def second_task(self) -> str:
        return {"one": "", "next": "next sentence", "order": "sentence order"}[self.segments]

    @property
    def judges_rows(self) -> bool:
        return self.segments != "one"

    def window_length(self, context_length: int) -> int:
        return context_length - (3 if self.judges_rows else 0)

    @property
    def least_context(self) -> int:
        # Two tokens and three special tokens.
        return 5 if self.judges_rows else 1

    def contradictions(self, sizes: ModelSizes) -> Iterator[str]:
        if self.kept + self.random > 1:
            yield f"kept: found {self.kept}; expected at most 1 - random = {1 - self.random:g}"
        if self.judges_rows and len({*self.special_tokens}) < 3:
            yield (
                f'separator_token: found "{self.separator_token}" beside mask_token = "{self.mask_token}" and '
                f'class_token = "{self.class_token}"; expected three different tokens'
            )


class ReplacedTokens(Objective):
    """Masked-token loss of a generator, plus `weight` times the loss of detecting replaced tokens in its samples (Clark
    et al., 2020, ELECTRA, section 2). A token sampled from the generator replaces each masked token. The model
    classifies all tokens as original or replaced; a sample equal to the original counts as original. No gradient flows
    through the samples. Both losses are means over their tokens, as in the published code."""

    kind: Literal["replaced_tokens"] = "replaced_tokens"
    causal: ClassVar[bool] = False
    has_generator: ClassVar[bool] = True
    share: float = Field(0.15, gt=0, le=1)
    """Share of tokens that the generator proposes."""
    mask_token: str = Field("[MASK]", min_length=1)
    """Special token that replaces them in the generator's input."""
    weight: float = Field(50.0, gt=0)
    """Factor of the detection loss."""

    @property
    def special_tokens(self) -> tuple[str, ...]:
        return (self.mask_token,)

    @property
    def drawn_share(self) -> float:
        return self.share

    @property
    def second_task(self) -> str:
        return "replaced tokens"

    @property
    def second_weight(self) -> float:
        return self.weight

    @property
    def second_cases(self) -> str:
        return "token"


class FromText(Objective):
    """Objectives that split each text into a source and a target, in windows that fill model.context_length."""

    causal: ClassVar[bool] = True
    has_source: ClassVar[bool] = True
    packs_documents: ClassVar[bool] = True

    def source_length(self, length: int) -> int:
        """Return the largest length of a source from `length` tokens, also a bound for its target."""
        return length + 1

    def window_length(self, context_length: int) -> int:
        length = max(1, context_length - 1)
        while length > 1 and self.source_length(length) > context_length:
            length -= 1
        while self.source_length(length + 1) <= context_length:
            length += 1
        return length

    @property
    def least_context(self) -> int:
        return 2


class SpanCorruption(FromText):
    """-ln p(y_(t+1) | y_1 ... y_t, source). The source is the text with spans replaced by sentinels, one per span. The
    target is each sentinel followed by its span (Raffel et al., 2019, T5, sections 3.1.4 and 3.3.4). Windows are the
    longest that fit into model.context_length after corruption."""

    kind: Literal["span_corruption"] = "span_corruption"
    share: float = Field(0.15, gt=0, le=0.5)
    """Share of tokens in spans; above one half, the target would be longer than the source."""
    mean_length: float = Field(3.0, ge=1, examples=[5.0])
    """Mean length of a span, in tokens."""
    sentinel: str = Field("<extra_id_{}>", min_length=1, examples=["<span_{}>"])
    """Special tokens that replace spans, with {} for their number."""
    num_sentinels: Count = Field(100, examples=[32])
    """Number of sentinels, and largest number of spans of a text."""

    @property
    def special_tokens(self) -> tuple[str, ...]:
        return _numbered(self.sentinel, self.num_sentinels)

    def spans(self, length: int) -> tuple[int, int]:
        """Return the number of tokens in spans of a text of `length` tokens, and the number of spans."""
        return spans_of(length, self.share, self.mean_length, self.num_sentinels)

    def target_length(self, context_length: int) -> int:
        out, spans = self.spans(self.window_length(context_length))
        return out + spans + 1

    def source_length(self, length: int) -> int:
        """Return the number of kept tokens, sentinels, and the end token."""
        out, spans = self.spans(length)
        return length - out + spans + 1

    @property
    def least_context(self) -> int:
        # A kept token, a sentinel and the end token.
        return 3

    def contradictions(self, sizes: ModelSizes) -> Iterator[str]:
        yield from _unnumbered(self.sentinel, self.num_sentinels)


class Denoiser(Spec):
    """A span corruption in a mixture of denoisers."""

    mode: str = "[R]"
    """Special token at the start of the source that identifies the mode; empty: none."""
    share: float = Field(0.15, gt=0, le=0.5)
    """Share of tokens in spans."""
    mean_length: float = Field(3.0, ge=1)
    """Mean length of a span, in tokens; with `at_end`, it follows from the share."""
    at_end: bool = False
    """Remove only the end of the text, with a uniformly drawn length; the share is its mean."""
    weight: float = Field(1.0, gt=0)
    """Relative frequency of the denoiser."""


UL2_DENOISERS = (
    Denoiser(mode="[R]", share=0.15, mean_length=3.0),
    Denoiser(mode="[R]", share=0.15, mean_length=8.0),
    Denoiser(mode="[S]", share=0.25, at_end=True),
    Denoiser(mode="[X]", share=0.5, mean_length=3.0),
    Denoiser(mode="[X]", share=0.5, mean_length=8.0),
    Denoiser(mode="[X]", share=0.15, mean_length=64.0),
    Denoiser(mode="[X]", share=0.5, mean_length=64.0),
)
"""Regular, sequential and extreme denoisers (Tay et al., 2022, UL2, table 1)."""


class Denoising(FromText):
    """-ln p(y_(t+1) | y_1 ... y_t, source). Spans are replaced as in `span_corruption`, by a denoiser drawn for each
    text; the source begins with the denoiser's mode token (Tay et al., 2022, UL2, section 3.1). Windows are the longest
    that fit into model.context_length with every denoiser."""

    kind: Literal["denoising"] = "denoising"
    denoisers: Annotated[tuple[Denoiser, ...], Field(strict=False, min_length=1)] = Field(
        UL2_DENOISERS, examples=[({"mode": "", "share": 0.5, "at_end": True},)]
    )
    """Denoisers to draw from, as tables of `mode`, the special token at the start of the source, or empty, `share` and
    `mean_length` of spans, `at_end`, to remove only the end of the text, and `weight`, the relative frequency. Default:
    the seven of UL2's table 1, with equal weights."""
    sentinel: str = Field("<extra_id_{}>", min_length=1, examples=["<span_{}>"])
    """Special tokens that replace spans, with {} for their number."""
    num_sentinels: Count = Field(100, examples=[32])
    """Number of sentinels, and largest number of spans of a text."""

    @property
    def sentinels(self) -> tuple[str, ...]:
        """Special tokens that replace spans."""
        return _numbered(self.sentinel, self.num_sentinels)

    @property
    def special_tokens(self) -> tuple[str, ...]:
        modes = dict.fromkeys(denoiser.mode for denoiser in self.denoisers if denoiser.mode)
        return (*modes, *self.sentinels)

    def spans(self, denoiser: Denoiser, length: int) -> tuple[int, int]:
        """Return the (mean) number of tokens that a denoiser removes, and the number of spans."""
        most = 1 if denoiser.at_end else self.num_sentinels
        return spans_of(length, denoiser.share, denoiser.mean_length, most)

    def target_length(self, context_length: int) -> int:
        """Return the mean number of tokens of a target, rounded up."""
        length = self.window_length(context_length)
        total = sum(d.weight for d in self.denoisers)
        return math.ceil(
            sum(d.weight * (sum(self.spans(d, length)) + 1) for d in self.denoisers) / total
        )

    def source_length(self, length: int) -> int:
        return max(self._source_length(denoiser, length) for denoiser in self.denoisers)

    def _source_length(self, denoiser: Denoiser, length: int) -> int:
        """Return the tokens of a source: mode, kept tokens, sentinels, end."""
        out, spans = self.spans(denoiser, length)
        return bool(denoiser.mode) + length - (1 if denoiser.at_end else out) + spans + 1

    @property
    def least_context(self) -> int:
        # The mode, a kept token, a sentinel and the end token.
        return 4

    def contradictions(self, sizes: ModelSizes) -> Iterator[str]:
        yield from _unnumbered(self.sentinel, self.num_sentinels)
        if shared := {d.mode for d in self.denoisers} & {*self.sentinels}:
            yield f'denoisers: found the mode "{min(shared)}", which is a sentinel; expected another'


class TextInfilling(FromText):
    """-ln p(y_(t+1) | y_1 ... y_t, source). The target is a text; the source has its sentences in random order and a
    mask token instead of each span. Span lengths are drawn from Poisson(mean_length); length 0 inserts a mask token
    (Lewis et al., 2019, BART, sections 2.2 and 5.1)."""

    kind: Literal["text_infilling"] = "text_infilling"
    share: float = Field(0.3, ge=0, le=1)
    """Share of tokens in spans; 0: no spans."""
    mean_length: float = Field(3.0, gt=0, examples=[5.0])
    """Mean of the Poisson distribution of span lengths, in tokens."""
    permute_sentences: bool = True
    """Put the sentences of the source in random order; a sentence ends with ".", "!" or "?" before whitespace."""
    mask_token: str = Field("<mask>", min_length=1, examples=["[MASK]"])
    """Special token that replaces a span."""

    @property
    def special_tokens(self) -> tuple[str, ...]:
        return (self.mask_token,)


class SequenceToSequence(Objective):
    """-ln p(y_(t+1) | y_1 ... y_t, source) at each token of the target and at its end. Sources and targets are pairs,
    such as a sentence and its translation (Sutskever et al., 2014, section 2; Vaswani et al., 2017)."""

    kind: Literal["sequence_to_sequence"] = "sequence_to_sequence"
    causal: ClassVar[bool] = True
    has_source: ClassVar[bool] = True
    has_pairs: ClassVar[bool] = True

    @property
    def least_context(self) -> int:
        # A token and the end token.
        return 2


OF_PAIRS: Objective = SequenceToSequence()
"""Objective for pairs of a source and a target."""


def spans_of(length: int, share: float, mean_length: float, most: int) -> tuple[int, int]:
    """Return the number of tokens in spans, at most half of the text, and the number of spans."""
    out = min(max(round(length * share), 1), max(1, length // 2))
    most = min(out, length - out, most)
    return out, max(1, min(round(out / mean_length), most))


def _numbered(name: str, number: int) -> tuple[str, ...]:
    return tuple(name.replace("{}", str(i)) for i in range(number))


def _unnumbered(sentinel: str, number: int) -> Iterator[str]:
    """Yield an error if spans would share a sentinel."""
    if "{}" not in sentinel and number > 1:
        yield f'sentinel: found "{sentinel}"; expected {{}} in it, for the number of the span'
