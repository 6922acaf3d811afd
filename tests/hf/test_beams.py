"""Beam search finds what transformers' finds, in models of the same weights."""

from typing import Any

import pytest
import torch

from archwright import hf
from archwright.generation.beams import beam_search
from tests.hf.library import build, randomise, save


@pytest.fixture(scope="module", params=["gpt2", "llama", "mistral"])
def models(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    theirs = randomise(build(request.param))
    folder = save(theirs, tmp_path_factory.mktemp(request.param))
    return theirs, hf.load(folder).model


@pytest.mark.parametrize("num_beams", [2, 5])
@pytest.mark.parametrize("length_penalty", [0.0, 1.0, -1.5, 2.0])
@pytest.mark.parametrize("max_tokens", [1, 20])
def test_texts_are_those_of_the_published_implementation(
    models: Any, num_beams: int, length_penalty: float, max_tokens: int
) -> None:
    theirs, ours = models
    for seed in range(4):
        generator = torch.Generator().manual_seed(seed)
        prompt = torch.randint(8, 60, (5,), generator=generator)
        stop = torch.randint(
            8, 60, (3,), generator=generator
        ).tolist()  # several, so that texts end
        expected = theirs.generate(
            prompt[None],
            attention_mask=torch.ones(1, 5, dtype=torch.long),
            num_beams=num_beams,
            do_sample=False,
            length_penalty=length_penalty,
            max_new_tokens=max_tokens,
            early_stopping=False,
            eos_token_id=stop,
            pad_token_id=0,
        )[0, 5:].tolist()
        found = beam_search(
            ours,
            prompt,
            max_tokens=max_tokens,
            num_beams=num_beams,
            length_penalty=length_penalty,
            stop=stop,
        )
        ended = expected[-1] in stop
        assert found == (expected[:-1] if ended else expected)


def test_some_texts_end(models: Any) -> None:
    """Else the comparison would say nothing of ends."""
    _, ours = models
    lengths = {
        len(beam_search(ours, torch.tensor([9, 10]), max_tokens=20, num_beams=4, stop=range(n)))
        for n in (0, 5, 30)
    }
    assert len(lengths) > 1
