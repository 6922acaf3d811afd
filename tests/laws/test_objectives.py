"""Laws that hold for every objective: batches are a function of (seed, step) alone, and targets are of the text."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from archwright.data import batches as batching
from archwright.data.batches import Batches, BatchSource
from archwright.data.inputs import IGNORE, Batch, Inputs
from archwright.data.objectives import OBJECTIVES, Examples, MakeBatch, Vocabulary
from archwright.data.pair_text import PairBatches, PairText
from archwright.spec.objectives import MaskedTokens, Objective
from archwright.text.bpe import raw_bytes
from archwright.text.pairs import FilePairs, Pair
from archwright.text.tokenizer import Tokenizer

END, PAD, FIRST = 0, 199, 200
"""The end of a text, what padding is filled with, and the first special token of an objective."""
LENGTH, ROWS = 24, 8
DICE = np.random.default_rng(7)
TEXT = np.where(DICE.random(1500) < 0.07, END, DICE.integers(1, PAD, 1500))
ALL = [cls() for cls in OBJECTIVES]
"""Every objective with its defaults."""


def _vocabulary(objective: Objective) -> Vocabulary:
    special = {name: FIRST + i for i, name in enumerate(objective.special_tokens)}
    return Vocabulary(FIRST + len(special), END, {"<|endoftext|>": END, **special})


class Watched(Examples):
    """Examples that keep the text that each batch was made of."""

    def __init__(self, objective: Objective, vocabulary: Vocabulary) -> None:
        super().__init__(objective, vocabulary)
        self.vocabulary = vocabulary

    def batch(self, text: Inputs, *seed: int) -> Batch:
        self.text = text
        return super().batch(text, *seed)


def source(objective: Objective, seed: int = 0, packing: Any = "concat") -> tuple[BatchSource, Any]:
    """Return batches of an objective, and the examples that they are made by."""
    if not objective.has_pairs:
        examples = Watched(objective, _vocabulary(objective))
        return Batches(TEXT, LENGTH, ROWS, seed, packing, END, examples), examples
    tokenizer = Tokenizer(raw_bytes(["<|endoftext|>"]), "<|endoftext|>")
    pairs = [Pair("".join(w), "".join(w[::-1])) for w in DICE_WORDS]
    examples = Watched(objective, Vocabulary.of(tokenizer))
    text = PairText(FilePairs(pairs), tokenizer, LENGTH)
    return PairBatches(text, examples, ROWS, seed), examples


DICE_WORDS = [DICE.choice([*"abcdefghij"], DICE.integers(2, 12)).tolist() for _ in range(60)]


def content(batch: Batch) -> list[Any]:
    """Return all that a batch holds."""
    given = batch.inputs.given()
    return [[name, given[name].tolist()] for name in sorted(given)] + [batch.targets.tolist()]


def a_function_of_seed_and_step(objective: Objective) -> None:
    """Whatever was asked for before, and by whom."""
    forth, back = source(objective)[0], source(objective)[0]
    first = {step: content(forth.at(step)) for step in range(4)}
    assert first == {step: content(back.at(step)) for step in reversed(range(4))}
    other = source(objective, seed=1)[0]
    assert len({str(c) for c in [*first.values(), content(other.at(0))]}) == 5


def the_same_for_any_number_of_processes(objective: Objective) -> None:
    whole = source(objective)[0].at(2)
    for number in (2, 4):
        batches = source(objective)[0]
        parts = [batches.at(2, rank=rank, world_size=number) for rank in range(number)]
        for name, array in whole.inputs.given().items():
            found = np.concatenate([part.inputs.given()[name] for part in parts])
            assert np.array_equal(found, array), f"{name} of {number} processes"
        assert np.array_equal(np.concatenate([part.targets for part in parts]), whole.targets)


def targets_are_of_the_text_in_its_order(objective: Objective) -> None:
    batches, examples = source(objective)
    for step in range(3):
        batch = batches.at(step)
        texts = examples.text.decoder_tokens if objective.has_pairs else examples.text.tokens
        for targets, text in zip(batch.targets, texts, strict=True):
            end = examples.vocabulary.end_of_text
            special = {*examples.vocabulary.special_ids.values()} - {end}
            wanted = [t for t in targets.tolist() if t != IGNORE and t not in special]
            assert wanted, "nothing is to be predicted"
            left: Iterator[int] = iter([*text.tolist(), end])  # which ends a target
            assert all(t in left for t in wanted), "not of the text"


def padding_is_no_text(objective: Objective) -> None:
    """What stands in the place of padding is neither read nor predicted."""
    if objective.has_pairs:
        return
    examples = Examples(objective, _vocabulary(objective))
    for seed in range(5):
        real = np.arange(LENGTH) < np.array([[LENGTH], [LENGTH - 9], [2]])
        tokens = np.where(real, DICE.integers(1, PAD, real.shape), PAD)
        batch = examples.batch(Inputs(tokens, padding_mask=real), seed)
        read, kept = batch.inputs.tokens, batch.inputs.padding_mask
        assert PAD not in (read if kept is None else read[kept])
        assert PAD not in batch.targets


def packed_is_the_same_text(objective: Objective) -> None:
    """Where documents do not see each other, what is read and predicted stays what it is."""
    if objective.has_source:
        return
    whole, packed = (source(objective, packing=p)[0].at(1) for p in ("concat", "document_mask"))
    segments, positions = packed.inputs.segment_ids, packed.inputs.position_ids
    starts = positions == 0
    assert (np.diff(segments) == starts[:, 1:]).all()
    assert np.array_equal(packed.inputs.tokens, whole.inputs.tokens)
    if not objective.has_prefix:  # each document begins with one of its own
        assert np.array_equal(packed.targets, whole.targets)


LAWS = (
    *(a_function_of_seed_and_step, the_same_for_any_number_of_processes),
    *(targets_are_of_the_text_in_its_order, padding_is_no_text, packed_is_the_same_text),
)


@pytest.mark.parametrize("law", LAWS, ids=lambda law: law.__name__)
@pytest.mark.parametrize("objective", ALL, ids=lambda objective: objective.kind)
def test_every_objective_is_lawful(objective: Objective, law: Callable[[Objective], None]) -> None:
    law(objective)


Change = Callable[[MakeBatch], MakeBatch]


def _changed(patch: pytest.MonkeyPatch, change: Change) -> None:
    part = OBJECTIVES[MaskedTokens]
    patch.setitem(OBJECTIVES, MaskedTokens, lambda spec, words: change(part(spec, words)))


def draws_that_go_on_from_batch_to_batch(patch: pytest.MonkeyPatch) -> None:
    generator = np.random.default_rng(0)
    _changed(patch, lambda make: lambda text, _: make(text, generator))


def draws_of_each_process_by_itself(patch: pytest.MonkeyPatch) -> None:
    at = Batches.at

    def alone(self: Batches, step: int, *, rank: int = 0, world_size: int = 1) -> Batch:
        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(self, "batch_size", self.batch_size // world_size)
            return at(self, step * world_size + rank)

    patch.setattr(Batches, "at", alone)


def targets_of_another_row(patch: pytest.MonkeyPatch) -> None:
    def change(make: MakeBatch) -> MakeBatch:
        def other(text: Inputs, generator: np.random.Generator) -> Batch:
            batch = make(text, generator)
            return replace(batch, targets=np.roll(batch.targets, 1, axis=0))

        return other

    _changed(patch, change)


def padding_that_is_chosen(patch: pytest.MonkeyPatch) -> None:
    _changed(patch, lambda make: lambda text, dice: make(replace(text, padding_mask=None), dice))


def documents_that_change_the_draws(patch: pytest.MonkeyPatch) -> None:
    def change(make: MakeBatch) -> MakeBatch:
        def other(text: Inputs, generator: np.random.Generator) -> Batch:
            if text.segment_ids is not None:
                generator.random()
            return make(text, generator)

        return other

    _changed(patch, change)


def documents_that_begin_too_late(patch: pytest.MonkeyPatch) -> None:
    documents = batching._documents

    def late(tokens: Any, end_of_text: int) -> Any:
        positions, ids = documents(tokens, end_of_text)
        return positions, np.roll(ids, 1, axis=1)

    patch.setattr(batching, "_documents", late)


FAULTS = (
    (draws_that_go_on_from_batch_to_batch, a_function_of_seed_and_step),
    (draws_of_each_process_by_itself, the_same_for_any_number_of_processes),
    (targets_of_another_row, targets_are_of_the_text_in_its_order),
    (padding_that_is_chosen, padding_is_no_text),
    (documents_that_change_the_draws, packed_is_the_same_text),
    (documents_that_begin_too_late, packed_is_the_same_text),
)


@pytest.mark.parametrize(("plant", "law"), FAULTS, ids=lambda value: value.__name__)
def test_a_planted_fault_is_caught(
    plant: Callable[[pytest.MonkeyPatch], None],
    law: Callable[[Objective], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    law(MaskedTokens())
    plant(monkeypatch)
    with pytest.raises(AssertionError):
        law(MaskedTokens())
