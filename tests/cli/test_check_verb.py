"""`archwright check` on files of choices: a line for each law, an exit code, JSON."""

import json
import re
import sys
from pathlib import Path

import pytest

from archwright.cli import main
from archwright.cli.new_verb import FOLDER
from tests.tiny import write_text

NORM, OPTIMIZER = ((FOLDER / f"{name}.py").read_text("utf-8") for name in ("norm", "optimizer"))
pytestmark = pytest.mark.usefixtures("visitors")


@pytest.fixture
def optimizer(place: Path) -> Path:
    """An optimizer that ignores its schedule."""
    file = place / "mine.py"
    file.write_text(OPTIMIZER.replace('alpha=group["lr"]', "alpha=1e-3"), "utf-8")
    return file


def test_a_line_for_each_law(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (place / "mine.py").write_text(OPTIMIZER, "utf-8")
    assert main(["check", "mine.py"]) == 0
    first, *laws, empty, last = capsys.readouterr().out.splitlines()
    assert (first, empty, last) == ("mine.py: optimizer my_optimizer", "", "mine.py: OK")
    assert len(laws) == 5
    assert all(line.startswith("ok  ") for line in laws)


def test_a_package_is_checked_as_a_file(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])
    (place / "my_package").mkdir()
    (place / "my_package" / "__init__.py").write_text("from . import inner\n", "utf-8")
    (place / "my_package" / "inner.py").write_text(OPTIMIZER, "utf-8")
    assert main(["check", "my_package"]) == 0
    first, *laws = capsys.readouterr().out.splitlines()
    assert first == "my_package: optimizer my_optimizer"
    assert laws[0].startswith("ok  ")


def test_a_broken_law(optimizer: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "mine.py"]) == 1
    out, err = capsys.readouterr()
    assert err == ""
    assert "mine.py: OK" not in out
    assert out.splitlines()[-1] == "mine.py: 1 law is broken"
    text = " ".join(out.split())
    assert (
        "broken Steps follow the learning rate of the schedule, which at 0 moves nothing: weights moved; multiply a "
        'step, and what decays, by group["lr"], not by the lr of the spec' in text
    )


@pytest.mark.slow
def test_laws_that_wait_are_counted(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (place / "mine.py").write_text(NORM.replace("heads: int | None = None", "heads: int"), "utf-8")
    assert main(["check", "mine.py"]) == 1
    lines = capsys.readouterr().out.splitlines()
    (waiting,) = [line for line in lines if line.startswith("waiting")]
    assert re.fullmatch(r"waiting  \d\d more, until that is fixed", waiting)
    assert lines[-1] == "mine.py: 1 law is broken"


def test_json(optimizer: Path, place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (place / "mine.toml").write_text('base = "modern"\nvocab_size = 100\n', "utf-8")
    assert main(["check", "mine.toml", "mine.py", "--json"]) == 1
    choices, model = json.loads(capsys.readouterr().out)
    assert (choices["file"], choices["good"], choices["mistakes"]) == ("mine.py", False, [])
    (choice,) = choices["choices"]
    assert (choice["axis"], choice["kind"], choice["good"]) == ("optimizer", "my_optimizer", False)
    states = {law["law"]: law["state"] for law in choice["laws"]}
    assert states.pop("a_rate_of_zero_moves_nothing") == "broken"
    assert {*states.values()} == {"ok"}
    assert (model["file"], model["good"], model["mistakes"]) == ("mine.toml", True, [])
    assert len(model["warnings"]) == 1


def test_json_of_a_wrong_file(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (place / "mine.py").write_text("x = 1 / 0\n", "utf-8")
    assert main(["check", "mine.py", "--json"]) == 2
    out, err = capsys.readouterr()
    (record,) = json.loads(out)
    assert record["mistakes"] == ["mine.py, line 1: ZeroDivisionError: division by zero"]
    assert err == "archwright: mine.py, line 1: ZeroDivisionError: division by zero\n"


@pytest.mark.slow
def test_a_model_may_name_a_choice_that_is_checked_beside_it(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (place / "mine.py").write_text(NORM, "utf-8")
    (place / "mine.toml").write_text('base = "modern"\nnorm.kind = "my_norm"\n', "utf-8")
    assert main(["check", "mine.toml", "mine.py"]) == 0
    out = capsys.readouterr().out.splitlines()
    assert [line for line in out if line.endswith(": OK")] == ["mine.py: OK", "mine.toml: OK"]
    assert main(["check", "mine.toml"]) == 0


SMALL = (
    *("modern", "data.text=text.txt", "data.tokenizer.kind=bytes", "num_layers=1"),
    *("attention.num_heads=4", "context_length=32", "--widths", "128,32,64", "--seeds", "2"),
)
MUP = ("init.kind=mup", "attention.scale.kind=inverse")


def test_flat_widths(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_text(place / "text.txt", 200)
    assert main(["check", *SMALL, *MUP]) == 0
    head, *rows, empty, last = capsys.readouterr().out.splitlines()
    assert head.split()[2:] == ["dim", "32", "dim", "64", "dim", "128", "growth", "error"]
    parts = ["embedding", "layers.0.attention", "layers.0.feedforward", "head"]
    assert [row.split()[:2] for row in rows] == [[n, part] for n in ("1", "10") for part in parts]
    assert all(row.endswith(" %  OK") for row in rows)
    assert (empty, last) == ("", "modern: all changes are flat within 25 % over 2 seeds: OK")


def test_widths_that_are_not_flat(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_text(place / "text.txt", 200)
    assert main(["check", *SMALL, "--json"]) == 1
    record = json.loads(capsys.readouterr().out)
    assert (record["model"], record["seeds"], record["good"]) == ("modern", 2, False)
    assert [part["flat"] for part in record["parts"]] == [True, False, False, False] * 2
    assert record["parts"][2]["growth"] == pytest.approx(4, rel=0.25)
    assert record["parts"][2]["changes"].keys() == {"32", "64", "128"}


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (
            "modern --widths 64",
            "--widths: found 64; expected two widths or more, such as 32,64,128",
        ),
        ("modern --widths none", "--widths: expected two widths or more, such as 128,256,512"),
        ("modern --widths 64,x", '--widths: found "64,x"; expected whole numbers, such as 2,4'),
        ("modern --widths 64,128 --seeds 1", "--seeds: found 1; expected at least 2"),
        ("modern --seeds 3", "--widths: expected two widths or more, such as 128,256,512"),
        (
            "mine.txt --widths 64,128",
            '"mine.txt": no such preset; see archwright list, or give a file ending in .toml.',
        ),
        (
            "modern --widths 128,100",
            "model.attention.num_heads: found 8; expected a divisor of dim = 100, or a given "
            "attention.head_dim",
        ),
    ],
)
def test_wrong_widths(words: str, line: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", *words.split()]) == 2
    assert capsys.readouterr().err == f"archwright: {line}\n"
