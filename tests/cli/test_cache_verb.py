"""The cache is shown and emptied; what is damaged in it costs one line, and nothing else."""

from pathlib import Path

import pytest

from archwright.cli import main
from archwright.runs import RunFolder
from archwright.training.data import prepare_data
from tests.cli.typing_commands import error_lines
from tests.tiny import tiny_run, tiny_words, write_text

BPE = ("data.tokenizer.kind=bpe", "data.tokenizer.vocab_size=300", "budget=1steps")


@pytest.mark.slow
def test_a_damaged_cache_is_told_shown_and_emptied(
    place: Path, cache: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("archwright.training.finalize.stream", lambda *_, **__: iter(("",)))
    text = write_text(place / "text.txt", 100)
    prepare_data(tiny_run(text, *BPE), RunFolder(place / "other"))
    for path in cache.glob("tokens/*/shard-*.bin"):
        path.write_bytes(bytes(path.stat().st_size))
    for path in cache.glob("tokenizers/*.json"):
        path.write_bytes(b"\xff{")
    assert main([*tiny_words(text, *BPE), "--quiet", "--out", "run"]) == 0
    lines = capsys.readouterr().err.splitlines()
    assert [line[:50] for line in lines] == [
        "archwright: warning: the cached tokenizer of data.",
        "archwright: warning: the cached tokens of data.tex",
    ]

    assert main(["cache"]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert shown[0].startswith(f"{cache}: ")
    assert [line.split()[0] for line in shown if line and line[0] != " "][1:3] == [
        "tokens",
        "tokenizers",
    ]
    assert main(["cache", "clean", "--older-than", "1d"]) == 0
    assert capsys.readouterr().out == "removed 0 entries, 0 bytes\n"
    assert main(["cache", "clean"]) == 0
    assert capsys.readouterr().out.startswith("removed ")
    assert list(cache.iterdir()) == []
    assert main(["cache"]) == 0
    assert capsys.readouterr().out == f"{cache}: 0 entries, 0 bytes\n"


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (("clean", "--older-than", "x"), '--older-than: found "x"; expected a time, such as'),
        (("clean", "--older-than", "3steps"), '--older-than: found "3steps"; expected a time'),
        (("--older-than", "3d"), "--older-than: only for archwright cache clean"),
        (("empty",), 'found "empty"; expected clean'),
    ],
)
def test_wrong_words(words: tuple[str, ...], line: str, capsys: pytest.CaptureFixture[str]) -> None:
    (found,) = error_lines(capsys, "cache", *words)
    assert found.startswith(line)
