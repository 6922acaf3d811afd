"""What an objective draws depends on seed and step alone; what it says of its windows is what it gets."""

from typing import ClassVar, Literal

import numpy as np
import pytest

from archwright.data.batches import Batches
from archwright.data.inputs import IGNORE, Batch, Inputs
from archwright.data.objectives import OBJECTIVES, Examples, MakeBatch, Vocabulary
from archwright.spec.errors import UserError
from archwright.spec.objectives import NextToken, Objective

TOKENS = np.arange(1000)


@pytest.fixture
def drawn(visitors: None) -> Examples:
    """Targets that are drawn, of windows that are half as long again as the context."""

    class Drawn(Objective):
        kind: Literal["drawn"] = "drawn"
        causal: ClassVar[bool] = True

        def window_length(self, context_length: int) -> int:
            return 3 * context_length // 2

    def part(spec: Drawn, vocabulary: Vocabulary) -> MakeBatch:
        def make(text: Inputs, generator: np.random.Generator) -> Batch:
            return Batch(text, generator.integers(10**9, size=text.tokens.shape))

        return make

    OBJECTIVES.add(Drawn, part)
    return Examples(Drawn(), Vocabulary())


def test_draws_are_a_function_of_seed_and_step(drawn: Examples) -> None:
    found = {
        (seed, step): Batches(TOKENS, 8, 4, seed, examples=drawn).at(step).targets.tolist()
        for seed in (0, 1)
        for step in (0, 1)
    }
    assert len({str(targets) for targets in found.values()}) == 4
    again = Batches(TOKENS, 8, 4, 1, examples=drawn)
    assert again.at(1).targets.tolist() == found[1, 1]


def test_draws_do_not_depend_on_the_number_of_processes(drawn: Examples) -> None:
    batches = Batches(TOKENS, 8, 4, examples=drawn)
    parts = [batches.at(3, rank=rank, world_size=2).targets for rank in range(2)]
    assert (np.concatenate(parts) == batches.at(3).targets).all()


def test_windows_that_share_nothing_cover_the_text(drawn: Examples) -> None:
    batches = Batches(TOKENS, 8, 1, examples=drawn)
    rows = [batches.at(step).inputs.tokens[0] for step in range(batches.windows_per_epoch)]
    assert all(len(row) == 12 for row in rows)
    read = np.sort(np.concatenate(rows))
    assert (np.diff(read) == 1).all()
    assert len(TOKENS) - len(read) < 24
    with pytest.raises(UserError, match=r"12 tokens are needed \(model\.context_length \+ 4\)"):
        Batches(TOKENS[:11], 8, 1, examples=drawn)


def test_the_last_token_of_a_text_is_a_target_only() -> None:
    text = Inputs(np.array([[1, 2, 3, 4], [5, 6, 9, 9]]))
    mask = np.array([[True] * 4, [True, True, False, False]])
    examples = Examples(NextToken(), Vocabulary())
    whole = examples.batch(text)
    assert whole.inputs.tokens.tolist() == [[1, 2, 3], [5, 6, 9]]
    assert whole.targets.tolist() == [[2, 3, 4], [6, 9, 9]]
    padded = examples.batch(Inputs(text.tokens, padding_mask=mask))
    assert padded.targets.tolist() == [[2, 3, 4], [6, IGNORE, IGNORE]]
    assert padded.inputs.padding_mask.tolist() == [[True] * 3, [True, False, False]]


def test_a_special_token_that_is_none_is_refused_with_the_nearest() -> None:
    vocabulary = Vocabulary(9, 0, {"[MASK]": 8})
    assert vocabulary.special_id("[MASK]", "objective.mask_token") == 8
    with pytest.raises(UserError) as caught:
        vocabulary.special_id("[MASKS]", "objective.mask_token")
    (line,) = caught.value.lines
    assert line.startswith('objective.mask_token: found "[MASKS]", which is no special token')
    assert line.endswith('Did you mean "[MASK]"?')


@pytest.mark.parametrize(
    ("made", "line"),
    [
        ([], "a list; expected a Batch of inputs and targets"),
        (
            Batch(Inputs(np.zeros((2, 4), int)), np.zeros((2, 3), int)),
            "targets of shape [2, 3]; expected that of the tokens that are read, [2, 4]",
        ),
    ],
)
def test_what_is_no_batch_is_refused(visitors: None, made: object, line: str) -> None:
    class Broken(Objective):
        kind: Literal["broken"] = "broken"
        causal: ClassVar[bool] = True

    OBJECTIVES.add(Broken, lambda spec, vocabulary: lambda text, generator: made)
    with pytest.raises(UserError) as caught:
        Examples(Broken(), Vocabulary()).batch(Inputs(np.zeros((2, 4), int)), 0)
    assert caught.value.lines == (f'objective.kind = "broken": its part gave {line}',)
