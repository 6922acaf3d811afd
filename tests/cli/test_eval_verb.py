"""The verb `eval`: runs and folders, one or two of them, and its mistakes."""

import json
import sys
from pathlib import Path

import pytest

import archwright as aw
from archwright.cli.main import main
from archwright.hf import export_run
from archwright.spec.read import load_run
from tests.tiny import MACHINE, tiny_run, write_text

FEW = ("budget=2steps", "evaluate.max_tokens=50", "evaluate.final_max_tokens=50")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with two runs, an export, a run of a task, and a text."""
    folder = tmp_path_factory.mktemp("eval")
    text = write_text(folder / "text.txt", 60)
    for name, seed in (("a", 1), ("b", 2)):
        aw.train(tiny_run(text, *FEW, f"seed={seed}"), out=folder / name, quiet=True)
    export_run(folder / "a", folder / "export")
    task = ("data.text=mqar", "model.dim=32", "model.num_layers=1", "batch_size=4", *MACHINE)
    few = ("budget=1steps", "evaluate.max_tokens=512", "evaluate.final_max_tokens=512")
    aw.train(load_run("modern").override(*task, *few), out=folder / "task", quiet=True)
    (folder / "empty.txt").touch()
    (folder / "plain").mkdir()
    return folder


def printed(capsys: pytest.CaptureFixture[str], words: str) -> str:
    assert main(["eval", *words.split()]) == 0
    return capsys.readouterr().out


def test_an_export_is_evaluated_as_its_run(
    place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(place)
    before = sorted(place.rglob("*"))
    run = printed(capsys, "a --text text.txt --length 64")
    assert printed(capsys, "export --text text.txt --length 64") == run
    assert sorted(place.rglob("*")) == before
    found = json.loads(printed(capsys, "a --text text.txt --length 64 --json"))
    low, high = found["interval"]
    assert f"nats per token  {found['nats_per_token']:.4f} ({low:.4f} to {high:.4f})" in run
    assert f"over {found['resampled']}" in run
    last = found["by_position"][-1]
    assert f"33 to 64  {last['nats_per_token']:.4f}   beyond the context" in run


def test_two_runs_are_compared(
    place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(place)
    found = json.loads(printed(capsys, "a b --text text.txt --json"))
    first = json.loads(printed(capsys, "a --text text.txt --json"))
    assert found["first"] == first
    mean = found["second"]["nats_per_token"] - first["nats_per_token"]
    assert found["nats_per_token"]["mean"] == pytest.approx(mean)
    shown = printed(capsys, "a b --text text.txt")
    assert "B - A (95 % interval)" in shown
    assert "+0.0000 (+0.0000 to +0.0000)" in printed(capsys, "a export --text text.txt")


def test_what_rounded_weights_change(
    place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(place)
    shown = printed(capsys, "a --weights int8")  # on its own held-out text
    assert "B     a, weights in int8" in shown
    changes = [
        json.loads(printed(capsys, f"a --weights {weights} --text text.txt --json"))
        for weights in ("int8", "int4")
    ]
    first, second = (abs(change["bits_per_byte"]["mean"]) for change in changes)
    assert 0 < first < second < 0.1
    assert changes[0]["first"] == json.loads(printed(capsys, "a --text text.txt --json"))


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ("export --text empty.txt", "--text: there is no text; every file is empty."),
        ("plain --text text.txt", "plain is not a run folder: it has no spec.toml."),
        ("a task --text text.txt", '--text: task was trained on the task "mqar", whose answers are no text; '
         "leave it out to judge on held-out examples: archwright eval task"),
        ("a b", "--text: found none; expected files, folders, globs or stdlib, to compare two runs"),
        ("a b export --text text.txt", "export: found a third run; expected one run, or two to compare"),
        ("a --text text.txt --device gpu", '--device: found "gpu"; expected auto, cpu, cuda or cuda:N. '
         'Did you mean "cuda"?'),
        ("a --text text.txt --dtype float61", '--dtype: found "float61"; expected float32, bfloat16 or float16. '
         'Did you mean "float16"?'),
        ("a b --weights int8 --text text.txt", "--weights: expected one run, which is read on a text; leave out "
         "what is more"),
        ("a --limit 3", "--limit: a setting of --tasks; add --tasks or leave it out"),
        ("a --tasks x --text text.txt", "--text: has no effect on --tasks; leave it out"),
        ("a b --tasks x --text", "--text: expected at least one argument. See archwright eval --help"),
        ("task --length 8", "--length: has no effect on a task; leave it out"),
    ],
)  # fmt: skip
def test_mistakes(
    words: str,
    line: str,
    place: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(place)
    assert main(["eval", *words.split()]) == 2
    assert capsys.readouterr().err.splitlines()[-1] == f"archwright: {line}"


def test_lm_eval_is_optional(
    place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "lm_eval", None)
    monkeypatch.delitem(sys.modules, "archwright.training.harness", raising=False)
    assert main(["eval", str(place / "a"), "--tasks", "piqa"]) == 2
    line = "lm_eval is not installed; install it with: pip install 'archwright[eval]'"
    assert capsys.readouterr().err.splitlines()[-1] == f"archwright: {line}"
