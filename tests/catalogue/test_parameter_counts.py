import pytest

from archwright.catalogue.parameter_counts import Counts, parameter_counts
from archwright.spec.read import load


def counts(name: str) -> Counts:
    found = parameter_counts(load(name))
    assert found is not None
    return found


def test_counts_are_those_by_hand_and_those_that_were_published() -> None:
    textbook = counts("textbook")
    assert textbook.parts == by_hand_textbook()
    assert textbook.active == textbook.total == 21_011_456
    # OpenAI, 2025, gpt-oss, table 1: 3.61B and 5.13B, without the embedding
    for name, active in (("gpt-oss-20b", 3.61e9), ("gpt-oss-120b", 5.13e9)):
        found = counts(name)
        assert found.active - found.parts["embedding"] == pytest.approx(active, rel=0.002)
    # Mistral AI, 2024, Mixtral of Experts, section 1: 13B active parameters
    assert counts("mixtral-8x7b").active == pytest.approx(12.9e9, rel=0.005)


def by_hand_textbook() -> dict[str, int]:
    """dim 512, 6 layers, hidden 2048, biases everywhere, LayerNorm, tied table of 4096."""
    spec = load("textbook").resolved()
    assert (spec.dim, spec.num_layers, spec.vocab_size, spec.head.tied) == (512, 6, 4096, True)
    attention = 4 * (512 * 512 + 512)
    feedforward = 512 * 2048 + 2048 + 2048 * 512 + 512
    return {
        "embedding": 4096 * 512,
        "norms": 6 * 2 * 2 * 512,
        "attention": 6 * attention,
        "feed-forward": 6 * feedforward,
    }
