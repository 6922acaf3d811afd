"""Training objectives: windows of text become inputs and targets."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from archwright.data.corruption import Row, Sentences, corrupted, infilled
from archwright.data.inputs import IGNORE, Array, Batch, Inputs
from archwright.parts.registry import Registry
from archwright.spec.errors import UserError, nearest
from archwright.spec.objectives import (
    Denoising,
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
"""Function from windows of text and a random generator to a batch.

Windows are `tokens` [batch, window_length], with `segment_ids` and `position_ids` for document masks, and a
`padding_mask` if lengths differ. Windows of pairs have sources as `tokens` and targets as `decoder_tokens`."""


class Vocabulary(NamedTuple):
    """The properties of a tokenizer that objectives require."""

    size: int = 0
    """Largest id + 1."""
    end_of_text: int = 0
    """Id at the start of every document."""
    special_ids: Mapping[str, int] = MappingProxyType({})
    """Ids of special tokens, which never occur in texts, by name."""
    decode: Callable[[list[int]], str] = lambda ids: ""
    """Function from ids to text."""
    frame: tuple[tuple[int, ...], tuple[int, ...]] | None = None
    """Ids before and after an encoder input; None: only `end_of_text`, after the input."""
    decoder_start: tuple[int, ...] | None = None
    """First input ids of a decoder with an encoder; None: `end_of_text`."""

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> Self:
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
        prefix, suffix = self.frame or ((), (self.end_of_text,))
        start, *first = self.decoder_start or (self.end_of_text,)
        return Ends(prefix, suffix, start, tuple(first))

    def sentinels(self, names: Sequence[str]) -> Row:
        return np.array([self.special_id(name, "objective.sentinel") for name in names])

    def special_id(self, name: str, key: str) -> int:
        """Return the id of the special token `name`, the value of the user's setting `key`.

        Raises:
            UserError: the tokenizer has no such special token.
        """
        if name not in self.special_ids:
            raise UserError(
                f'{key}: found "{name}"; expected a special token of the tokenizer, or add it to '
                f"data.tokenizer.special_tokens.{nearest(name, self.special_ids)}"
            )
        return self.special_ids[name]


class Ends(NamedTuple):
    """Special tokens around sources and targets."""

    prefix: tuple[int, ...]
    """Ids before a source."""
    suffix: tuple[int, ...]
    """Ids after a source, and after a target."""
    start: int
    """First input id of the decoder."""
    first: tuple[int, ...]
    """Ids before a target."""

    @property
    def end(self) -> int:
        """Id after the source and the target of a corrupted text."""
        return self.suffix[0]


class Examples:
    """Builds batches of an objective from windows of text.

    Raises:
        UserError: no implementation is registered for this kind of objective, or it needs special tokens that the
            vocabulary lacks.
    """

    def __init__(
        self, objective: Objective | None = None, vocabulary: Vocabulary | None = None
    ) -> None:
        self.objective = objective or NextToken()
        self._make: MakeBatch = OBJECTIVES.make(self.objective, vocabulary or Vocabulary())

    def batch(self, text: Inputs, *seed: int) -> Batch:
        """Build a batch, a pure function of the windows and the seed.

        Raises:
            UserError: a user-defined objective returned something other than a valid batch.
        """
        batch = self._make(text, np.random.default_rng(seed))
        if not isinstance(batch, Batch):
            raise self._error(f"a {type(batch).__name__}; expected a Batch of inputs and targets")
        tokens = batch.inputs.decoder_tokens
        if tokens is None:
            tokens = batch.inputs.tokens
        if batch.targets.shape != tokens.shape:
            raise self._error(
                f"targets of shape {list(batch.targets.shape)}; expected the shape of the tokens, {list(tokens.shape)}"
            )
        return batch.map(np.ascontiguousarray)

    def _error(self, problem: str) -> UserError:
        return UserError(f'objective.kind = "{self.objective.kind}": its part gave {problem}')


def next_token(spec: NextToken, vocabulary: Vocabulary) -> MakeBatch:
    """Predict each next token: inputs x_1 ... x_n, targets x_2 ... x_(n+1)."""

    def make(text: Inputs, generator: np.random.Generator) -> Batch:
        inputs, targets = text.map(lambda array: array[:, :-1]), text.tokens[:, 1:]
        if text.padding_mask is None:
            return Batch(inputs, targets)
        followed = text.padding_mask[:, 1:]  # the last token of a row is a target only
        return Batch(replace(inputs, padding_mask=followed), np.where(followed, targets, IGNORE))

    return make


def prefix_lm(spec: PrefixLM, vocabulary: Vocabulary) -> MakeBatch:
    """Predict each next token after a prefix of random length.

    With document masks, all documents of a row have a prefix of the same length.
    """
    follow = next_token(NextToken(), vocabulary)

    def make(text: Inputs, generator: np.random.Generator) -> Batch:
        batch = follow(text, generator)
        inputs, shape = batch.inputs, batch.targets.shape
        index = np.broadcast_to(np.arange(shape[1]), shape)
        if inputs.position_ids is not None:
            index = inputs.position_ids
        real = True if inputs.padding_mask is None else inputs.padding_mask
        longest = np.where(real, index + 1, 0).max(axis=1)  # length of each row's longest document
        share = generator.uniform(spec.shortest, spec.longest, len(longest))
        # At least one token is read before the first prediction, and at least one is predicted.
        lengths = np.clip(np.rint(share * longest), 1, np.maximum(longest, 1)).astype(np.int64)
        follows = index + 1 >= lengths[:, None]
        targets = np.where(follows, batch.targets, IGNORE)
        return Batch(replace(inputs, prefix_lengths=lengths), targets)

    return make


def masked_tokens(spec: MaskedTokens, vocabulary: Vocabulary) -> MakeBatch:
    """Predict random tokens at their positions, but no special tokens or padding.

    If rows consist of two segments, each window is first turned into such a row.
    """
    mask_id = vocabulary.special_id(spec.mask_token, "objective.mask_token")
    special_ids = list(vocabulary.special_ids.values())
    ends = (0, 0)
    if spec.judges_rows:
        ends = (
            vocabulary.special_id(spec.class_token, "objective.class_token"),
            vocabulary.special_id(spec.separator_token, "objective.separator_token"),
        )

    def make(text: Inputs, generator: np.random.Generator) -> Batch:
        classes = None
        if spec.judges_rows:
            rows = _unpadded(text.tokens, text.padding_mask)
            text, classes = _in_segments(rows, spec.segments == "order", *ends, generator)
        tokens = text.tokens
        chosen = _chosen(tokens.shape, spec, generator) & ~np.isin(tokens, special_ids)
        if text.padding_mask is not None:
            chosen &= text.padding_mask
        draws = generator.random(tokens.shape)
        noise = generator.integers(vocabulary.size, size=tokens.shape)
        replaced = np.where(draws < spec.kept + spec.random, noise, mask_id)
        hidden = np.where(draws < spec.kept, tokens, replaced)
        inputs = replace(text, tokens=np.where(chosen, hidden, tokens))
        return Batch(inputs, np.where(chosen, tokens, IGNORE), classes)

    return make


def replaced_tokens(spec: ReplacedTokens, vocabulary: Vocabulary) -> MakeBatch:
    """Like `masked_tokens`, but every chosen token becomes the mask token.

    The inputs also contain a random number per masked position, for sampling the generator's token.
    """
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
    """Choose a share of the positions, in runs of 1 to `longest_run` neighbours."""
    if spec.longest_run == 1:
        return generator.random(shape) < spec.share
    weights = 1 / np.arange(1, spec.longest_run + 1)
    # longer[n - 1] is the share of runs with n positions or more.
    longer = np.cumsum(weights[::-1])[::-1] / weights.sum()
    # Bisect the probability of a start, for which P(no run reaches a position) = 1 - share.
    low, high = 0.0, 1.0
    for _ in range(60):
        start = (low + high) / 2
        low, high = (start, high) if 1 - np.prod(1 - start * longer) < spec.share else (low, start)
    begins = generator.random(shape) < start
    lengths = generator.choice(len(weights), size=shape, p=weights / weights.sum()) + 1
    chosen = begins.copy()
    for further in range(1, spec.longest_run):
        chosen[:, further:] |= (begins & (lengths > further))[:, :-further]
    return chosen


def _in_segments(
    rows: Sequence[Row], order: bool, first: int, separator: int, generator: np.random.Generator
) -> tuple[Inputs, Row]:
    """Split each row into two segments, a and b.

    In half of the rows, b does not follow a: if `order`, they are swapped, otherwise b is the end of another row.

    Returns:
        Rows [first, a ..., separator, b ..., separator] with token types; 0 for each row with b after a, else 1.
    """
    number = len(rows)
    apart = generator.random(number) < 0.5
    cuts = [
        max(1, int(share * len(row)))
        for share, row in zip(generator.random(number), rows, strict=True)
    ]
    partners = (np.arange(number) + generator.integers(1, max(number, 2), number)) % number
    if not order:
        apart &= partners != np.arange(number)
    tokens, types = [], []
    for row, cut, partner, is_apart in zip(rows, cuts, partners, apart, strict=True):
        a, b = row[:cut], row[cut:]
        if is_apart and order:
            a, b = b, a
        elif is_apart:
            b = rows[partner][max(0, len(rows[partner]) - len(b)) :] if len(b) else b
        tokens.append(np.concatenate([[first], a, [separator], b, [separator]]))
        types.append(np.repeat([0, 1], [len(a) + 2, len(b) + 1]))
    filled, padding_mask = padded(tokens, separator)
    inputs = Inputs(filled, padding_mask=padding_mask, token_type_ids=padded(types, 0)[0])
    return inputs, apart.astype(np.int64)


def span_corruption(spec: SpanCorruption, vocabulary: Vocabulary) -> MakeBatch:
    """Replace spans by sentinels in the source and predict them; both sides have an end token."""
    sentinels = vocabulary.sentinels(spec.special_tokens)

    def pair(text: Row, generator: np.random.Generator) -> Pair:
        return corrupted(text, spec.spans(len(text)), sentinels, generator)

    return of_texts(pair, spec.source_length, vocabulary.ends)


def denoising(spec: Denoising, vocabulary: Vocabulary) -> MakeBatch:
    """Like `span_corruption`, with a random denoiser for each text. The source starts with its mode token."""
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

    return of_texts(pair, spec.source_length, vocabulary.ends)


def text_infilling(spec: TextInfilling, vocabulary: Vocabulary) -> MakeBatch:
    """Predict a text from a source with masked spans; both sides have an end token."""
    mask_id = vocabulary.special_id(spec.mask_token, "objective.mask_token")
    sentences = None
    if spec.permute_sentences:
        sentences = Sentences([vocabulary.decode([i]) for i in range(vocabulary.size)])

    def pair(text: Row, generator: np.random.Generator) -> Pair:
        order = sentences.permuted(text, generator) if sentences else text
        return infilled(order, spec.share, spec.mean_length, mask_id, generator), text

    return of_texts(pair, spec.source_length, vocabulary.ends)


def sequence_to_sequence(spec: SequenceToSequence, vocabulary: Vocabulary) -> MakeBatch:
    """Predict the target of each pair; the tokenizer's special tokens frame both sides."""
    ends = vocabulary.ends

    def make(text: Inputs, generator: np.random.Generator) -> Batch:
        sources = _unpadded(text.tokens, text.padding_mask)
        targets = _unpadded(text.decoder_tokens, text.decoder_padding_mask)
        framed = (
            [np.concatenate([prefix, row, ends.suffix]).astype(np.int64) for row in rows]
            for prefix, rows in ((ends.prefix, sources), (ends.first, targets))
        )
        return _sequence_to_sequence([[pair] for pair in zip(*framed, strict=True)], ends.start)

    return make


Pair = tuple[Row, Row]
"""A source and its target."""


def of_texts(
    pair: Callable[[Row, np.random.Generator], Pair],
    source_length: Callable[[int], int],
    ends: Ends,
) -> MakeBatch:
    """Build batches by applying `pair` to each row, with end tokens.

    With document masks, `pair` is applied to each document, and a row's pairs are packed up to the source length.
    """

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
            packed.append(_packed(documents, lambda document: ended(document, generator), room))
        return _sequence_to_sequence(packed, ends.start, packed=True)

    return make


def _packed(documents: Sequence[Row], pair: Callable[[Row], Pair], room: int) -> list[Pair]:
    """Return the pairs of the first documents that fit into `room`; the last document is cut to fit."""
    pairs: list[Pair] = []
    left = np.array([room, room])
    for document in documents:
        while len(document):
            candidate = pair(document)
            lengths = np.array([*map(len, candidate)])
            if (excess := int((lengths - left).max())) <= 0:
                pairs.append(candidate)
                left -= lengths
                break
            document = document[:-excess]
        else:
            break
    return pairs


def _unpadded(tokens: Array, padding_mask: Array | None) -> list[Row]:
    """Return the tokens of each row without padding."""
    if padding_mask is None:
        return [*tokens]
    return [row[real] for row, real in zip(tokens, padding_mask, strict=True)]


def _sequence_to_sequence(
    rows: Sequence[Sequence[Pair]], start: int, *, packed: bool = False
) -> Batch:
    """Build a padded batch; each row consists of pairs.

    The decoder reads `start`, then the target without its last token. Packed pairs do not attend to each other.
    """
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
    """Return each token's text index within its row; padding has an unused index."""
    ids = [np.repeat(np.arange(len(row)), [*map(len, row)]) for row in rows]
    return padded(ids, max(len(row) for row in rows))[0]


def padded(rows: Sequence[Row], fill: int) -> tuple[Row, NDArray[np.bool_] | None]:
    """Return rows padded to the longest, and their padding mask, None without padding."""
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
        SequenceToSequence: sequence_to_sequence,
    },
)
"""Functions of (spec, vocabulary) that return a `MakeBatch`, by objective."""
