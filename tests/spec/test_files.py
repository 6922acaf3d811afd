"""Files are opened where reading them comes to an end, and named where it does not."""

import os
from pathlib import Path

import pytest

from archwright.hf.weights_reader import opened
from archwright.spec.errors import UserError
from archwright.spec.files import expanded, irregular, open_regular, read_text
from archwright.spec.read import load
from archwright.text.json_table import read_table


def test_a_name_may_begin_at_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert expanded("~/x") == tmp_path / "x"
    assert expanded("a/~/x") == Path("a/~/x")
    with pytest.raises(UserError, match='"~nobody-here": no home folder is known'):
        expanded("~nobody-here")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs pipes with names")
def test_pipes_are_refused_and_not_waited_for(tmp_path: Path) -> None:
    for name in ("config.json", "model.toml", "model.safetensors"):
        os.mkfifo(tmp_path / name)
    assert irregular(tmp_path / "config.json") == "a pipe"
    with pytest.raises(UserError, match=r"config.json: found a pipe; expected a file"):
        open_regular(tmp_path / "config.json")
    with pytest.raises(UserError, match=r"config.json: found a pipe; expected a file"):
        read_table(tmp_path / "config.json")
    with pytest.raises(UserError, match=r"model\.toml: found a pipe"):
        load(str(tmp_path / "model.toml"))
    with (
        pytest.raises(UserError, match=r"model\.safetensors: found a pipe; expected a file"),
        opened(tmp_path),
    ):
        pass


def test_text_is_bounded_and_utf8(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"12345")
    assert read_text(path, 5) == "12345"
    with pytest.raises(UserError, match="has 5 bytes; expected text of at most 4"):
        read_text(path, 4)
    path.write_bytes(b"a\xff")
    with pytest.raises(UserError, match="not UTF-8 at byte 1; expected"):
        read_text(path, 5)
    with pytest.raises(IsADirectoryError):
        read_text(tmp_path, 5)
    assert irregular(tmp_path / "missing") == ""
