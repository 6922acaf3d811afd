"""The trainers of docs/examples/own-trainer, by the commands of their page, in a few steps."""

import shlex
import shutil
from pathlib import Path

import pytest

from archwright.cli import main
from archwright.lab.external.study import compare_command
from tests.lab.fake_slurm import FakeSlurm
from tests.tiny import ROOT

EXAMPLES = ROOT / "docs" / "examples" / "own-trainer"
PAGE = (ROOT / "docs" / "own-trainer.md").read_text("utf-8")


def words_of(script: str, steps: int) -> list[str]:
    """Return the words of the page's command for a script, with few steps and pairs."""
    text = PAGE.replace("\\\n", "")
    line = next(line for line in text.splitlines() if "--command" in line and script in line)
    words = shlex.split(line.removeprefix("$ "))[1:]
    words[words.index("--steps") + 1] = str(steps)
    return [*words, "--seeds", "2", "--no-tune-lr", "--horizons", "none", "--check-steps", "5"]


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the examples."""
    shutil.copytree(EXAMPLES, tmp_path / "own")
    monkeypatch.chdir(tmp_path / "own")
    return tmp_path


@pytest.mark.parametrize(
    ("script", "steps"),
    [
        ("train.py", 10),
        pytest.param("from_config.py", 10, marks=pytest.mark.slow),
        pytest.param("hf_trainer.py", 10, marks=pytest.mark.slow),
    ],
)
def test_an_example(script: str, steps: int) -> None:
    assert main([*words_of(script, steps), "--quiet", "--out", "s"]) == 0
    results = list(Path("s/runs").glob("*/result.json"))
    assert len(results) == 1 + (1 if "--twin" in words_of(script, steps) else 0) + 4
    assert "Pairs" in Path("s/report.html").read_text("utf-8")


@pytest.mark.slow
def test_jobs_of_slurm(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("submitit")
    from archwright.lab.running.where import Where

    slurm = FakeSlurm(place / "slurm")
    for name, value in slurm.variables.items():
        monkeypatch.setenv(name, value)
    Path("t.py").write_text(
        "import sys\nprint('loss', 3 - float(sys.argv[1]) + int(sys.argv[2]) / 9)\n"
    )
    results = compare_command(
        command="python t.py {variant} {seed} {out}",
        variants=["0", "0.1"],
        metric=r"stdout:loss (\S+)",
        seeds=2,
        out="s",
        quiet=True,
        gpus_per_job=2,
        where=Where("slurm", 2),
    )
    assert results.effects[0].differences == pytest.approx([-0.1, -0.1])
    assert all("gpus-per-node=2" in script for script in slurm.scripts())
