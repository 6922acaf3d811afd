"""Texts longer than those trained on: LongRoPE across its switch, and dynamic NTK beyond its original length."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from archwright import hf
from archwright.generation.reader import Reader
from archwright.generation.sampling import sample
from archwright.model.model import Decoder
from tests.hf.library import build, randomise, save

ORIGINAL, LONGEST = 24, 96
"""Tokens that were trained on, and that may be read."""
SHORT, LONG = [1 + i / 10 for i in range(8)], [2 + 3.0 * i for i in range(8)]
LONGROPE = {"rope_type": "longrope", "short_factor": SHORT, "long_factor": LONG}
PHI: dict[str, Any] = {
    "rope_scaling": LONGROPE,
    "max_position_embeddings": LONGEST,
    "original_max_position_embeddings": ORIGINAL,
}
DYNAMIC: dict[str, Any] = {
    "rope_scaling": {"rope_type": "dynamic", "factor": 4.0},
    "max_position_embeddings": ORIGINAL,
}


def pair(folder: Path, name: str, **changes: Any) -> tuple[nn.Module, Decoder]:
    """Return a published model and the same one here."""
    theirs = randomise(build(name, **changes))
    return theirs, hf.load(save(theirs, folder)).model


def prompt(length: int) -> Tensor:
    return torch.randint(4, 128, (length,), generator=torch.Generator().manual_seed(length))


def written_by(theirs: Any, text: Tensor, number: int, *, cached: bool) -> list[int]:
    settings = {"do_sample": False, "eos_token_id": None, "pad_token_id": 0, "use_cache": cached}
    found: Tensor = theirs.generate(text[None], max_new_tokens=number, **settings)
    return [int(token) for token in found[0, len(text) :]]


@pytest.mark.slow
@pytest.mark.parametrize("window", [None, 12])
def test_text_across_the_switch_of_longrope_is_that_of_the_uncached_pass(
    tmp_path: Path, window: int | None
) -> None:
    theirs, ours = pair(tmp_path, "phi3", **PHI, sliding_window=window)
    assert ours.switch_lengths == (ORIGINAL,)
    start = prompt(ORIGINAL - 8)
    found = list(sample(ours, start, max_new_tokens=30, temperature=0.0))
    assert found == written_by(theirs, start, 30, cached=False)
    assert found == written_by(theirs, start, 30, cached=True)
    reader, text = Reader(ours), start
    logits = reader.read(start)
    for token in [*found, 0]:
        with torch.no_grad():
            torch.testing.assert_close(logits, ours(text[None]).logits[0, -1], atol=1e-4, rtol=1e-4)
        text = torch.cat((text, torch.tensor([token])))
        logits = reader.read(text[-1:])


@pytest.mark.slow
def test_a_text_that_begins_anew_crosses_the_switch_again(tmp_path: Path) -> None:
    """At its longest a text goes on from its last half, which is shorter than the original length."""
    _, ours = pair(tmp_path, "phi3", **PHI | {"max_position_embeddings": 40})
    text = prompt(4).tolist()
    found = list(sample(ours, torch.tensor(text), max_new_tokens=100, temperature=0.0))
    read = list(text)
    for token in found:
        with torch.no_grad():
            assert int(ours(torch.tensor([read])).logits[0, -1].argmax()) == token
        text.append(token)
        read = [*read, token] if len(read) < 40 else text[-20:]


@pytest.mark.slow
@pytest.mark.parametrize("length", [10, ORIGINAL, ORIGINAL + 1, 60, LONGEST])
def test_dynamic_ntk_acts_beyond_the_length_of_the_config(tmp_path: Path, length: int) -> None:
    theirs, ours = pair(tmp_path, "llama", **DYNAMIC)
    assert ours.spec.context_length == LONGEST
    text = prompt(length)
    with torch.no_grad():
        expected = theirs(text[None]).logits[0, -1]
        torch.testing.assert_close(Reader(ours).read(text), expected, atol=2e-5, rtol=1e-5)


@pytest.mark.slow
def test_text_under_dynamic_ntk_is_that_of_the_library_up_to_the_first_turned_cache(
    tmp_path: Path,
) -> None:
    """From there on both approximate the uncached pass; here kept keys turn with the text, there they do not."""
    theirs, ours = pair(tmp_path, "llama", **DYNAMIC)
    start = prompt(ORIGINAL - 8)
    expected = written_by(theirs, start, 9, cached=True)
    assert list(sample(ours, start, max_new_tokens=9, temperature=0.0)) == expected
    text, reader, cache, apart = start, Reader(ours), None, torch.zeros(2)
    with torch.no_grad():
        for token in [*prompt(40).tolist(), 0]:
            new = text if cache is None else text[-1:]
            logits, told = reader.read(new), theirs(new[None], past_key_values=cache)
            whole, cache = ours(text[None]).logits[0, -1], told.past_key_values
            apart += torch.stack([(x - whole).norm() for x in (logits, told.logits[0, -1])])
            text = torch.cat((text, torch.tensor([token])))
    assert 0 < apart[0] < apart[1]


def test_what_dynamic_ntk_counts_from_is_written_back(tmp_path: Path) -> None:
    _, ours = pair(tmp_path / "in", "llama", **DYNAMIC)
    hf.save(ours, tmp_path / "out")
    config = hf.loading.read_config(tmp_path / "out")
    assert config["max_position_embeddings"] == ORIGINAL
    assert hf.load(tmp_path / "out").spec.position == ours.spec.position
