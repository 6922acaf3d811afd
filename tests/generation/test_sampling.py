"""Sampling against its definition: which tokens may come, how often, and what the model is shown."""

import math
from collections import Counter
from typing import Any

import pytest
import torch
from torch import Tensor

from archwright.generation.sampling import draw, sample
from archwright.model import build
from archwright.model.model import Decoder
from archwright.spec.errors import UserError
from archwright.spec.model_spec import ModelSpec

LOGITS = torch.tensor([0.0, 2.0, -1.0, 1.0, -torch.inf])
PROMPT = torch.tensor([3, 1, 4])


@pytest.fixture
def model() -> Decoder:
    spec = ModelSpec(dim=16, num_layers=2, vocab_size=64, context_length=8)
    return build(spec.override("attention.num_heads=2", "embedding.dropout=0.5"), seed=2)


def drawn(number: int = 4000, **settings: Any) -> Counter[int]:
    generator = torch.Generator().manual_seed(0)
    given = {"temperature": 1.0, "top_k": 0, "top_p": 1.0} | settings
    return Counter(draw(LOGITS, generator=generator, **given) for _ in range(number))


@pytest.mark.slow
@pytest.mark.parametrize("temperature", [0.5, 1.0, 3.0])
def test_tokens_come_as_often_as_the_softmax_says(temperature: float) -> None:
    weights = [math.exp(x / temperature) for x in LOGITS.tolist()]
    found = drawn(temperature=temperature)
    for token, weight in enumerate(weights):
        expected = 4000 * weight / sum(weights)
        assert abs(found[token] - expected) <= 5 * math.sqrt(expected)


def test_temperature_0_takes_the_likeliest() -> None:
    assert drawn(10, temperature=0.0) == {1: 10}


@pytest.mark.parametrize(
    ("top_k", "tokens"), [(1, {1}), (2, {1, 3}), (3, {0, 1, 3}), (99, {0, 1, 2, 3})]
)
def test_top_k(top_k: int, tokens: set[int]) -> None:
    assert set(drawn(1000, top_k=top_k)) == tokens


@pytest.mark.parametrize(
    ("top_p", "tokens"),
    # Probabilities of tokens 1, 3, 0, 2: 0.644, 0.237, 0.087, 0.032.
    [(1e-6, {1}), (0.64, {1}), (0.65, {1, 3}), (0.88, {1, 3}), (0.89, {0, 1, 3}), (1.0, {0, 1, 2, 3})],
)  # fmt: skip
def test_top_p_keeps_the_fewest_that_hold_it(top_p: float, tokens: set[int]) -> None:
    assert set(drawn(2000, top_p=top_p)) == tokens


@pytest.mark.parametrize(("top_p", "number"), [(0.25, 1), (0.5, 2), (0.75, 3), (0.76, 4)])
def test_tokens_that_hold_exactly_so_much_are_enough(top_p: float, number: int) -> None:
    generator = torch.Generator().manual_seed(0)
    alike = torch.zeros(4)
    found = {draw(alike, 1.0, 0, top_p, generator) for _ in range(200)}
    assert len(found) == number


@pytest.mark.slow
def test_top_p_counts_among_the_top_k() -> None:
    """Of the two likeliest, the first holds 0.731."""
    assert set(drawn(1000, top_k=2, top_p=0.7)) == {1}
    assert set(drawn(1000, top_k=2, top_p=0.74)) == {1, 3}


def tokens(model: Decoder, prompt: Tensor = PROMPT, **settings: Any) -> list[int]:
    return list(sample(model, prompt, **{"max_new_tokens": 20} | settings))


@pytest.mark.slow
def test_greedy_is_the_argmax_and_begins_anew_with_the_last_half(model: Decoder) -> None:
    text = PROMPT.tolist()
    read = list(text)
    model.eval()
    for _ in range(20):
        with torch.no_grad():
            text.append(int(model(torch.tensor([read])).logits[0, -1].argmax()))
        read = [*read, text[-1]] if len(read) < 8 else text[-4:]
    assert tokens(model.train(), temperature=0.0) == text[3:]


@pytest.mark.slow
def test_a_model_that_sees_only_so_far_reads_on(model: Decoder) -> None:
    spec = model.spec.override("attention.mask.kind=window", "attention.mask.size=3")
    model = build(spec, seed=2).eval()
    text = PROMPT.tolist()
    for _ in range(20):
        with torch.no_grad():
            text.append(int(model(torch.tensor([text])).logits[0, -1].argmax()))
    assert tokens(model, temperature=0.0) == text[3:]


@pytest.mark.slow
def test_the_seed_decides(model: Decoder) -> None:
    first = tokens(model, seed=5)
    torch.manual_seed(1)
    assert tokens(model, seed=5) == first
    assert tokens(model, seed=6) != first


def test_it_leaves_the_global_generator_alone(model: Decoder) -> None:
    before = torch.get_rng_state()
    tokens(model)
    assert torch.equal(torch.get_rng_state(), before)


def test_it_stops_before_the_stop_token(model: Decoder) -> None:
    plain = tokens(model, temperature=0.0)
    stop = plain[7]
    assert tokens(model, temperature=0.0, stop=stop) == plain[: plain.index(stop)]


@pytest.mark.slow
def test_rows_without_a_token_never_come(model: Decoder) -> None:
    with torch.no_grad():
        model.head.weight[50:] *= 100
    assert max(tokens(model, max_new_tokens=60)) >= 50
    assert max(tokens(model, max_new_tokens=60, num_tokens=50)) < 50


def test_no_tokens_are_none(model: Decoder) -> None:
    assert tokens(model, max_new_tokens=0) == []


def test_gradients_are_not_kept(model: Decoder) -> None:
    tokens(model)
    assert all(p.grad is None for p in model.parameters())


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        ({"temperature": -0.1}, "temperature: found -0.1; expected 0"),
        ({"temperature": math.nan}, "temperature: found nan"),
        ({"temperature": math.inf}, "temperature: found inf"),
        ({"top_k": -1}, r"top_k: found -1; expected 0 \(all\) or more"),
        ({"top_p": 0.0}, r"top_p: found 0\.0; expected more than 0, at most 1"),
        ({"top_p": 1.5}, r"top_p: found 1\.5"),
        ({"max_new_tokens": -1}, "max_new_tokens: found -1"),
        ({"seed": -1}, "seed: found -1"),
        ({"prompt": torch.zeros(0, dtype=torch.long)}, "prompt: found no token"),
    ],
)
def test_settings_out_of_their_limits(model: Decoder, settings: dict[str, Any], line: str) -> None:
    """Said at once, not when the first token is asked for."""
    with pytest.raises(UserError, match=line):
        sample(model, settings.pop("prompt", PROMPT), **{"max_new_tokens": 3} | settings)


def test_all_mistakes_are_said(model: Decoder) -> None:
    with pytest.raises(UserError) as caught:
        sample(model, PROMPT, max_new_tokens=-1, temperature=-1.0, top_k=-1, top_p=2.0, seed=-1)
    assert len(caught.value.lines) == 5
