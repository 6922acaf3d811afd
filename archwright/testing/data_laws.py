"""Laws of objectives and tasks."""

from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np

from archwright.data.batches import Batches, BatchSource
from archwright.data.inputs import IGNORE, Batch, Inputs
from archwright.data.objectives import Examples, Vocabulary
from archwright.data.pair_text import PairBatches, PairText
from archwright.data.tasks import TASKS, Sampler
from archwright.spec.choice import ModelSizes
from archwright.spec.objectives import Objective
from archwright.spec.tasks import Task
from archwright.testing.law import Broken
from archwright.text.bpe import raw_bytes
from archwright.text.pairs import FilePairs, Pair
from archwright.text.tokenizer import Tokenizer

END, PAD, FIRST = 0, 199, 200
"""Ids of the end of a text, of padding, and of the first special token of an objective."""
LENGTH, ROWS = 24, 8
CONTEXT = 256
"""Context length of task examples."""
DRAWN = "draw from the generator that is given, and from nothing else"


class Watched(Examples):
    """Examples that store the text of the last batch."""

    text: Inputs

    def __init__(self, objective: Objective, vocabulary: Vocabulary) -> None:
        super().__init__(objective, vocabulary)
        self.vocabulary = vocabulary

    def batch(self, text: Inputs, *seed: int) -> Batch:
        self.text = text
        return super().batch(text, *seed)


def makes_batches(objective: Objective) -> None:
    """The objective makes batches of a text."""
    source(objective)[0].at(0)


def a_function_of_seed_and_step(objective: Objective) -> None:
    """A batch depends only on (seed, step)."""
    forth, back = source(objective)[0], source(objective)[0]
    first = {step: content(forth.at(step)) for step in range(4)}
    if first != {step: content(back.at(step)) for step in reversed(range(4))}:
        raise Broken(f"batches differ with the order in which they are made; {DRAWN}")
    other = content(source(objective, seed=1)[0].at(0))
    if len({str(batch) for batch in (*first.values(), other)}) < 5:
        raise Broken(
            "two steps or two seeds have the same batch; make it of the text that is given"
        )


def targets_are_of_the_text(objective: Objective) -> None:
    """Targets are tokens of the same sequence."""
    for row, targets, text in rows_of_targets(objective):
        if not targets:
            raise Broken(f"nothing of row {row} is to be predicted; not all targets may be IGNORE")
        if more := Counter(targets) - Counter(text):
            raise Broken(
                f"row {row} has the target {next(iter(more))}, which is not of its text; are rows mixed?"
            )


def rows_of_targets(objective: Objective) -> Iterator[tuple[int, list[int], list[int]]]:
    """Yield row number, targets and text of each sequence of three batches. Targets omit special tokens."""
    batches, examples = source(objective)
    end = examples.vocabulary.end_of_text
    special = {*examples.vocabulary.special_ids.values()} - {end}
    for step in range(3):
        batch = batches.at(step)
        texts = examples.text.decoder_tokens if objective.has_pairs else examples.text.tokens
        assert texts is not None
        for row, (targets, text) in enumerate(zip(batch.targets.tolist(), texts, strict=True)):
            yield row, [t for t in targets if t not in {IGNORE, *special}], [*text.tolist(), end]


def padding_is_no_text(objective: Objective) -> None:
    """Padding is neither read nor predicted."""
    if objective.has_pairs:
        return
    examples, dice = Examples(objective, vocabulary_of(objective)), np.random.default_rng(7)
    then = "leave it out of what is drawn, and give it the target IGNORE, where text.padding_mask is False"
    for seed in range(5):
        real = np.arange(LENGTH) < np.array([[LENGTH], [LENGTH - 9], [2]])
        tokens = np.where(real, dice.integers(1, PAD, real.shape), PAD)
        batch = examples.batch(Inputs(tokens, padding_mask=real), seed)
        read, padding_mask = batch.inputs.tokens, batch.inputs.padding_mask
        if PAD in (read if padding_mask is None else read[padding_mask]):
            raise Broken(f"padding is read; {then}")
        if PAD in batch.targets:
            raise Broken(f"padding is a target; {then}")


def documents_stay_apart(objective: Objective) -> None:
    """Inputs mark the start of each document if documents do not attend to each other."""
    if objective.has_source:
        return
    inputs = source(objective, packing="document_mask")[0].at(1).inputs
    then = "give inputs the segment_ids and position_ids of the text"
    if inputs.segment_ids is None or inputs.position_ids is None:
        raise Broken(f"documents see each other; {then}")
    if (np.diff(inputs.segment_ids) != (inputs.position_ids == 0)[:, 1:]).any():
        raise Broken(f"documents do not begin where positions do; {then}")


def source(
    objective: Objective, seed: int = 0, packing: Any = "concat"
) -> tuple[BatchSource, Watched]:
    """Return batches of an objective and their examples."""
    dice = np.random.default_rng(7)
    if not objective.has_pairs:
        text = np.where(dice.random(1500) < 0.07, END, dice.integers(1, PAD, 1500))
        examples = Watched(objective, vocabulary_of(objective))
        return Batches(text, LENGTH, ROWS, seed, packing, END, examples), examples
    tokenizer = Tokenizer(raw_bytes(["<|endoftext|>"]), "<|endoftext|>")
    words = [dice.choice([*"abcdefghij"], dice.integers(2, 12)).tolist() for _ in range(60)]
    pairs = [Pair("".join(word), "".join(word[::-1])) for word in words]
    examples = Watched(objective, Vocabulary.of(tokenizer))
    return PairBatches(
        PairText(FilePairs(pairs), tokenizer, LENGTH), examples, ROWS, seed
    ), examples


def vocabulary_of(objective: Objective) -> Vocabulary:
    """Return a vocabulary with the special tokens of an objective."""
    special = {name: FIRST + i for i, name in enumerate(objective.special_tokens)}
    return Vocabulary(FIRST + len(special), END, {"<|endoftext|>": END, **special})


def content(batch: Batch) -> list[Any]:
    """Return the inputs and targets of a batch as lists."""
    inputs = batch.inputs.given()
    return [[name, inputs[name].tolist()] for name in sorted(inputs)] + [batch.targets.tolist()]


def draws_examples(task: Task) -> None:
    """Examples have the requested length, valid token ids and at least one answer."""
    sampler, length = sampler_of(task)
    example = sampler.sample(np.random.default_rng(0))
    for name, ids in example._asdict().items():
        if ids.shape != (length,):
            raise Broken(f"{name} have shape {list(ids.shape)}; expected {[length]}")
        valid = (ids >= 0) & (ids < len(task.words)) | ((ids == IGNORE) & (name == "answers"))
        if not valid.all():
            raise Broken(
                f"{name} hold {ids[~valid][0]}; expected ids of its {len(task.words)} words"
            )
    if (example.answers == IGNORE).all():
        raise Broken("nothing is asked; expected an answer at least")


def examples_follow_from_the_generator(task: Task) -> None:
    """An example depends only on the state of the random generator."""
    used, fresh = (sampler_of(task)[0] for _ in range(2))
    first, second = (used.sample(np.random.default_rng(seed)) for seed in (0, 1))
    again = fresh.sample(np.random.default_rng(1))
    if not np.array_equal(second, again):
        raise Broken(f"an example depends on those before it; {DRAWN}")
    if np.array_equal(first, second):
        raise Broken("two generators give the same example; draw from the one that is given")


def sampler_of(task: Task) -> tuple[Sampler, int]:
    """Return the sampler of a task with "auto" resolved, and the length of its examples."""
    task = task.model_copy(update=task.numbers(ModelSizes(16, 2, CONTEXT)))
    length = max(CONTEXT, task.shortest) - 1
    sampler: Sampler = TASKS.make(task, length)
    return sampler, length
