"""Where nobody says how to sample: what a checkpoint says, as far as it makes sense."""

import json
from typing import Any

import pytest

from archwright.generation.defaults import Searching, sampling, searching
from archwright.generation.sampling import Sampling
from archwright.text.bpe import raw_bytes
from archwright.text.tokenizer import Tokenizer

END = "<|endoftext|>"
PLAIN = Sampling(0.8, 0, 1.0)


def tokenizer(**config: Any) -> Tokenizer:
    files = {"generation_config.json": json.dumps(config)} if config else {}
    return Tokenizer(raw_bytes([END, "<|eot|>"]), END, files=files)


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({}, PLAIN),
        ({"temperature": 0.3, "top_p": 0.5}, PLAIN),  # of which the library makes nothing either
        ({"do_sample": False, "temperature": 0.3}, Sampling(0.0, 0, 1.0)),
        ({"do_sample": True}, Sampling(1.0, 0, 1.0)),
        ({"do_sample": True, "temperature": 0.6, "top_p": 0.9}, Sampling(0.6, 0, 0.9)),
        (
            {"do_sample": True, "top_k": 20, "repetition_penalty": 1.1},
            Sampling(1.0, 20, repetition_penalty=1.1),
        ),
        ({"do_sample": True, "temperature": -1, "top_k": 2.5, "top_p": 7}, Sampling(1.0, 0, 1.0)),
        ({"do_sample": True, "temperature": 1e-300}, Sampling(1.0, 0, 1.0)),
        ({"do_sample": True, "temperature": "hot", "top_k": True}, Sampling(1.0, 0, 1.0)),
        ({"do_sample": "yes", "temperature": 0.1}, PLAIN),
    ],
)
def test_what_a_checkpoint_says(config: dict[str, Any], expected: Sampling) -> None:
    assert sampling(tokenizer(**config)) == expected


def test_what_the_user_says_counts_first() -> None:
    says = tokenizer(do_sample=True, temperature=0.6, top_k=20, top_p=0.9)
    assert sampling(says, temperature=0.0) == Sampling(0.0, 20, 0.9)
    assert sampling(says, temperature=1.0, top_k=0, top_p=1.0) == Sampling(1.0, 0, 1.0)
    assert sampling(tokenizer(do_sample=False), top_k=5) == Sampling(0.8, 5, 1.0)


def test_any_of_the_ids_that_end_a_text_ends_it() -> None:
    assert tokenizer().stop_ids == {256}
    assert tokenizer(eos_token_id=257).stop_ids == {256, 257}
    assert tokenizer(eos_token_id=[256, 257, 10**6, -1]).stop_ids == {256, 257}


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({}, Searching()),
        ({"num_beams": 4, "length_penalty": 2.0}, Searching(4, 2.0)),
        ({"num_beams": 6, "early_stopping": True}, Searching(6, 1.0, True)),
        ({"num_beams": 4, "do_sample": True}, Searching()),
        ({"num_beams": 0, "length_penalty": "long", "early_stopping": 3}, Searching()),
        ({"num_beams": True, "length_penalty": 11}, Searching()),
    ],
)
def test_how_a_checkpoint_searches(config: dict[str, Any], expected: Searching) -> None:
    assert searching(tokenizer(**config)) == expected
    assert searching(tokenizer(**config), num_beams=2).num_beams == 2


def test_the_answer_to_a_source_is_the_likeliest_unless_somebody_says_otherwise() -> None:
    assert sampling(tokenizer(), has_source=True).temperature == 0
    assert sampling(tokenizer(), top_k=5, has_source=True) == Sampling(0.8, 5, 1.0)
    assert sampling(tokenizer(do_sample=True), has_source=True).temperature == 1
