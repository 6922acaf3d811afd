"""Mamba-2 and its hybrids: texts over several chunks, spellings of configs, and configs that are refused."""

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from archwright import hf
from archwright.spec.errors import UserError
from tests.hf.library import ENTRIES, build, randomise, save

NAMES = ("mamba2", "bamba", "granitemoehybrid", "nemotron_h", "falcon_h1")


def config(name: str, **changes: Any) -> dict[str, Any]:
    entry = ENTRIES[name]
    return {"model_type": entry["model_type"], **entry["kwargs"], **changes}


@pytest.mark.parametrize("name", NAMES)
def test_logits_over_several_chunks_and_in_pieces(name: str, tmp_path: Path) -> None:
    theirs = randomise(build(name, max_position_embeddings=200))
    ours = hf.load(save(theirs, tmp_path)).model
    tokens = torch.randint(4, 128, (1, 150), generator=torch.Generator().manual_seed(0))
    cache = ours.new_cache()
    with torch.no_grad():
        expected, logits = theirs(tokens).logits, ours(tokens).logits
        pieces = [ours(piece, cache=cache).logits for piece in tokens.split([1, 63, 1, 64, 21], 1)]
        noise = float((copy.deepcopy(ours).double()(tokens).logits - logits).abs().max())
    for result in (logits, torch.cat(pieces, 1)):
        assert float((result - expected).abs().max()) <= max(2e-5, 4 * noise)


def test_infinity_is_read_in_both_spellings(tmp_path: Path) -> None:
    folder = save(build("mamba2"), tmp_path)
    text = (folder / "config.json").read_text("utf-8")
    newer = " ".join(text.split())
    older = newer.replace('{ "__float__": "Infinity" }', "Infinity")
    assert older != newer
    (folder / "config.json").write_text(older, "utf-8")
    assert hf.load_spec(folder) == hf.load_spec(json.loads(text)).model_copy(
        update={"name": folder.name}
    )
    (folder / "config.json").write_text(older.replace("1e-05", "Infinity"), "utf-8")
    with pytest.raises(UserError):
        hf.load_spec(folder)


def test_a_pattern_is_a_list_of_layer_types() -> None:
    names = {"M": "mamba", "-": "mlp", "*": "attention", "E": "moe"}
    pattern = "M-*EME"
    listed = config("nemotron_h", layers_block_type=[names[letter] for letter in pattern])
    short = config("nemotron_h", layers_block_type=None, hybrid_override_pattern=pattern)
    assert hf.load_spec(listed) == hf.load_spec(short)
    assert len(hf.load_spec(short).layers_by_kind) == 4


def test_tensors_of_multi_token_prediction_are_left_out(tmp_path: Path) -> None:
    folder = save(build("nemotron_h"), tmp_path)
    tensors = load_file(folder / "model.safetensors")
    tensors["mtp.layers.0.eh_proj.weight"] = torch.zeros(64, 128)
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    assert hf.load(folder).family == "nemotron_h"


REFUSED = {
    "mamba_d_head: found 16 in 6 heads; expected 128 in all heads": ("bamba", {"mamba_n_heads": 6}),
    "attention_bias: found True with attention_in_multiplier": (
        "falcon_h1",
        {"attention_bias": True},
    ),
    "mamba_proj_bias: found True; expected False": ("falcon_h1", {"mamba_proj_bias": True}),
    "hidden_act: found 'gelu'": ("granitemoehybrid", {"hidden_act": "gelu"}),
    "found a layer of type 'X'": (
        "nemotron_h",
        {"layers_block_type": None, "hybrid_override_pattern": "MX"},
    ),
}


@pytest.mark.parametrize("line", REFUSED)
def test_what_is_not_here_is_refused_by_its_name(line: str) -> None:
    name, changes = REFUSED[line]
    with pytest.raises(UserError, match=line) as refused:
        hf.load_spec(config(name, **changes))
    assert len(refused.value.lines) == 1
