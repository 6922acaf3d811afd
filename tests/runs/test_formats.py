"""A recorded run folder opens, writes text, and has its page; one of another format is refused.

`format-2` is a run of three steps, without its page and checkpoints. It is never changed.
"""

import shutil
from pathlib import Path

import pytest

import archwright
from archwright.runs import RunFolder
from archwright.spec.errors import UserError
from archwright.spec.version import FORMAT

FOLDER = Path(__file__).with_name(f"format-{FORMAT}")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return Path(shutil.copytree(FOLDER, tmp_path / "run"))


def test_it_opens_and_writes(folder: Path) -> None:
    run = archwright.open_run(folder)
    assert run.folder.finished
    assert run.spec.model.dim == run.model.spec.dim == 16
    assert [r["step"] for r in run.folder.metrics() if r["kind"] == "train"] == [1, 2, 3]
    assert str(archwright.generate(run, "def", max_new_tokens=4)).startswith("def")
    assert archwright.write_report(RunFolder.open(folder)).stat().st_size > 10_000


@pytest.mark.parametrize(
    ("found", "advice"),
    [(1, "Train again with another --out"), (FORMAT + 1, "Install a later archwright")],
)
def test_another_format_is_refused(folder: Path, found: int, advice: str) -> None:
    file = folder / "spec.toml"
    file.write_text(file.read_text().replace(f"format = {FORMAT}\n", f"format = {found}\n"))
    line = f"{file}: found format {found}; expected {FORMAT}. {advice}."
    spec = archwright.load_run("demo")
    for use in (
        lambda: archwright.open_run(folder),
        lambda: archwright.resume(folder),
        lambda: RunFolder.create(folder, spec),
        lambda: archwright.load_run(folder),
        lambda: archwright.load_run(file),
    ):
        with pytest.raises(UserError) as error:
            use()
        assert error.value.lines == (line,)
