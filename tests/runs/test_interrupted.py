"""A recorded run that was killed is continued by the command it was made with.

`interrupted` holds a run that was killed after its checkpoint of step 4, its recipe and its text, and what the same
code gave where nothing disturbed the run. None of it is ever changed.
"""

import json
import shutil
from pathlib import Path

import pytest
from safetensors.torch import load_file

import archwright
from tests.golden.record import tensor


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    shutil.copytree(Path(__file__).with_name("interrupted"), tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_it_opens_and_has_a_page(folder: Path) -> None:
    run = archwright.open_run(folder / "run")
    assert not run.folder.finished
    assert run.model.spec.dim == 16
    assert archwright.write_report(run.folder).stat().st_size > 10_000


@pytest.mark.slow
def test_the_same_command_continues_it(folder: Path) -> None:
    undisturbed = json.loads((folder / "undisturbed.json").read_text(encoding="utf-8"))
    archwright.train(archwright.load_run("recipe.toml"), out="run", quiet=True)
    lines = (folder / "run" / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    metrics = [json.loads(line) for line in lines]
    assert [line["name"] for line in metrics if line["kind"] == "event"][:2] == [
        "started",
        "resumed",
    ]
    losses = [line["loss"] for line in metrics if line["kind"] == "train"]
    assert losses == pytest.approx(undisturbed["losses"], rel=1e-6)
    weights = {name: tensor(w) for name, w in load_file(folder / "run/model.safetensors").items()}
    assert sorted(weights) == sorted(undisturbed["tensors"])
    for name, (shape, size, mean) in undisturbed["tensors"].items():
        assert weights[name][0] == shape
        assert weights[name][1:] == pytest.approx([size, mean], rel=1e-6, abs=1e-6 * size), name
