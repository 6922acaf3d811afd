"""Objectives: from windows of text to what a model reads and what it is to predict."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from archwright.data.corruption import Row, Sentences, corrupted, infilled, principal
from archwright.data.inputs import IGNORE, Array, Batch, Inputs
from archwright.parts.registry import Registry
from archwright.spec.errors import UserError, nearest
from archwright.spec.objectives import (
    Denoising,
    GapSentences,
    MaskedTokens,
    NextToken,
    Objective,
    PrefixLM,
    ReplacedTokens,
    SequenceToSequence,
    SpanCorruption,
    TextInfilling,
)
from archwright.text.tokenizer import Tokenizer

MakeBatch = Callable[[Inputs, np.random.Generator], Batch]
"""Makes windows of text into inputs and targets. The windows are tokens [batch, window_length], with `segment_ids` and
`position_ids` where documents do not see each other, and a `padding_mask` where they are of several lengths; of pairs,
the sources are `tokens` and the targets `decoder_tokens`. What is drawn, is drawn from the generator."""


class Vocabulary(NamedTuple):
    """The tokenizer, as far as an objective may know it."""

    size: int = 0
    """One more than the largest id."""
    end_of_text: int = 0
    """The id that every document starts from."""
    special_ids: Mapping[str, int] = MappingProxyType({})
    """The ids of special tokens, which no text has, by name."""
    decode: Callable[[list[int]], str] = lambda ids: ""
    """Returns the text of ids."""
    frame: tuple[tuple[int, ...], tuple[int, ...]] | None = None
    """The ids before and behind what an encoder reads; None: the end of a text behind it."""
    decoder_start: tuple[int, ...] | None = None
    """What a decoder beside an encoder reads first; None: the end of a text."""

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> Self:
        """Return that of a tokenizer."""
        return cls(
            tokenizer.vocab_size,
            tokenizer.begin_of_text,
            tokenizer.special_ids,
            tokenizer.decode,
            tokenizer.frame,
            tokenizer.decoder_start,
        )

    @property
    def ends(self) -> "Ends":
        """What stands around the texts of two stacks."""
        before, behind = self.frame or ((), (self.end_of_text,))
        start, *first = self.decoder_start or (self.end_of_text,)
        return Ends(before, behind, start, tuple(first))

    def sentinels(self, names: Sequence[str]) -> Row:
        """Return the ids of special tokens that stand for spans."""
        return np.array([self.special_id(name, "objective.sentinel") for name in names])

    def special_id(self, name: str, key: str) -> int:
        """Return the id of a special token.

        Raises:
            UserError: there is none of that name, which the user gave as the value of `key`.
        """
        if name not in self.special_ids:
            raise UserError(
                f'{key}: found "{name}", which is no special token of the tokenizer; expected one of its own, or '
                f"data.tokenizer.special_tokens with it.{nearest(name, self.special_ids)}"
            )
        return self.special_ids[name]


class Ends(NamedTuple):
    """What stands around a source, and a target."""

    before: tuple[int, ...]
    """What an encoder reads before a source."""
    behind: tuple[int, ...]
    """What ends a source, and a target."""
    start: int
    """What a decoder reads first."""
    first: tuple[int, ...]
    """What a target begins with."""

    @property
    def end(self) -> int:
        """The token that ends a text that is all of its own."""
        return self.behind[0]


class Examples:
    """Makes windows of text into batches by an objective.

    Raises:
        UserError: an objective without a part, or one that the vocabulary does not fit.
    """

    def __init__(
        self, objective: Objective | None = None, vocabulary: Vocabulary | None = None
    ) -> None:
        self.objective = objective or NextToken()
        self._make: MakeBatch = OBJECTIVES.make(self.objective, vocabulary or Vocabulary())

    def batch(self, text: Inputs, *seed: int) -> Batch:
        """Return the batch that windows of text become: a pure function of both.

        Raises:
            UserError: the objective's part, one from outside, gives something else.
        """
        made = self._make(text, np.random.default_rng(seed))
        if not isinstance(made, Batch):
            raise self._refusal(f"a {type(made).__name__}; expected a Batch of inputs and targets")
        read = (
            made.inputs.tokens if made.inputs.decoder_tokens is None else made.inputs.decoder_tokens
        )
        if made.targets.shape != read.shape:
            raise self._refusal(
                f"targets of shape {list(made.targets.shape)}; expected that of the tokens that are read, "
                f"{list(read.shape)}"
            )
        return made.map(np.ascontiguousarray)

    def _refusal(self, what: str) -> UserError:
        return UserError(f'objective.kind = "{self.objective.kind}": its part gave {what}')


def next_token(spec: NextToken, vocabulary: Vocabulary) -> MakeBatch:
    """The targets are the tokens that follow: inputs x_1 ... x_n, targets x_2 ... x_(n+1)."""

    def make(text: Inputs, generator: np.random.Generator) -> Batch:
        inputs, targets = text.map(lambda array: array[:, :-1]), text.tokens[:, 1:]
        if text.padding_mask is None:
            return Batch(inputs, targets)
        followed = text.padding_mask[:, 1:]  # the last token of a row is a target only
        return Batch(replace(inputs, padding_mask=followed), np.where(followed, targets, IGNORE))

    return make


def prefix_lm(spec: PrefixLM, vocabulary: Vocabulary) -> MakeBatch:
    """The targets are the tokens that follow, of those behind the prefix alone; where documents do not see each other,
    each begins with a prefix of the row's length."""
    follow = next_token(NextToken(), vocabulary)

    def make(text: Inputs, generator: np.random.Generator) -> Batch:
        batch = follow(text, generator)
        inputs, shape = batch.inputs, batch.targets.shape
        index = np.broadcast_to(np.arange(shape[1]), shape)
        if inputs.position_ids is not None:
            index = inputs.position_ids
        real = True if inputs.padding_mask is None else inputs.padding_mask
        most = np.where(real, index + 1, 0).max(axis=1)  # what the longest document of a row has
        share = generator.uniform(spec.shortest, spec.longest, len(most))
        # One token at least begins a text, and one at least is predicted.
        lengths = np.clip(np.rint(share * most), 1, np.maximum(most, 1)).astype(np.int64)
        behind = index + 1 >= lengths[:, None]
        targets = np.where(behind, batch.targets, IGNORE)
        return Batch(replace(inputs, prefix_lengths=lengths), targets)

    return make


def masked_tokens(spec: MaskedTokens, vocabulary: Vocabulary) -> MakeBatch:
    """The targets are the tokens that were chosen, at their own places; special tokens and padding are never chosen.
    Rows of two segments are made of a window each, before tokens are chosen."""
    mask_id = vocabulary.special_id(spec.mask_token, "objective.mask_token")
    special_ids = list(vocabulary.special_ids.values())
    ends = (0, 0)
    if spec.judges_rows:
        ends = (
            vocabulary.special_id(spec.class_token, "objective.class_token"),
            vocabulary.special_id(spec.separator_token, "objective.separator_token"),
        )

    def make(text: Inputs, generator: np.random.Generator) -> Batch:
        judged = None
        if spec.judges_rows:
            rows = _unpadded(text.tokens, text.padding_mask)
            text, judged = _in_segments(rows, spec.segments == "order", *ends, generator)
        tokens = text.tokens
        chosen = _chosen(tokens.shape, spec, generator) & ~np.isin(tokens, special_ids)
        if text.padding_mask is not None:
            chosen &= text.padding_mask
        how = generator.random(tokens.shape)
        noise = generator.integers(vocabulary.size, size=tokens.shape)
        replaced = np.where(how < spec.kept + spec.random, noise, mask_id)
        hidden = np.where(how < spec.kept, tokens, replaced)
        inputs = replace(text, tokens=np.where(chosen, hidden, tokens))
        return Batch(inputs, np.where(chosen, tokens, IGNORE), judged)

    return make


def replaced_tokens(spec: ReplacedTokens, vocabulary: Vocabulary) -> MakeBatch:
    """As of `masked_tokens`, all of them masked, with the number that the token of each place is drawn by."""
    masks = MaskedTokens(share=spec.share, kept=0.0, random=0.0, mask_token=spec.mask_token)
    masked = masked_tokens(masks, vocabulary)

    def make(text: Inputs, generator: np.random.Generator) -> Batch:
        batch = masked(text, generator)
        numbers = generator.random(batch.targets.shape, np.float32)
        draws = np.where(batch.targets == IGNORE, np.float32(-1), numbers)
        return replace(batch, inputs=replace(batch.inputs, draws=draws))

    return make


def _chosen(
    shape: tuple[int, ...], spec: MaskedTokens, generator: np.random.Generator
) -> NDArray[np.bool_]:
    """Choose a share of the places, in runs of neighbours where they may be longer than one."""
    if spec.longest_run == 1:
        return generator.random(shape) < spec.share
    weights = 1 / np.arange(1, spec.longest_run + 1)
    # The share of runs that have n places or more.
    longer = np.cumsum(weights[::-1])[::-1] / weights.sum()
    # A place is left out where none of the runs that might begin at it or before reach it.
    low, high = 0.0, 1.0
    for _ in range(60):
        start = (low + high) / 2
        low, high = (start, high) if 1 - np.prod(1 - start * longer) < spec.share else (low, start)
    begins = generator.random(shape) < start
    lengths = generator.choice(len(weights), size=shape, p=weights / weights.sum()) + 1
    found = begins.copy()
    for further in range(1, spec.longest_run):
        found[:, further:] |= (begins & (lengths > further))[:, :-further]
    return found


def _in_segments(
    rows: Sequence[Row], order: bool, first: int, separator: int, generator: np.random.Generator
) -> tuple[Inputs, Row]:
    """Cut each row in two, and let half of them not belong together: the second segment is the end of another row, or,
    with `order`, the two change places. A row that is alone keeps its end.

    Returns rows [first, a ..., separator, b ..., separator] with their token types, and 1 for those that do not belong
    together.
    """
    number = len(rows)
    apart = generator.random(number) < 0.5
    cuts = [
        max(1, int(share * len(row)))
        for share, row in zip(generator.random(number), rows, strict=True)
    ]
    others = (np.arange(number) + generator.integers(1, max(number, 2), number)) % number
    if not order:
        apart &= others != np.arange(number)
    tokens, types = [], []
    for row, cut, other, is_apart in zip(rows, cuts, others, apart, strict=True):
        a, b = row[:cut], row[cut:]
        if is_apart and order:
            a, b = b, a
        elif is_apart:
            b = rows[other][max(0, len(rows[other]) - len(b)) :] if len(b) else b
        tokens.append(np.concatenate([[first], a, [separator], b, [separator]]))
        types.append(np.repeat([0, 1], [len(a) + 2, len(b) + 1]))
    filled, padding_mask = padded(tokens, separator)
    inputs = Inputs(filled, padding_mask=padding_mask, token_type_ids=padded(types, 0)[0])
    return inputs, apart.astype(np.int64)


def span_corruption(spec: SpanCorruption, vocabulary: Vocabulary) -> MakeBatch:
    """Source and target end with the token of the end of a text."""
    sentinels = vocabulary.sentinels(spec.special_tokens)

    def pair(text: Row, generator: np.random.Generator) -> Pair:
        return corrupted(text, spec.spans(len(text)), sentinels, generator)

    return _of_texts(pair, spec.source_length, vocabulary.ends)


def denoising(spec: Denoising, vocabulary: Vocabulary) -> MakeBatch:
    """As of `span_corruption`, with a denoiser drawn for each text, whose mode the source begins with."""
    sentinels = vocabulary.sentinels(spec.sentinels)
    modes = [
        [vocabulary.special_id(d.mode, "objective.denoisers")] if d.mode else []
        for d in spec.denoisers
    ]
    weights = np.array([d.weight for d in spec.denoisers])

    def pair(text: Row, generator: np.random.Generator) -> Pair:
        i = generator.choice(len(weights), p=weights / weights.sum())
        out, spans = spec.spans(spec.denoisers[i], len(text))
        if spec.denoisers[i].at_end:
            out = int(generator.integers(1, 2 * out))
        source, target = corrupted(text, (out, spans), sentinels, generator)
        return np.concatenate([np.array(modes[i], np.int64), source]), target

    return _of_texts(pair, spec.source_length, vocabulary.ends)


def text_infilling(spec: TextInfilling, vocabulary: Vocabulary) -> MakeBatch:
    """Source and target end with the token of the end of a text."""
    mask_id = vocabulary.special_id(spec.mask_token, "objective.mask_token")
    sentences = None
    if spec.permute_sentences:
        sentences = Sentences([vocabulary.decode([i]) for i in range(vocabulary.size)])

    def pair(text: Row, generator: np.random.Generator) -> Pair:
        order = sentences.permuted(text, generator) if sentences else text
        return infilled(order, spec.share, spec.mean_length, mask_id, generator), text

    return _of_texts(pair, spec.source_length, vocabulary.ends)


def gap_sentences(spec: GapSentences, vocabulary: Vocabulary) -> MakeBatch:
    """Source and target end with the token of the end of a text; nothing is drawn."""
    mask_id = vocabulary.special_id(spec.mask_token, "objective.mask_token")
    sentences = Sentences([vocabulary.decode([i]) for i in range(vocabulary.size)])

    def pair(text: Row, generator: np.random.Generator) -> Pair:
        parts = sentences.split(text)
        texts = [vocabulary.decode(part.tolist()) for part in parts]
        chosen = principal(texts, max(1, round(spec.share * len(parts))))
        kept = [np.array([mask_id]) if i in chosen else part for i, part in enumerate(parts)]
        return np.concatenate(kept), np.concatenate([parts[i] for i in chosen])

    return _of_texts(pair, spec.source_length, vocabulary.ends)


def sequence_to_sequence(spec: SequenceToSequence, vocabulary: Vocabulary) -> MakeBatch:
    """Source and target stand between what the tokenizer puts around them, such as the end of a text behind each."""
    ends = vocabulary.ends

    def make(text: Inputs, generator: np.random.Generator) -> Batch:
        sources = _unpadded(text.tokens, text.padding_mask)
        targets = _unpadded(text.decoder_tokens, text.decoder_padding_mask)
        framed = (
            [np.concatenate([before, row, ends.behind]).astype(np.int64) for row in rows]
            for before, rows in ((ends.before, sources), (ends.first, targets))
        )
        return _sequence_to_sequence([[pair] for pair in zip(*framed, strict=True)], ends.start)

    return make


Pair = tuple[Row, Row]
"""A source and its target."""


def _of_texts(
    pair: Callable[[Row, np.random.Generator], Pair],
    source_length: Callable[[int], int],
    ends: Ends,
) -> MakeBatch:
    """Return what makes a source and a target of each row, both ended; where documents do not see each other, of each
    document, one behind the other as far as there is room."""

    def ended(text: Row, generator: np.random.Generator) -> Pair:
        source, target = pair(text, generator)
        return np.append(source, ends.end), np.append(target, ends.end)

    def make(text: Inputs, generator: np.random.Generator) -> Batch:
        if text.segment_ids is None:
            rows = _unpadded(text.tokens, text.padding_mask)
            return _sequence_to_sequence([[ended(row, generator)] for row in rows], ends.start)
        room, packed = source_length(text.tokens.shape[1]), []
        for row, ids in zip(text.tokens, text.segment_ids, strict=True):
            documents = np.split(row, np.flatnonzero(np.diff(ids)) + 1)
            packed.append(_packed(documents, lambda each: ended(each, generator), room))
        return _sequence_to_sequence(packed, ends.start, packed=True)

    return make


def _packed(documents: Sequence[Row], pair: Callable[[Row], Pair], room: int) -> list[Pair]:
    """Return the pairs of documents, the last one cut to where there is room for it."""
    found: list[Pair] = []
    left = np.array([room, room])
    for document in documents:
        while len(document):
            made = pair(document)
            lengths = np.array([*map(len, made)])
            if (excess := int((lengths - left).max())) <= 0:
                found.append(made)
                left -= lengths
                break
            document = document[:-excess]
        else:
            break
    return found


def _unpadded(tokens: Array, padding_mask: Array | None) -> list[Row]:
    """Return the real tokens of each row."""
    if padding_mask is None:
        return [*tokens]
    return [row[real] for row, real in zip(tokens, padding_mask, strict=True)]


def _sequence_to_sequence(
    rows: Sequence[Sequence[Pair]], start: int, *, packed: bool = False
) -> Batch:
    """Return the batch of rows of pairs, padded to equal lengths: the decoder reads `start` and all of a target but its
    last token; pairs that are packed into a row do not see each other."""
    sources = [[source for source, _ in row] for row in rows]
    targets = [[target for _, target in row] for row in rows]
    read = [[np.concatenate([[start], target[:-1]]) for target in row] for row in targets]
    tokens, padding_mask = padded([*map(np.concatenate, sources)], start)
    decoder_tokens, decoder_mask = padded([*map(np.concatenate, read)], start)
    inputs = Inputs(
        tokens,
        segment_ids=_segment_ids(sources) if packed else None,
        padding_mask=padding_mask,
        decoder_tokens=decoder_tokens,
        decoder_segment_ids=_segment_ids(targets) if packed else None,
        decoder_padding_mask=decoder_mask,
    )
    return Batch(inputs, padded([*map(np.concatenate, targets)], IGNORE)[0])


def _segment_ids(rows: Sequence[Sequence[Row]]) -> Row:
    """Return the number of each token's text within its row, also of padding behind the last."""
    ids = [np.repeat(np.arange(len(row)), [*map(len, row)]) for row in rows]
    return padded(ids, max(len(row) for row in rows))[0]


def padded(rows: Sequence[Row], fill: int) -> tuple[Row, NDArray[np.bool_] | None]:
    """Return rows filled up to the longest, and which tokens are real; None where all are."""
    lengths = np.array([len(row) for row in rows])
    real = np.arange(lengths.max()) < lengths[:, None]
    filled = np.full(real.shape, fill, np.int64)
    filled[real] = np.concatenate(rows)
    return filled, None if real.all() else real


OBJECTIVES = Registry(
    Objective,
    "(spec, vocabulary)",
    Callable,
    {
        NextToken: next_token,
        PrefixLM: prefix_lm,
        MaskedTokens: masked_tokens,
        ReplacedTokens: replaced_tokens,
        SpanCorruption: span_corruption,
        Denoising: denoising,
        TextInfilling: text_infilling,
        GapSentences: gap_sentences,
        SequenceToSequence: sequence_to_sequence,
    },
)
"""Functions that return a function of (text, generator), which makes windows of text into a batch: see `MakeBatch`."""
