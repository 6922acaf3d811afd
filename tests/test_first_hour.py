"""The first hours of docs/first-hour work as they stand there, with small budgets.

A page is typed from top to bottom in one folder. Files that it shows with a title are written, and commands run, but
for what SMALLER says: each budget is a few steps, and models and texts are small. Of what a page shows below a command

- a line of `show`, `diff`, `list`, `explain` or `plan`, which train nothing, must come out to the letter;
- of others, whose numbers are those of longer runs, a line must come out up to its first number;
- of `compare` only a line without a number, as the outcome may be another;
- of `generate` none.
"""

import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from archwright.cli import main
from tests.test_readme import BYTES, SHORT, SHORTER
from tests.tiny import MACHINE, ROOT, surroundings

pytestmark = pytest.mark.slow

PAGES = sorted((ROOT / "docs" / "first-hour").glob("*.md"))
SMALLER = ("budget=3steps", SHORTER, "batch_size=2", "evaluate.final_max_tokens=500", *MACHINE)
"""What `train` is given in the place of a budget."""
TO_THE_LETTER = ("show", "diff", "list", "explain", "plan")
BLOCK = re.compile(r"```(\w+)(?: title=\"([^\"]+)\")?\n(.*?)```", re.DOTALL)


def commands(block: str) -> Iterator[tuple[str, list[str]]]:
    """Yield each command of a block with the lines that are shown below it."""
    for text in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
        line, *shown = text.splitlines()
        yield line, [one.rstrip() for one in shown if one.strip() not in ("", "...")]


def smaller(words: list[str]) -> list[str]:
    """Return the words of a command with small budgets."""
    verb, *rest = words
    if verb == "compare":
        with_value = ("--budget", "--size", "--seeds")
        kept = [w for w, before in zip(rest, ["", *rest], strict=False) if before not in with_value]
        kept = [w for w in kept if w not in with_value]
        small = [*SHORT, "--parallelism=processes", "data.text=notes.txt", SHORTER, BYTES, *MACHINE]
        if "lr-transfer" in kept:  # no study of rates leaves them as they are
            small.remove("--no-tune-lr")
        return [verb, *kept, *small]
    budgeted = "demo" in rest or any(word.startswith("budget=") for word in rest)
    if verb == "train" and budgeted:
        fixed = {word.partition("=")[0].removeprefix("model.") for word in SMALLER}
        kept = [w for w in rest if w.partition("=")[0].removeprefix("model.") not in fixed]
        text = (
            [] if any(w.startswith("data.text=") for w in kept) else ["data.text=notes.txt", BYTES]
        )
        return [verb, *kept, *text, *SMALLER]
    if verb == "profile":
        kept = [word if word != "5" else "0.1" for word in rest]
        return [verb, *kept, "context_length=64", "vocab_size=300"]
    return words


def missing(verb: str, shown: list[str], printed: str) -> list[str]:
    """Return the lines of a page that did not come out."""
    lines = [line.rstrip() for line in printed.splitlines()]
    if verb == "profile":  # a busy machine may need a larger unit
        shown, lines = [
            [re.sub(r"^(µs|ms|s) +", "", line) for line in part] for part in (shown, lines)
        ]
    if verb == "generate":
        return []
    if verb in TO_THE_LETTER:
        return [line for line in shown if line not in lines]
    if verb == "compare":
        return [line for line in shown if not re.search(r"\d", line) and line not in lines]
    # Columns are as wide as their longest entry, which may be another.
    lines = [" ".join(line.split()) for line in lines]
    labels = {line: " ".join(re.split(r"\d", line)[0].split()) for line in shown}
    return [line for line in shown if not any(one.startswith(labels[line]) for one in lines)]


@pytest.mark.usefixtures("visitors")
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_first_hour(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ARCHWRIGHT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("COLUMNS", "150")
    (tmp_path / "notes.txt").write_text((ROOT / "CONTRIBUTING.md").read_text("utf-8") * 2, "utf-8")
    typed = 0
    for language, title, content in BLOCK.findall(page.read_text("utf-8")):
        if title:
            (tmp_path / title).write_text(content, "utf-8")
        if language != "console":
            continue
        for line, shown in commands(content):
            program, *words = shlex.split(line)
            if program == "python":
                subprocess.run([sys.executable, *words], check=True, env=surroundings())
                continue
            assert program == "archwright"
            typed += 1
            wrong = shown[:1] if shown and shown[0].startswith("archwright: ") else []
            code = main(smaller(words))
            printed = capsys.readouterr()
            assert code == (2 if wrong else 0), (line, printed.err)
            verb = "list runs" if words[:2] == ["list", "runs"] else words[0]
            assert missing(verb, shown, printed.out + printed.err) == [], line
    assert typed >= 8


def test_a_line_that_does_not_come_out_is_found() -> None:
    printed = "held-out loss  5.1  nats per token\nrun     runs/first\n"
    assert (
        missing("train", ["held-out loss  3.2  nats per token", "run     runs/first"], printed)
        == []
    )
    assert missing("train", ["held-out bits  3.2"], printed) == ["held-out bits  3.2"]
    assert missing("show", ["held-out loss  3.2  nats per token"], printed) != []
    assert missing("compare", ["run     runs/second", "worse by 0.2"], printed) == [
        "run     runs/second"
    ]


def test_only_budgets_models_and_texts_are_others() -> None:
    assert smaller(["show", "modern"]) == ["show", "modern"]
    train = smaller(["train", "modern", "dim=8", "data.text=a", "budget=60s", "--out", "b"])
    assert train == ["train", "modern", "dim=8", "data.text=a", "--out", "b", *SMALLER]
    given = smaller(["compare", "modern", ":norm.kind=layer", "--budget", "20m", "--dry-run"])
    assert given[:4] == ["compare", "modern", ":norm.kind=layer", "--dry-run"]
    assert {*SHORT} <= {*given}
