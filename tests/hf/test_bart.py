"""Checkpoints of BART and its kin: what their files have beside what all have."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from archwright import hf
from archwright.hf.exporting import exportable
from archwright.hf.families.bart import BART
from archwright.hf.verifying import verify
from archwright.model import build as make
from archwright.spec.errors import UserError
from archwright.spec.read import load as load_preset
from tests.hf.library import batch, build, logits, own_logits, randomise, reopen, save

WEIGHTS = "model.safetensors"
BIAS = "final_logits_bias"
STACKS = ("encoder", "decoder")


def apart(theirs: nn.Module, ours: hf.Loaded) -> float:
    """Return the largest difference of two logits."""
    tokens, real = batch(theirs)
    with torch.no_grad():
        found = own_logits(ours.model, tokens, real) - logits(theirs, tokens, real)
    return float(found[real].abs().max())


def change(folder: Path, **changes: torch.Tensor | None) -> None:
    """Write a folder's weights again, with changes by name; None takes a tensor away."""
    tensors: dict[str, Any] = {**load_file(folder / WEIGHTS), **changes}
    kept = {name: tensor for name, tensor in tensors.items() if tensor is not None}
    save_file(kept, folder / WEIGHTS, {"format": "pt"})


@pytest.mark.parametrize("stored", ["zero", "not stored"])
def test_a_bias_of_logits_is_there_where_a_file_has_one(stored: str, tmp_path: Path) -> None:
    """The library has a buffer for it in any case, at zero in most published files."""
    theirs = randomise(build("bart"))
    with_bias = hf.load(save(theirs, tmp_path / "with"))
    assert with_bias.spec.head.bias
    theirs.final_logits_bias.zero_()
    folder = save(theirs, tmp_path / "in")
    if stored != "zero":
        change(folder, **{BIAS: None})
    ours = hf.load(folder)
    assert not ours.spec.head.bias
    assert ours.model.num_parameters() == sum(p.numel() for p in theirs.parameters())
    assert apart(theirs, ours) < 2e-5
    hf.save(ours.model, tmp_path / "out")
    back, wrong = reopen(tmp_path / "out", theirs)
    assert not wrong
    assert apart(back, ours) < 2e-5
    assert exportable(with_bias.spec) is exportable(ours.spec) is BART


def test_files_may_repeat_tables_and_leave_the_prefix_out(tmp_path: Path) -> None:
    """BART as published is the body alone: names without `model.`, and no head."""
    theirs = randomise(build("bart"))
    folder = save(theirs, tmp_path)
    tensors = load_file(folder / WEIGHTS)
    assert "lm_head.weight" not in tensors
    theirs.final_logits_bias.zero_()
    body = {n.removeprefix("model."): t for n, t in tensors.items() if n != BIAS}
    for stack in ("encoder", "decoder"):
        body[f"{stack}.embed_tokens.weight"] = body["shared.weight"].clone()
    body["encoder.version"] = torch.tensor([3.0])
    save_file(body, folder / WEIGHTS, {"format": "pt"})
    assert apart(theirs, hf.load(folder)) < 2e-5


def test_stacks_may_differ_in_all_that_has_two_words(tmp_path: Path) -> None:
    shapes = {"encoder_layers": 3, "decoder_layers": 1, "encoder_attention_heads": 2}
    theirs = randomise(build("bart", **shapes, decoder_ffn_dim=32, encoder_ffn_dim=80))
    ours = hf.load(save(theirs, tmp_path / "in"))
    assert ours.spec.encoder_model is not None
    assert (ours.spec.encoder_model.num_layers, ours.spec.num_layers) == (3, 1)
    assert apart(theirs, ours) < 2e-5
    hf.save(ours.model, tmp_path / "out")
    back, wrong = reopen(tmp_path / "out", theirs)
    assert not wrong
    assert apart(back, ours) < 2e-5


@pytest.mark.parametrize("name", ["m2m_100", "fsmt_tied"])
def test_positions_begin_behind_that_of_padding(name: str, tmp_path: Path) -> None:
    """Whatever the token of padding is: its row of the table is zero, and the first token has the next one."""
    theirs = randomise(build(name, pad_token_id=3, decoder_start_token_id=2))
    ours = hf.load(save(theirs, tmp_path / "in"))
    assert ours.spec.position.model_dump()["offset"] == 4
    assert apart(theirs, ours) < 2e-5
    hf.save(ours.model, tmp_path / "out")
    back, wrong = reopen(tmp_path / "out", theirs)
    assert not wrong
    assert back.config.pad_token_id == 3
    assert apart(back, ours) < 2e-5


def test_tables_of_sines_in_files_are_those_of_the_config(tmp_path: Path) -> None:
    """FSMT and PEGASUS save theirs; another one is refused."""
    folder = save(randomise(build("pegasus")), tmp_path)
    table = load_file(folder / WEIGHTS)[name := "model.encoder.embed_positions.weight"]
    change(folder, **{name: table.roll(1, 0).contiguous()})
    with pytest.raises(UserError, match="values that do not match the config"):
        hf.load(folder)
    change(folder, **{name: None})
    assert hf.load(folder).spec.position.kind == "sinusoidal"


def test_marian_may_have_a_vocabulary_for_each_language(tmp_path: Path) -> None:
    theirs = randomise(build("marian_apart"))
    ours = hf.load(save(theirs, tmp_path)).model
    shapes = {n: tuple(p.shape) for n, p in ours.named_parameters() if "embedding" in n}
    assert shapes == {"encoder.embedding.weight": (128, 64), "embedding.weight": (160, 64)}


def test_old_files_of_marian_hold_the_shared_table_and_sines_again(tmp_path: Path) -> None:
    theirs = randomise(build("marian"))
    folder = save(theirs, tmp_path)
    shared = load_file(folder / WEIGHTS)["model.shared.weight"]
    repeated = {f"model.{stack}.embed_tokens.weight": shared.clone() for stack in STACKS}
    sines = {f"model.{stack}.embed_positions.weight": torch.zeros(64, 64) for stack in STACKS}
    change(folder, **repeated, **sines, **{"lm_head.weight": shared.clone()})
    assert apart(theirs, hf.load(folder)) < 2e-5


@pytest.mark.parametrize(
    ("name", "original", "copy"),
    [
        ("t5", "shared.weight", "encoder.embed_tokens.weight"),
        ("bart", "model.shared.weight", "model.decoder.embed_tokens.weight"),
        ("pegasus", "model.shared.weight", "model.encoder.embed_tokens.weight"),
        ("marian", "model.shared.weight", "model.encoder.embed_tokens.weight"),
        ("fsmt_tied", "model.decoder.embed_tokens.weight", "model.encoder.embed_tokens.weight"),
        ("bert", "bert.embeddings.word_embeddings.weight", "cls.predictions.decoder.weight"),
        ("roberta", "lm_head.bias", "lm_head.decoder.bias"),
    ],
)
def test_copies_of_a_tensor_are_equal_or_refused(
    name: str, original: str, copy: str, tmp_path: Path
) -> None:
    """Libraries disagree on which of two unlike copies counts, and some read both."""
    theirs = randomise(build(name))
    folder = save(theirs, tmp_path)
    kept = load_file(folder / WEIGHTS)[original]
    change(folder, **{copy: kept.clone()})
    hf.load(folder)
    change(folder, **{copy: kept + 0.1})
    with pytest.raises(UserError) as caught:
        hf.load(folder)
    (line,) = caught.value.lines
    assert line.startswith(f"{folder}: ")
    assert all(f" {word}" in line for word in (original, copy, "found values that differ"))


def test_a_translator_by_its_preset_is_written_as_marian(tmp_path: Path) -> None:
    """With the bias of logits that it learns, which no config speaks of."""
    model = make(load_preset("marian-en-de").tiny().override("vocab_size=128"), seed=1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    assert hf.save(model, tmp_path / "out") == "marian"
    assert verify(tmp_path / "out").agrees
    again = hf.load(tmp_path / "out")
    assert again.spec.hash() == model.spec.hash()
    assert again.model.head.bias is not None
    assert model.head.bias is not None
    assert again.model.head.bias.equal(model.head.bias)


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"is_decoder": True}, "is_decoder: found True"),
        ({"activation_function": "tanh"}, "activation_function: found 'tanh'"),
    ],
)
def test_what_is_not_here_is_refused_by_its_name(config: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError, match=said):
        BART.spec(config)


@pytest.mark.parametrize("path", ["encoder.norm.eps=0.01", "encoder.context_length=32"])
def test_stacks_that_differ_where_a_config_has_one_word_are_not_written(path: str) -> None:
    with pytest.raises(UserError, match=path.replace("=", " = ")):
        exportable(BART.spec({}).override(path), "bart")
