"""Objectives: what a model reads of a text, and what it is to predict."""

import math
from collections.abc import Iterator
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from archwright.spec.choice import Choice, Count, ModelSizes, Spec


class Objective(Choice):
    """The axis of training objectives: what a model reads of a text, and what it is to predict."""

    axis: ClassVar[str] = "objective"
    causal: ClassVar[bool]
    """Whether no token may see what follows it; otherwise some layer has to see both sides."""
    defines_bits_per_byte: ClassVar[bool] = False
    """Whether the targets of a window are its tokens behind the first, each once and in order, so that their losses
    add up to that of the text."""
    generates_text: ClassVar[bool] = False
    """Whether what was learned is to go on with a text, so that a run ends with a sample."""
    overlap: ClassVar[int] = 0
    """Tokens that a window of training shares with the next one."""
    has_source: ClassVar[bool] = False
    """Whether a source and a target are made of a text, which takes a model with an encoder."""
    has_pairs: ClassVar[bool] = False
    """Whether sources and targets are given as pairs, by data.pairs, and not made of a text."""
    packs_documents: ClassVar[bool] = False
    """Whether a source and a target are made of each document of a window where these do not see each other."""
    has_generator: ClassVar[bool] = False
    """Whether tokens are proposed by a generator, of which the model finds those that are replaced."""
    has_prefix: ClassVar[bool] = False
    """Whether each text begins with a prefix that is read whole, which takes a mask with one."""

    @property
    def second_task(self) -> str:
        """What is learned beside the prediction of tokens, in words; empty where that is all."""
        return ""

    @property
    def judges_rows(self) -> bool:
        """Whether rows are two segments, of which the model says whether they belong together."""
        return False

    @property
    def second_weight(self) -> float:
        """What the loss of that is multiplied by before it is added."""
        return 1.0

    @property
    def second_cases(self) -> str:
        """What that is learned of: each row, or each token."""
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
        """Return how many tokens of a text become one row of at most `context_length` inputs."""
        return context_length + self.overlap

    @property
    def least_context(self) -> int:
        """The least model.context_length that a row of inputs fits into."""
        return 1

    def target_length(self, context_length: int) -> int:
        """Return how many tokens a decoder reads beside a source of so many."""
        return context_length

    @property
    def drawn_share(self) -> float:
        """Share of a text's tokens in whose places a generator draws others."""
        return 0.0

    def stride(self, context_length: int) -> int:
        """Return the default distance of evaluation windows: half a context, or a whole one."""
        return max(1, context_length // 2) if self.defines_bits_per_byte else context_length


class NextToken(Objective):
    """-ln p(x_(t+1) | x_1 ... x_t) at each token x_t: a language model from left to right (Bengio et al., 2003)."""

    kind: Literal["next_token"] = "next_token"
    causal: ClassVar[bool] = True
    defines_bits_per_byte: ClassVar[bool] = True
    generates_text: ClassVar[bool] = True
    overlap: ClassVar[int] = 1


class PrefixLM(Objective):
    """-ln p(x_(t+1) | x_1 ... x_t) at each token behind a prefix, whose tokens see each other whole (Raffel et al.,
    2019, T5, section 3.2.1). The length of the prefix is drawn for each row."""

    kind: Literal["prefix_lm"] = "prefix_lm"
    causal: ClassVar[bool] = True
    generates_text: ClassVar[bool] = True
    overlap: ClassVar[int] = 1
    has_prefix: ClassVar[bool] = True
    shortest: float = Field(0.0, ge=0, le=1)
    """Least share of a row that is its prefix."""
    longest: float = Field(1.0, ge=0, le=1)
    """Largest share of a row that is its prefix; shares are drawn uniformly."""

    def contradictions(self, sizes: ModelSizes) -> Iterator[str]:
        if self.shortest > self.longest:
            yield f"shortest: found {self.shortest}; expected at most longest = {self.longest}"


class MaskedTokens(Objective):
    """-ln p(x_t | the text with some of its tokens hidden) at each token that was chosen to be predicted; most of these
    are hidden by the mask token, some by a random one, some are left (Devlin et al., 2018, BERT, section 3.1). Drawn
    anew each time that a text is read, as in RoBERTa (Liu et al., 2019, section 4.1)."""

    kind: Literal["masked_tokens"] = "masked_tokens"
    causal: ClassVar[bool] = False
    share: float = Field(0.15, gt=0, le=1)
    """Share of the tokens that are predicted."""
    kept: float = Field(0.1, ge=0, le=1)
    """Share of these that are left as they are."""
    random: float = Field(0.1, ge=0, le=1)
    """Share of these that are replaced by a random token."""
    mask_token: str = Field("[MASK]", min_length=1)
    """The special token that hides the rest of them."""
    longest_run: int = Field(1, ge=1, le=64, examples=[3])
    """Neighbours are chosen together, in runs of 1 to so many tokens, of n tokens with a probability proportional to
    1 / n (Lan et al., 2019, ALBERT, section 4.1)."""
    segments: Literal["one", "next", "order"] = "one"
    """What a row is: one text; or a text in two segments, of which the model says besides whether the second follows
    the first. Half of the time it does; else it is one of another row ("next": Devlin et al., 2018, section 3.1), or
    the two have changed places ("order": Lan et al., 2019, section 3.1). Its loss is added to that of tokens."""
    class_token: str = Field("[CLS]", min_length=1)
    """The special token that a row of two segments begins with."""
    separator_token: str = Field("[SEP]", min_length=1)
    """The special token that ends each of two segments."""

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
        # Two tokens, and the three special ones around them.
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
    """-ln p(x_t | the text with some of its tokens masked) by a generator at each masked token, and `weight` times
    -ln p of whether a token is the text's own at all tokens of the text in which a token drawn from the generator
    stands in each of these places. One that happens to be the text's own counts as its own; no gradient goes through
    what was drawn (Clark et al., 2020, ELECTRA, section 2). Both losses are means over their tokens, as in the
    published code."""

    kind: Literal["replaced_tokens"] = "replaced_tokens"
    causal: ClassVar[bool] = False
    has_generator: ClassVar[bool] = True
    share: float = Field(0.15, gt=0, le=1)
    """Share of the tokens that the generator proposes."""
    mask_token: str = Field("[MASK]", min_length=1)
    """The special token that it reads in their places."""
    weight: float = Field(50.0, gt=0)
    """Factor of the second loss."""

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
    """What makes a source and a target of each text; windows are as long as fits into model.context_length then."""

    causal: ClassVar[bool] = True
    has_source: ClassVar[bool] = True
    packs_documents: ClassVar[bool] = True

    def source_length(self, length: int) -> int:
        """Return the most tokens of a source that is made of a text of `length`, of which no target has more."""
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
    """-ln p(y_(t+1) | y_1 ... y_t, source): the source is the text with spans of it left out, each replaced by a
    sentinel of its own; the target is what was left out, each span behind its sentinel (Raffel et al., 2019, T5,
    sections 3.1.4 and 3.3.4). Windows of text are as long as fits into model.context_length when they are corrupted."""

    kind: Literal["span_corruption"] = "span_corruption"
    share: float = Field(0.15, gt=0, le=0.5)
    """Share of the tokens that are left out; of more than half, the target would be longer than the source."""
    mean_length: float = Field(3.0, ge=1, examples=[5.0])
    """Mean length of what is left out in one place, in tokens."""
    sentinel: str = Field("<extra_id_{}>", min_length=1, examples=["<span_{}>"])
    """The special tokens that stand for spans, with {} for their number."""
    num_sentinels: Count = Field(100, examples=[32])
    """How many there are; no more spans are left out of a text."""

    @property
    def special_tokens(self) -> tuple[str, ...]:
        return _numbered(self.sentinel, self.num_sentinels)

    def spans(self, length: int) -> tuple[int, int]:
        """Return how many tokens are left out of a text of `length`, and in how many spans."""
        return spans_of(length, self.share, self.mean_length, self.num_sentinels)

    def target_length(self, context_length: int) -> int:
        out, spans = self.spans(self.window_length(context_length))
        return out + spans + 1

    def source_length(self, length: int) -> int:
        """Return the number of tokens kept, sentinels, and the one that ends it."""
        out, spans = self.spans(length)
        return length - out + spans + 1

    @property
    def least_context(self) -> int:
        # One token is kept, a sentinel stands for another, and one ends the text.
        return 3

    def contradictions(self, sizes: ModelSizes) -> Iterator[str]:
        yield from _unnumbered(self.sentinel, self.num_sentinels)


class Denoiser(Spec):
    """One way to leave out spans, of those that a mixture draws from."""

    mode: str = "[R]"
    """The special token that the source begins with, which tells how it was made; empty: none."""
    share: float = Field(0.15, gt=0, le=0.5)
    """Share of the tokens that are left out."""
    mean_length: float = Field(3.0, ge=1)
    """Mean length of what is left out in one place, in tokens; of `at_end`, it follows from the share."""
    at_end: bool = False
    """Leave out the end of the text alone, of a length that is drawn uniformly, with the share as its mean."""
    weight: float = Field(1.0, gt=0)
    """How often it is drawn, relative to the others."""


UL2_DENOISERS = (
    Denoiser(mode="[R]", share=0.15, mean_length=3.0),
    Denoiser(mode="[R]", share=0.15, mean_length=8.0),
    Denoiser(mode="[S]", share=0.25, at_end=True),
    Denoiser(mode="[X]", share=0.5, mean_length=3.0),
    Denoiser(mode="[X]", share=0.5, mean_length=8.0),
    Denoiser(mode="[X]", share=0.15, mean_length=64.0),
    Denoiser(mode="[X]", share=0.5, mean_length=64.0),
)
"""Regular, sequential and extreme ones (Tay et al., 2022, UL2, table 1)."""


class Denoising(FromText):
    """-ln p(y_(t+1) | y_1 ... y_t, source): spans of a text are left out as in `span_corruption`, by a denoiser that is
    drawn for it; the source begins with the token of that one's mode (Tay et al., 2022, UL2, section 3.1). Windows of
    text are as long as fits into model.context_length whichever is drawn."""

    kind: Literal["denoising"] = "denoising"
    denoisers: Annotated[tuple[Denoiser, ...], Field(strict=False, min_length=1)] = Field(
        UL2_DENOISERS, examples=[({"mode": "", "share": 0.5, "at_end": True},)]
    )
    """What is drawn from: tables of `mode`, the special token that the source begins with, or empty, `share` and
    `mean_length` of what is left out, `at_end`, to leave out the end of the text alone, and `weight`, how often it is
    drawn. By default the seven of UL2's table 1, all equally often."""
    sentinel: str = Field("<extra_id_{}>", min_length=1, examples=["<span_{}>"])
    """The special tokens that stand for spans, with {} for their number."""
    num_sentinels: Count = Field(100, examples=[32])
    """How many there are; no more spans are left out of a text."""

    @property
    def sentinels(self) -> tuple[str, ...]:
        """The special tokens that stand for spans."""
        return _numbered(self.sentinel, self.num_sentinels)

    @property
    def special_tokens(self) -> tuple[str, ...]:
        modes = dict.fromkeys(denoiser.mode for denoiser in self.denoisers if denoiser.mode)
        return (*modes, *self.sentinels)

    def spans(self, denoiser: Denoiser, length: int) -> tuple[int, int]:
        """Return the (mean) number of tokens a denoiser leaves out of a text, and of their spans."""
        most = 1 if denoiser.at_end else self.num_sentinels
        return spans_of(length, denoiser.share, denoiser.mean_length, most)

    def target_length(self, context_length: int) -> int:
        """Return how many tokens a decoder reads on average beside a source of so many, rounded up."""
        length = self.window_length(context_length)
        total = sum(d.weight for d in self.denoisers)
        return math.ceil(
            sum(d.weight * (sum(self.spans(d, length)) + 1) for d in self.denoisers) / total
        )

    def source_length(self, length: int) -> int:
        return max(self._source_length(denoiser, length) for denoiser in self.denoisers)

    def _source_length(self, denoiser: Denoiser, length: int) -> int:
        """Return the tokens of a source: mode, tokens kept, sentinels, end."""
        out, spans = self.spans(denoiser, length)
        return bool(denoiser.mode) + length - (1 if denoiser.at_end else out) + spans + 1

    @property
    def least_context(self) -> int:
        # The mode, a token that is kept, a sentinel for another, and one that ends the text.
        return 4

    def contradictions(self, sizes: ModelSizes) -> Iterator[str]:
        yield from _unnumbered(self.sentinel, self.num_sentinels)
        if shared := {d.mode for d in self.denoisers} & {*self.sentinels}:
            yield f'denoisers: found the mode "{min(shared)}", which is a sentinel; expected another'


class TextInfilling(FromText):
    """-ln p(y_(t+1) | y_1 ... y_t, source): the target is a text; the source has its sentences in random order, and one
    mask token in the place of each span, of a length drawn from Poisson(mean_length); one of length 0 puts a mask
    token between two others (Lewis et al., 2019, BART, sections 2.2 and 5.1)."""

    kind: Literal["text_infilling"] = "text_infilling"
    share: float = Field(0.3, ge=0, le=1)
    """Share of the tokens that are masked; 0: none are."""
    mean_length: float = Field(3.0, gt=0, examples=[5.0])
    """Mean of the Poisson distribution that lengths of spans are drawn from, in tokens."""
    permute_sentences: bool = True
    """Put the sentences of the source in random order; one ends with ".", "!" or "?" before a blank."""
    mask_token: str = Field("<mask>", min_length=1, examples=["[MASK]"])
    """The special token that stands for a span."""

    @property
    def special_tokens(self) -> tuple[str, ...]:
        return (self.mask_token,)


class GapSentences(FromText):
    """-ln p(y_(t+1) | y_1 ... y_t, source): the target is the principal sentences of a text, in their order; the source
    is the text with a mask token in the place of each (Zhang et al., 2019, PEGASUS, section 3.1). Principal are those
    whose words are most alike those of the rest: the largest F1 of ROUGE-1, each word counted once and each sentence
    by itself ("Ind-Uniq", as in Guo et al., 2022, LongT5, section 3.2)."""

    kind: Literal["gap_sentences"] = "gap_sentences"
    share: float = Field(0.2, gt=0, le=1, examples=[0.3])
    """Share of the sentences that are principal ones, at least one; a sentence ends with ".", "!" or "?" before a
    blank."""
    mask_token: str = Field("<mask>", min_length=1, examples=["[MASK]"])
    """The special token that stands for a sentence."""

    @property
    def special_tokens(self) -> tuple[str, ...]:
        return (self.mask_token,)

    def target_length(self, context_length: int) -> int:
        """Return how many tokens a decoder reads beside a source of so many, of sentences that are equally long."""
        return math.ceil(self.share * self.window_length(context_length)) + 1


class SequenceToSequence(Objective):
    """-ln p(y_(t+1) | y_1 ... y_t, source) at each token of the target, its end included, of pairs of a source and a
    target, such as a sentence and its translation (Sutskever et al., 2014, section 2; Vaswani et al., 2017)."""

    kind: Literal["sequence_to_sequence"] = "sequence_to_sequence"
    causal: ClassVar[bool] = True
    has_source: ClassVar[bool] = True
    has_pairs: ClassVar[bool] = True

    @property
    def least_context(self) -> int:
        # A token, and the one that ends a text.
        return 2


OF_PAIRS: Objective = SequenceToSequence()
"""The objective that reads pairs of a source and a target."""


def spans_of(length: int, share: float, mean_length: float, most: int) -> tuple[int, int]:
    """Return the number of tokens left out of a text, at most half of them, and of their spans."""
    out = min(max(round(length * share), 1), max(1, length // 2))
    most = min(out, length - out, most)
    return out, max(1, min(round(out / mean_length), most))


def _numbered(name: str, number: int) -> tuple[str, ...]:
    return tuple(name.replace("{}", str(i)) for i in range(number))


def _unnumbered(sentinel: str, number: int) -> Iterator[str]:
    """Yield a line where spans would share a sentinel."""
    if "{}" not in sentinel and number > 1:
        yield f'sentinel: found "{sentinel}"; expected {{}} in it, for the number of the span'
