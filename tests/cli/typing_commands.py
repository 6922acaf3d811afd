"""Typing commands, and what lies around where they are typed."""

from pathlib import Path

import pytest

from archwright.cli import main

CHOICE = """\
from typing import Literal
from archwright.spec.norms import Norm
class Mine(Norm):
    kind: Literal["{kind}"] = "{kind}"
"""

FILES: dict[str, str | bytes] = {
    "notes.txt": "the model and the token\n" * 300,
    "empty.txt": "",
    "tiny.txt": "hello world",
    "picture.png": b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" + bytes(range(256)) * 4,
    "latin.txt": "the café of words\n".encode("latin-1") * 50,
    "utf16.txt": ("hello " * 100).encode("utf-16"),
    "field.jsonl": '{"body": "a text"}\n' * 20,
    "broken.jsonl": '{"text": "a text"}\n{"text": oops}\n',
    "broken.toml": "dim = = 3\n",
    "latin.toml": 'name = "café"\n'.encode("latin-1"),
    "wrong.toml": 'dim = "wide"\nnum_layres = 3\nnorm.kind = "rsm"\nattention.num_heads = 0\n',
    "shape.toml": 'base = "modern"\ndim = 100\nattention.num_heads = 8\nattention.num_kv_heads = 3\n',
    "run.toml": 'model = "modern"\nbudget = "soon"\nbatch_size = 0\noptimizer.kind = "adam"\n',
    "tok.json": "{}",
    "raises.py": "import archwright\n\nx = 1 / 0\n",
    "syntax.py": "def f(:\n",
    "clash.py": CHOICE.format(kind="rms"),
    "partless.py": CHOICE.format(kind="partless"),
    "choiceless.py": "x = 3\n",
}


def contents(folder: Path) -> dict[str, bytes | None]:
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None
        for path in sorted(folder.rglob("*"))
    }


def error_lines(capsys: pytest.CaptureFixture[str], *words: str, code: int = 2) -> list[str]:
    """Type a command; return the lines on standard error, without the name at their beginning."""
    found = main(words)
    out, err = capsys.readouterr()
    assert found == code, err
    assert "Traceback" not in out + err
    lines = err.splitlines()
    assert all(line.startswith("archwright: ") for line in lines), err
    return [line.removeprefix("archwright: ") for line in lines]
