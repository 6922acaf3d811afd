"""Each yes or no of each family at the opposite of its class's default: written, and read back, it is the same."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from archwright import hf
from archwright.hf.family import Family
from archwright.hf.saving import config_of
from archwright.spec.errors import UserError
from tests.hf.library import ENTRIES, OUTSIDE, batch, build, logits, randomise, reopen, save

OPPOSITE = [
    (name, key)
    for name, family in sorted(hf.FAMILIES.items())
    for key, value in family.defaults.items()
    if isinstance(value, bool) and name not in OUTSIDE
]
SMALL = {entry["model_type"]: entry["kwargs"] for entry in ENTRIES.values()}


def config_with(name: str, key: str) -> dict[str, Any]:
    """Return a small config of a family with one value that its class does not have by default."""
    small = {k: v for k, v in SMALL[name].items() if not isinstance(v, bool)}
    return {**small, key: not hf.FAMILIES[name].defaults[key]}


@pytest.mark.sampled(fast=40)
@pytest.mark.parametrize(("name", "key"), OPPOSITE)
def test_the_opposite_of_a_default_is_written_and_read_back(name: str, key: str) -> None:
    family, config = hf.FAMILIES[name], config_with(name, key)
    if lines := refusal(family, config):
        assert all(key in line for line in lines)  # what is not here is refused by its name
        return
    spec = family.spec(config)
    written = json.loads(json.dumps(config_of(spec, family)))
    assert family.spec(written) == spec
    plain = family.spec({k: v for k, v in config.items() if k != key})
    if plain != spec:  # it says something of the model, and so must what is written
        without = {k: v for k, v in written.items() if k != key}
        assert refusal(family, without) or family.spec(without) != spec
        assert key in written


def refusal(family: Family, config: dict[str, Any]) -> tuple[str, ...]:
    """Return why there is no such model here; nothing where there is one."""
    try:
        family.spec(config)
    except UserError as error:
        return error.lines
    return ()


LOGITS = {
    "gpt_neox": {"use_parallel_residual": False, "attention_bias": False},
    "gpt2": {"tie_word_embeddings": False, "scale_attn_weights": False},
    "gemma": {"tie_word_embeddings": False},
    "cohere": {"tie_word_embeddings": False},
    "bloom": {"apply_residual_connection_post_layernorm": True},
    "falcon_7b": {"parallel_attn": False, "multi_query": False},
    "opt": {"do_layer_norm_before": False},
    "phi": {"tie_word_embeddings": True, "qk_layernorm": True},
}


@pytest.mark.parametrize("name", LOGITS)
def test_so_are_its_logits(name: str, tmp_path: Path) -> None:
    theirs = randomise(build(name, **LOGITS[name]))
    loaded = hf.load(save(theirs, tmp_path / "in"))
    tokens, real = batch(theirs)
    hf.save(loaded.model, tmp_path / "out")
    again = hf.load(tmp_path / "out")
    back, wrong = reopen(tmp_path / "out", theirs)
    assert not wrong
    assert again.spec.model_copy(update={"name": loaded.spec.name}) == loaded.spec
    with torch.no_grad():
        expected = logits(theirs, tokens, real)[real]
        for found in (
            loaded.model(tokens, padding_mask=real).logits,
            again.model(tokens, padding_mask=real).logits,
            logits(back, tokens, real),
        ):
            torch.testing.assert_close(found[real], expected, atol=2e-5, rtol=1e-5)
    written = json.loads((tmp_path / "out" / "config.json").read_text("utf-8"))
    assert {key: written[key] for key in LOGITS[name]} == LOGITS[name]
