"""The pages with recipes and loggers do what they say: each command runs in its order, with a small budget."""

import re
import shlex
from pathlib import Path

import pytest

from archwright.cli import main
from archwright.reporting.csv_log import COLUMNS
from archwright.spec.run_spec import LOGGERS
from tests.test_readme import BYTES, SHORTER, SMALL, blocks, run_python
from tests.tiny import MACHINE, ROOT

PAGES = {name: (ROOT / "docs" / f"{name}.md").read_text("utf-8") for name in ("recipes", "logging")}
ONWARDS = ["batch_size=2", "evaluate.final_max_tokens=500", *MACHINE]
"""Of runs that start from another, which has its own tokenizer and length."""
STUDY = ["--budget=2steps", "--seeds=2", "--evaluation-tokens=1024", BYTES, SHORTER, *MACHINE]


def commands(page: str) -> list[str]:
    lines = "".join(blocks(PAGES[page], "sh")).splitlines()
    return [line for line in lines if "archwright " in line]


def shortened(line: str) -> list[str]:
    """Return the words of a command with a small model and a budget of a few steps; W&B may not be here."""
    line = line.replace("=wandb", "=csv").replace("num_layers=2", "num_layers=1")
    line = line.replace("dim=128", "dim=32").replace("dim=256", "dim=64")
    found = re.sub(r"budget=\w+|schedule\.warmup=\w+", _few, line)
    _, verb, *words = shlex.split(found[found.index("archwright ") :])
    if verb == "train":
        words += ONWARDS if words[0].startswith("runs/") else SMALL
    if verb == "compare":
        words = [w for w in words if w not in ("--budget", "10m", "--seeds", "3")] + STUDY
    if verb == "generate":
        words += ["--max-new-tokens=4"]
    return [verb, *words]


def _few(key: re.Match[str]) -> str:
    return f"{key[0].split('=')[0]}={'4steps' if key[0].startswith('budget') else '4'}"


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A folder for each page, with texts of the user's own."""
    text = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
    found = {page: tmp_path_factory.mktemp(page) for page in PAGES}
    for path in found.values():
        (path / "notes.txt").write_text(text * 2, "utf-8")
        (path / "letters.txt").write_text(text, "utf-8")
    return found


@pytest.mark.sequence
@pytest.mark.parametrize(
    ("page", "line"),
    [(page, line) for page in PAGES for line in commands(page)],
    ids=lambda text: text[11:71].strip(),
)
def test_a_command_runs(
    page: str,
    line: str,
    folders: dict[str, Path],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(folders[page])
    monkeypatch.setenv("ARCHWRIGHT_CACHE", str(folders[page] / "cache"))
    if "tensorboard" in line:
        pytest.importorskip("tensorboard")
    assert main(shortened(line)) == 0, capsys.readouterr().err


@pytest.mark.sequence
@pytest.mark.parametrize("page", PAGES)
def test_the_python_runs(page: str, folders: dict[str, Path]) -> None:
    """After the commands, whose runs it opens."""
    folder = folders[page]
    small = ", ".join(f'"{word}"' for word in ["budget=3steps", *SMALL])
    code = "\n".join(blocks(PAGES[page], "python")).replace('"budget=60s"', small)
    code = code.replace("dim=128", "dim=32").replace("num_layers=2", "num_layers=1")
    said = run_python(code, folder)
    assert ("lowest near lr" if page == "recipes" else "RunHistory(3 steps") in said


def test_the_page_has_every_key_and_logger() -> None:
    rows = {
        cells[1].strip(" `"): set(re.findall(r"`(\w+)`", "".join(cells[2:])))
        for line in PAGES["logging"].splitlines()
        if (cells := line.split("|"))[1:]
    }
    place = {"step", "tokens", "seconds", "cpu_seconds"}
    for kind, columns in COLUMNS.items():
        assert set(columns) - place == rows[kind] & {*columns}
    assert {*LOGGERS} <= rows.keys()
