"""Cuts of the distribution and the repetition penalty, against their formulas and transformers."""

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from archwright.generation import sampling
from archwright.generation.sampling import Sampler, Sampling, weights_of

transformers = pytest.importorskip("transformers")

CUTS = st.fixed_dictionaries(
    {
        "temperature": st.sampled_from([0.3, 1.0, 1.7]),
        "top_k": st.sampled_from([0, 1, 3, 7, 99]),
        "top_p": st.sampled_from([0.05, 0.5, 0.9, 1.0]),
        "min_p": st.sampled_from([0.0, 0.01, 0.2, 0.9]),
    }
)
SEEDS = st.integers(0, 2**31)


def logits_of(seed: int, size: int = 40) -> Tensor:
    return 3 * torch.randn(size, generator=torch.Generator().manual_seed(seed))


def probabilities(logits: Tensor, **cuts: Any) -> Tensor:
    """Return the probability of each token after all cuts."""
    weights, order = weights_of(logits, **cuts)
    order = torch.arange(len(logits)) if order is None else order
    return torch.zeros_like(logits).index_put((order,), weights / weights.sum())


@given(seed=SEEDS, cuts=CUTS)
def test_cuts_are_those_of_transformers(seed: int, cuts: dict[str, float]) -> None:
    scores = logits_of(seed)[None]
    warpers = [transformers.TemperatureLogitsWarper(cuts["temperature"])]
    if cuts["top_k"]:
        warpers.append(transformers.TopKLogitsWarper(int(cuts["top_k"])))
    if cuts["top_p"] < 1:
        warpers.append(transformers.TopPLogitsWarper(cuts["top_p"]))
    if cuts["min_p"]:
        warpers.append(transformers.MinPLogitsWarper(cuts["min_p"]))
    for warper in warpers:
        scores = warper(None, scores)
    torch.testing.assert_close(probabilities(logits_of(seed), **cuts), scores[0].softmax(-1))


@given(seed=SEEDS, cuts=CUTS)
def test_cuts_by_hand(seed: int, cuts: dict[str, float]) -> None:
    """Token by token, from the likeliest on."""
    values = (logits_of(seed).double() / cuts["temperature"]).tolist()
    likely = sorted(range(len(values)), key=lambda i: -values[i])
    likely = likely[: int(cuts["top_k"]) or None]
    total = sum(math.exp(values[i]) for i in likely)
    p = {i: math.exp(values[i]) / total for i in likely}
    kept, so_far = [], 0.0
    for i in likely:
        if so_far < cuts["top_p"] and p[i] >= cuts["min_p"] * p[likely[0]]:
            kept.append(i)
        so_far += p[i]
    expected = torch.zeros(len(values))
    for i in kept:
        expected[i] = p[i] / sum(p[j] for j in kept)
    torch.testing.assert_close(probabilities(logits_of(seed), **cuts), expected)


@given(seed=SEEDS, top_p=st.sampled_from([0.3, 0.9, 0.999]), scale=st.sampled_from([0.01, 1.0]))
def test_a_short_list_suffices_or_all_are_sorted(seed: int, top_p: float, scale: float) -> None:
    """With a list of 8 of 40 tokens, as with a list of all."""
    logits, cuts = (
        scale * logits_of(seed),
        {"temperature": 1.0, "top_k": 0, "top_p": top_p, "min_p": 0.0},
    )
    expected = probabilities(logits, **cuts)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sampling, "SHORT_LIST", 8)
        found = probabilities(logits, **cuts)
    torch.testing.assert_close(found, expected)


@given(
    seed=SEEDS,
    penalty=st.sampled_from([0.5, 1.3, 4.0]),
    prompt=st.lists(st.integers(0, 39), min_size=1),
)
def test_the_penalty_is_that_of_transformers(seed: int, penalty: float, prompt: list[int]) -> None:
    """For the prompt, and for tokens drawn since."""
    sampler = Sampler(Sampling(0.0, repetition_penalty=penalty), 0, torch.tensor(prompt))
    processor = transformers.RepetitionPenaltyLogitsProcessor(penalty)
    written = [*prompt]
    for step in range(8):
        logits = logits_of(seed + step) / 3
        expected = int(processor(torch.tensor([written]), logits[None])[0].argmax())
        assert sampler(logits) == expected
        written.append(expected)


@pytest.mark.parametrize(
    "cuts",
    [{"min_p": 0.1}, {"top_p": 0.8}, {"top_k": 5, "min_p": 0.05}, {"repetition_penalty": 2.0}, {}],
    ids=str,
)
def test_tokens_come_as_often_as_their_probability(cuts: dict[str, float]) -> None:
    """3,000 draws; 5 standard errors."""
    logits, number, prompt = logits_of(7, 12) / 2, 3000, torch.tensor([3, 5, 3])
    settings = Sampling(**{"temperature": 1.0} | cuts)
    processed = logits
    if settings.repetition_penalty != 1:
        processor = transformers.RepetitionPenaltyLogitsProcessor(settings.repetition_penalty)
        processed = processor(prompt[None], logits[None])[0]
    p = probabilities(
        processed, temperature=1.0, top_k=settings.top_k, top_p=settings.top_p, min_p=settings.min_p
    )
    found = torch.zeros(12)
    for seed in range(number):
        found[Sampler(settings, seed, prompt)(logits)] += 1
    assert not found[p == 0].any()
    assert ((found - number * p).abs() <= 5 * (number * p * (1 - p)).sqrt() + 1e-3).all()
