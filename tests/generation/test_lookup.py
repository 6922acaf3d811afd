"""Guessed tokens change the number of passes, not the text."""

import pytest
import torch

from archwright.generation import lookup
from archwright.generation.reader import Reader
from archwright.generation.sampling import sample
from archwright.model import build
from archwright.spec.read import load

SHAPE = ("dim=64", "num_layers=2", "vocab_size=24", "context_length=96")


@pytest.mark.parametrize(
    ("text", "number", "expected"),
    [
        ([1, 2, 3, 4, 1, 2], 2, [3, 4]),
        ([1, 2], 3, []),
        ([5, 5, 5], 3, [5, 5, 5]),
        ([7, 1, 2, 1, 2], 3, [1, 2, 1]),
        ([1], 2, []),
    ],
)
def test_guesses_follow_the_latest_place(text: list[int], number: int, expected: list[int]) -> None:
    assert lookup.guess(text, number) == expected


@pytest.mark.parametrize("number", [1, 4, 9])
@pytest.mark.parametrize("name", ["modern", "gpt-2", "deepseek-v3", "gemma-3-4b", "mamba-130m"])
def test_the_text_is_that_of_greedy_decoding(name: str, number: int) -> None:
    model = build(load(name).tiny().override("vocab_size=24", "context_length=96"), seed=1).double()
    prompt = torch.tensor([3, 1, 4, 1, 5])
    settings = {"max_new_tokens": 120, "stop": ()}  # beyond the context
    plain = list(sample(model, prompt, temperature=0.0, **settings))  # type: ignore[arg-type]
    assert [*lookup.greedy(model, prompt, lookup=number, **settings)] == plain  # type: ignore[arg-type]


def test_repeated_text_takes_fewer_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    model = build(load("modern").override(*SHAPE), seed=0)
    passes = list[int]()
    real = Reader.read_all

    def counted(reader: Reader, tokens: torch.Tensor) -> torch.Tensor:
        passes.append(len(tokens))
        return real(reader, tokens)

    monkeypatch.setattr(Reader, "read_all", counted)
    prompt = torch.tensor([1, 2, 3])
    text = list(lookup.greedy(model, prompt, max_new_tokens=80, lookup=4))
    assert len(text) == 80
    assert passes
    assert text == list(sample(model, prompt, temperature=0.0, max_new_tokens=80))


def test_a_stop_within_the_guesses_ends_the_text() -> None:
    model = build(load("modern").override(*SHAPE), seed=0)
    whole = list(lookup.greedy(model, torch.tensor([1, 2, 3]), max_new_tokens=40, lookup=4))
    end = whole[20]
    found = list(
        lookup.greedy(model, torch.tensor([1, 2, 3]), max_new_tokens=40, lookup=4, stop={end})
    )
    assert found == whole[: whole.index(end)]


@torch.inference_mode()
def test_what_is_forgotten_leaves_nothing() -> None:
    model = build(load("modern").override(*SHAPE), seed=0).double().eval()
    reader, other = Reader(model), Reader(model)
    reader.read(torch.tensor([1, 2, 3]))
    reader.read_all(torch.tensor([4, 5, 6]))
    reader.forget(2)
    other.read(torch.tensor([1, 2, 3]))
    other.read(torch.tensor([4]))
    last = torch.tensor([7])
    assert torch.allclose(reader.read(last), other.read(last), atol=1e-12)
