"""Whatever files, presets, tokens and tensors are called: no verb prints what steers a terminal."""

import json
import re
from pathlib import Path

import pytest

from archwright.cli import main
from archwright.cli.main import VERBS
from archwright.format import STEERING
from tests.tiny import tiny_words, write_text

BAD = "\x1b[31m\x1b]52;c;eA==\x07\u202e\x9bx"
"""Colours, a clipboard that is set, text turned around."""

COMMANDS = {
    "train": (
        "none{bad}",
        "none{bad}.toml",
        "named.toml",
        "model.toml --dry-run",
        "modern model.norm.kind={bad}",
        "modern {bad}=3",
        "modern model.dim={bad}",
        "modern data.text={bad}",
        "modern data.text=text.txt data.tokenizer.kind=file data.tokenizer.path={bad}",
        "modern data.text=text.txt data.tokenizer.kind=file data.tokenizer.path=bad{bad}.json",
        "--resume {bad}",
        "modern --{bad}",
        "modern --parts {bad}.py",
    ),
    "prepare": (
        "{bad}",
        "named.toml",
        "modern {bad}=3",
        "modern data.text={bad}",
        "modern --parts {bad}.py",
        "modern data.text=text.txt --processes {bad}",
    ),
    "cache": ("{bad}", "clean --{bad}", "clean --older-than {bad}"),
    "compare": ("{bad}", "modern :{bad}", "study.toml", "modern textbook --seeds {bad}"),
    "generate": (
        "{bad}",
        "runs/{bad}",
        "runs/modern --max-new-tokens 300 --temperature 30 --prompt {bad}",
    ),
    "eval": ("runs/modern --text {bad}", "{bad} --text text.txt"),
    "export": ("{bad} out", "runs/modern out --family {bad}"),
    "import": ("{bad}", "checkpoint --out {bad}"),
    "verify": ("{bad}", "checkpoint"),
    "explain": ("{bad}", "rope --parts {bad}.py"),
    "completion": ("{bad}",),
    "plan": ("{bad}", "model.toml", "modern :{bad}=1", "modern --hardware {bad} --tokens {bad}"),
    "profile": ("{bad}", "modern --kernel {bad}"),
    "report": ("{bad}", "runs/{bad}"),
    "list": ("{bad}", "runs", "choices {bad}"),
    "show": ("{bad}", "model.toml", "model.toml --blame", "model.toml --all", "modern {bad}=1"),
    "diff": ("modern {bad}", "modern model.toml"),
    "schema": ("{bad}",),
    "new": ("{bad}", "norm {bad}", "norm {bad}/a.py", "norm {bad}.py", "model {bad}.toml"),
    "check": ("{bad}.py", "raises{bad}.py", "{bad}.toml", "named.toml", "keys.toml", "model.toml"),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Files with such names, of such keys and values, and a run."""
    where, bad = tmp_path_factory.mktemp("hostile"), json.dumps(BAD)
    write_text(where / "text.txt", 400)
    (where / "named.toml").write_text(f"model = {bad}\n")
    (where / "model.toml").write_text(f"name = {bad}\nsource = {bad}\nsources = {{dim = {bad}}}\n")
    (where / "keys.toml").write_text(f"{bad} = 1\nnorm.kind = {bad}\nlayers.cycle = [{bad}]\n")
    (where / f"raises{BAD}.py").write_text(f"raise ValueError({bad})\n")
    (where / "study.toml").write_text(f'baseline = "modern"\n[variants]\n{bad} = [{bad}]\n')
    (where / f"bad{BAD}.json").write_text(json.dumps({"model": {"type": BAD}}))
    (where / "checkpoint").mkdir()
    (where / "checkpoint" / "config.json").write_text(json.dumps({"model_type": BAD, BAD: 1}))
    run = where / "runs" / BAD
    run.mkdir(parents=True)
    (run / "spec.toml").write_text(f"format = 1\nname = {bad}\n{bad} = 3\n")
    words = tiny_words("text.txt", "budget=1steps", "evaluate.final_max_tokens=50")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(where)
        patch.setenv("ARCHWRIGHT_CACHE", str(where / "cache"))
        assert main([*words, "--quiet"]) == 0
    return where


@pytest.mark.sampled(fast=3)
@pytest.mark.parametrize("verb", VERBS)
def test_nothing_of_it_reaches_the_terminal(
    verb: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(folder)
    for words in COMMANDS[verb]:
        code = main([verb, *(word.replace("{bad}", BAD) for word in words.split())])
        out, err = capsys.readouterr()
        assert not STEERING.search(out + err), words
        assert "Traceback" not in err
        if code:
            assert all(re.match("archwright: .", line) for line in err.split("\n")[:-1]), err


def test_samples_are_kept_as_they_are_shown(folder: Path) -> None:
    """Bytes of a model that has learnt nothing are of every kind."""
    text = (folder / "runs" / "modern" / "samples.txt").read_text(encoding="utf-8")
    assert text
    assert not STEERING.search(text)
