"""Text models beside vision towers: they are read alone, have the logits of the whole, and what is left is said."""

import copy
import json
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from archwright import hf
from archwright.cli.main import main
from archwright.hf.multimodal import WRAPPERS
from archwright.spec.errors import UserError
from tests.hf.library import randomise, save, transformers

TEXT = {
    "vocab_size": 160,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 128,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
VISION = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "image_size": 28,
    "patch_size": 14,
}
SECTIONS = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 3, 3]}
HALVED = {"rope_parameters": SECTIONS | {"partial_rotary_factor": 0.5, "mrope_section": [2, 1, 1]}}
DELTA = {f"linear_num_{part}_heads": 2 for part in ("key", "value")}
DELTA |= {f"linear_{part}_head_dim": 16 for part in ("key", "value")}
EYES = {"depth": 1, "num_heads": 2, "patch_size": 14}

ENTRIES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "gemma3": (
        {"sliding_window": 8, "layer_types": ["sliding_attention", "full_attention"] * 2},
        {**VISION, "model_type": "siglip_vision_model"},
    ),
    "gemma4": (
        {
            "sliding_window": 8,
            "layer_types": ["sliding_attention", "full_attention"] * 2,
            "global_head_dim": 32,
            "num_kv_shared_layers": 2,
            "hidden_size_per_layer_input": 8,
            "vocab_size_per_layer_input": 160,
        },
        {"model_type": "gemma4_vision"} | VISION,
    ),
    "llama4": (
        {"intermediate_size_mlp": 80, "num_local_experts": 4, "attention_chunk_size": 8},
        {**VISION, "vision_output_dim": 32, "projector_input_dim": 32, "projector_output_dim": 32},
    ),
    "llava": ({"model_type": "llama"}, {**VISION, "model_type": "clip_vision_model"}),
    "mistral3": (
        {"model_type": "mistral", "sliding_window": None},
        {**VISION, "model_type": "pixtral", "head_dim": 16},
    ),
    "internvl": (
        {"model_type": "qwen2"},
        {**VISION, "image_size": [28, 28], "patch_size": [14, 14]},
    ),
    "idefics3": ({"model_type": "llama"}, VISION),
    "smolvlm": ({"model_type": "llama"}, VISION),
    "qwen2_vl": ({"rope_parameters": SECTIONS}, {**EYES, "embed_dim": 32, "hidden_size": 64}),
    "qwen2_5_vl": (
        {"rope_parameters": SECTIONS},
        {**EYES, "hidden_size": 32, "intermediate_size": 48, "out_hidden_size": 64},
    ),
    "qwen3_vl": (
        {"rope_parameters": SECTIONS},
        {**EYES, "hidden_size": 32, "out_hidden_size": 64, "deepstack_visual_indexes": [0]},
    ),
    "qwen3_5": (HALVED | DELTA, {**EYES, "hidden_size": 32, "out_hidden_size": 64}),
    "qwen3_5_moe": (
        HALVED | DELTA | {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16},
        {**EYES, "hidden_size": 32, "out_hidden_size": 64},
    ),
}
"""What is special in the tiny text model of each, and its vision tower."""


def build(name: str, **changes: Any) -> nn.Module:
    text, vision = copy.deepcopy(ENTRIES[name])
    config = transformers.AutoConfig.for_model(
        name, text_config=TEXT | text, vision_config=vision, **changes
    )
    torch.manual_seed(0)
    model = transformers.AutoModelForImageTextToText.from_config(config)
    return randomise(model.eval())


def logits(model: Any) -> tuple[torch.Tensor, torch.Tensor]:
    tokens = torch.randint(4, 150, (2, 40), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        if isinstance(model, hf.Loaded):
            return tokens, model.model(tokens).logits
        return tokens, model(input_ids=tokens, attention_mask=torch.ones_like(tokens)).logits


def test_every_wrapper_is_tried() -> None:
    assert set(ENTRIES) == set(WRAPPERS)


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("name", ENTRIES)
def test_the_text_model_has_the_logits_of_the_whole(name: str, tied: bool, tmp_path: Path) -> None:
    theirs = build(name, tie_word_embeddings=tied)
    folder = save(theirs, tmp_path)
    with pytest.warns(UserWarning, match="only the text model is loaded; ignored: ") as said:
        ours = hf.load(folder)
    assert len([w for w in said if "ignored: " in str(w.message)]) == 1
    found, expected = logits(ours)[1], logits(theirs)[1]
    if float((found - expected).abs().max()) > 2e-5:
        # A norm of small results of a recurrence enlarges rounding errors at a few tokens.
        assert (found - expected).square().mean().sqrt() <= 2e-5 * expected.std()


@pytest.mark.filterwarnings("ignore:.*only the text model is loaded")
def test_stacked_experts_are_read_and_predictions_of_further_tokens_ignored(tmp_path: Path) -> None:
    """Qwen's files have stacks of experts, transformers' files single ones; `mtp` has single ones in both."""
    folder = save(build("qwen3_5_moe", tie_word_embeddings=False), tmp_path)
    single = hf.load(folder)
    tensors = load_file(folder / "model.safetensors")
    prefix = "model.language_model.layers."
    for i in range(4):
        gate, up, down = (
            torch.stack(
                [tensors.pop(f"{prefix}{i}.mlp.experts.{e}.{m}_proj.weight") for e in range(4)]
            )
            for m in ("gate", "up", "down")
        )
        tensors[f"{prefix}{i}.mlp.experts.gate_up_proj"] = torch.cat((gate, up), 1)
        tensors[f"{prefix}{i}.mlp.experts.down_proj"] = down
    tensors |= {
        "mtp.fc.weight": down[0].clone(),
        "mtp.layers.0.mlp.experts.0.up_proj.weight": up[0].clone(),
    }
    save_file(tensors, folder / "model.safetensors")
    assert torch.equal(logits(hf.load(folder))[1], logits(single)[1])


def test_names_of_today_and_of_the_first_files_are_read(tmp_path: Path) -> None:
    theirs = build("qwen2_5_vl", tie_word_embeddings=False)
    new = save(theirs, tmp_path / "new")
    tensors = load_file(new / "model.safetensors")
    config = json.loads((new / "config.json").read_text())
    flat = {**config, **config.pop("text_config"), "model_type": "qwen2_5_vl"}
    inner = {
        n.replace("model.", "model.language_model.", 1): t
        for n, t in tensors.items()
        if n.startswith("model.")
    }
    others = {n: t for n, t in tensors.items() if not n.startswith("model.")}
    for kind, table, named in (("flat", flat, tensors), ("inner", config, inner | others)):
        folder = tmp_path / kind
        folder.mkdir()
        text = json.loads((new / "config.json").read_text()) if kind == "inner" else table
        (folder / "config.json").write_text(json.dumps(text))
        save_file(named, folder / "model.safetensors")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ours = hf.load(folder)
        torch.testing.assert_close(logits(ours)[1], logits(theirs)[1], atol=2e-5, rtol=1e-5)


def test_a_tensor_of_nothing_known_is_refused(tmp_path: Path) -> None:
    folder = save(build("llava"), tmp_path)
    tensors = load_file(folder / "model.safetensors")
    save_file(tensors | {"hearing.weight": torch.ones(2)}, folder / "model.safetensors")
    with pytest.warns(match="ignored: "), pytest.raises(UserError, match=r"hearing\.weight"):
        hf.load(folder)


def test_a_wrapper_without_a_text_model_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "llava", "text_config": 3}')
    with pytest.raises(UserError, match="text_config: found 3; expected a table") as refused:
        hf.load(tmp_path)
    assert len(refused.value.lines) == 1


@pytest.mark.filterwarnings("default")  # and printed, as for a user
def test_import_says_what_it_leaves(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = save(build("gemma3"), tmp_path / "gemma")
    assert main(["import", str(folder), "--out", str(tmp_path / "run")]) == 0
    lines = [line for line in capsys.readouterr().err.splitlines() if "ignored: " in line]
    assert len(lines) == 1
    assert "vision_tower" in lines[0]
