"""An architecture from config.json alone."""

import json
from pathlib import Path
from typing import Any

import pytest

from archwright import hf
from archwright.spec.errors import UserError
from tests.hf.library import build

LLAMA: dict[str, Any] = {"model_type": "llama", "hidden_size": 64, "num_attention_heads": 4}


def test_it_is_read_from_a_table_a_file_or_a_folder(tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(LLAMA), "utf-8")
    spec = hf.load_spec(LLAMA)
    assert (spec.dim, spec.name) == (64, "")
    for path in (folder, str(folder), folder / "config.json"):
        found = hf.load_spec(path)
        assert found == spec.model_copy(update={"name": "mine"})


@pytest.mark.slow
@pytest.mark.parametrize("name", ["llama", "gemma3", "mixtral", "gpt2"])
def test_it_is_that_of_the_loaded_model(name: str, tmp_path: Path) -> None:
    build(name).save_pretrained(tmp_path)
    assert hf.load_spec(tmp_path) == hf.load(tmp_path).spec


def test_of_a_model_of_images_it_is_the_text_model() -> None:
    whole = {"model_type": "llava", "text_config": LLAMA}
    assert hf.load_spec(whole) == hf.load_spec(LLAMA)


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({}, "config.json: model_type: found None"),
        ({"model_type": "lama"}, "config.json: model_type: found 'lama'"),
        (LLAMA | {"hidden_size": 2**40}, "config.json: hidden_size: found 1.10e[+]12; expected at"),
        (LLAMA | {"hidden_act": "sine"}, "config.json: hidden_act: found 'sine'"),
        (LLAMA | {"quantization_config": {"bits": 4}}, "compressed weights"),
    ],
)
def test_mistakes_are_one_line(config: dict[str, Any], said: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=said) as refused:
        hf.load_spec(config)
    assert len(refused.value.lines) == 1
    (tmp_path / "config.json").write_text(json.dumps(config), "utf-8")
    for path in (tmp_path, tmp_path / "config.json"):
        with pytest.raises(UserError, match=f"{tmp_path}.*{said.removeprefix('config.json: ')}"):
            hf.load_spec(path)


def test_what_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="there is no such folder"):
        hf.load_spec(tmp_path / "none")
    with pytest.raises(UserError, match=r"config\.json: there is no such file"):
        hf.load_spec(tmp_path)
