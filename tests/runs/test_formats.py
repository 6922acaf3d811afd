"""A run folder of every format so far opens, writes text, and has its page.

`format-N` is a run of three steps, made when N was the newest format, without its page and checkpoints. A change
that raises the number adds a folder and touches none of the old ones.
"""

import shutil
from pathlib import Path

import pytest

import archwright
from archwright.runs import RunFolder
from archwright.spec.renamings import FORMAT

FOLDERS = sorted(Path(__file__).parent.glob("format-*"))


def test_there_is_a_folder_of_every_format() -> None:
    assert [int(f.name.removeprefix("format-")) for f in FOLDERS] == list(range(1, FORMAT + 1))


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_it_opens_and_writes(folder: Path, tmp_path: Path) -> None:
    copy = tmp_path / "run"
    shutil.copytree(folder, copy)
    run = archwright.open_run(copy)
    assert run.folder.finished
    assert run.spec.model.dim == run.model.spec.dim == 16
    assert [r["step"] for r in run.folder.metrics() if r["kind"] == "train"] == [1, 2, 3]
    assert archwright.generate(run, "def", max_tokens=4).startswith("def")
    assert archwright.write_report(RunFolder.open(copy)).stat().st_size > 10_000
