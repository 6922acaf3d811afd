"""TOML that anybody may have written: one line for whatever is wrong with it, at once."""

import os
from pathlib import Path

import pytest

from archwright.spec.errors import UserError
from archwright.spec.overrides import override
from archwright.spec.read import load
from archwright.spec.toml import MOST_BYTES, MOST_DEPTH, parse_toml, read_toml

DEEP = f"found tables or lists more than {MOST_DEPTH} deep in one another"
LONG = "found an integer of more than 4,300 digits"


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (f"a = {'[' * 20_000}", DEEP),
        (f"a = {'{a = ' * 20_000}", DEEP),
        (f"a = {'[' * 40}{']' * 40}", DEEP),
        (f"{'a.' * 100_000}a = 1", DEEP),
        (f"[{'a.' * 40}a]", DEEP),
        (f"\ndim = {'9' * 5000}", f"{LONG} (at line 2)"),
        (f"dim = 0x{'f' * 5000}", LONG),
        ("dim = = 3", "not TOML: Invalid value (at line 1, column 7)"),
        ("#" * (MOST_BYTES + 1), f"has {MOST_BYTES + 1:,} bytes; expected a TOML file of at most "),
        (b"name = '\xff'", "not UTF-8 at byte 8; expected a TOML file"),
    ],
    ids=lambda value: str(value)[:12],
)
def test_what_cannot_be_read(text: str | bytes, line: str, tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    for read in (read_toml, load):
        with pytest.raises(UserError) as caught:
            read(file)
        (found,) = caught.value.lines
        assert found.startswith(f"{file}: {line}")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no FIFOs here")
def test_what_is_no_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo.toml")
    (tmp_path / "folder.toml").mkdir()
    (tmp_path / "device.toml").symlink_to("/dev/zero")
    for name, line in {
        "fifo": "found a pipe; expected a file",
        "folder": "is a folder; expected a TOML file",
        "device": "found a device; expected a file",
        "none": "no such file",
    }.items():
        path = tmp_path / f"{name}.toml"
        with pytest.raises(UserError) as caught:
            load(path)
        assert caught.value.lines == (f"{path}: {line}",)


@pytest.mark.parametrize(
    ("assignment", "line"),
    [
        (f"dim={'9' * 5000}", f"dim: {LONG} (at line 1)"),
        (f"dim={'[' * 5000}{']' * 5000}", f"dim: {DEEP}"),
        (f"layer_kinds.{'a.' * 500}a=1", "unknown key."),
    ],
    ids=["digits", "nesting", "path"],
)
def test_a_value_of_the_command_line(assignment: str, line: str) -> None:
    with pytest.raises(UserError) as caught:
        override(load("modern"), [assignment])
    assert caught.value.lines[0].endswith(line)


def test_what_is_deep_or_long_enough_for_anybody_is_read() -> None:
    assert parse_toml(f"a = {'[' * MOST_DEPTH}{']' * MOST_DEPTH}")
    assert parse_toml(f"a = {'9' * 300}")["a"] == int("9" * 300)
    assert parse_toml('a = "' + "x." * 200 + '"')
