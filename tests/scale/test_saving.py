"""Checkpoints of two processes: what they hold, who goes on with them, and what is left when one of the two falls."""

import json
import shutil
from pathlib import Path

import pytest
import torch

import archwright
from archwright import checkpoint
from archwright.runs import RunFolder
from tests.scale.together import LOSSES, events, gone_back, started, trained, values
from tests.tiny import tiny_words

pytestmark = pytest.mark.slow

STEPS, EVERY = 12, 4


@pytest.fixture(scope="module")
def words(text: Path) -> list[str]:
    return tiny_words(
        text,
        f"budget={STEPS}steps",
        f"checkpoint.every={EVERY}",
        "checkpoint.keep=9",
        "evaluate.every=100",
        "evaluate.final_max_tokens=300",
        "model.attention.num_kv_heads=2",
    )


@pytest.fixture(scope="module")
def whole(words: list[str], tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """A run of a tensor group of two, undisturbed."""
    return trained(2, tmp_path_factory.mktemp("whole") / "run", *words, "scale.tensor=2")


def test_each_writes_what_it_holds(whole: RunFolder) -> None:
    assert [*whole.checkpoints()] == [4, 8, 12]
    for path in whole.checkpoints().values():
        names = {file.name for file in path.iterdir()}
        parts = {
            f"{n}-0000{i}-of-00002.safetensors" for n in ("model", "optimizers") for i in (1, 2)
        }
        assert names == {*parts, "state.safetensors", "state.json", "COMPLETE.json"}
        sizes = [(path / f"model-0000{i}-of-00002.safetensors").stat().st_size for i in (1, 2)]
        assert max(sizes) < 1.3 * min(sizes)
    saved = checkpoint.read_model(whole.checkpoints()[STEPS] / "model.safetensors")
    for name, value in checkpoint.read_model(whole.model_file).items():
        assert torch.equal(saved[name], value), name  # what was gathered is what is read


@pytest.mark.release
def test_one_killed_while_it_writes_costs_that_checkpoint_alone(
    words: list[str], whole: RunFolder, tmp_path: Path
) -> None:
    """Started again, both go on from the one before, bit for bit."""
    path = tmp_path / "run"
    again = ("--max-restarts=1", "-m", "tests.scale.struck", "killed", str(2 * EVERY))
    done = started(2, *again, *words, "scale.tensor=2", "--out", str(path))
    assert done.returncode == 0, done.stderr
    folder = RunFolder(path)
    assert [step for name, step in events(folder) if name == "resumed"] == [EVERY]
    assert [p.name for p in folder.checkpoints_folder.glob(".*")] == []
    assert folder.model_file.read_bytes() == whole.model_file.read_bytes()
    for step, found in folder.checkpoints().items():
        for file in found.glob("*-of-*"):
            assert file.read_bytes() == (whole.checkpoints()[step] / file.name).read_bytes()


@pytest.mark.release
def test_a_full_disk_of_one_of_four_is_told_once_and_two_go_on(
    words: list[str], whole: RunFolder, tmp_path: Path
) -> None:
    path = tmp_path / "run"
    struck = ("-m", "tests.scale.struck", "full", str(2 * EVERY))
    grid = ("scale.shard=2", "scale.tensor=2")
    done = started(4, *struck, *words, *grid, "--out", str(path))
    assert done.returncode != 0
    told = [line for line in done.stderr.splitlines() if "cannot be written" in line]
    assert len(told) == 1, done.stderr
    assert "process 1 of 4: " in told[0]
    assert "No space left on device" in told[0]
    assert "UserError" not in done.stderr, "no traceback but torchrun's own"
    folder = RunFolder(path)
    assert [p.name for p in folder.checkpoints_folder.iterdir()] == [f"step-{EVERY}"]
    done = started(2, "-m", "archwright", "train", "--resume", str(path))
    assert done.returncode == 0, done.stderr
    (on,) = [r["text"] for r in folder.metrics() if r.get("name") == "resumed"]
    assert on == f"at step {EVERY} on 2 processes, scale.replicate = 1, scale.shard = 2"
    for kind, key in LOSSES:
        ours, theirs = (values(f, kind, key) for f in (folder, whole))
        assert ours == pytest.approx(theirs, abs=1e-6 if kind == "train" else 1e-5)


def test_one_process_goes_on_from_both_kinds(whole: RunFolder, tmp_path: Path) -> None:
    """From what two have written and, of the same values, from files of one process."""
    losses = []
    for kind in ("parts", "whole"):
        folder = RunFolder(tmp_path / kind)
        shutil.copytree(whole.path, folder.path)
        gone_back(folder, EVERY)
        if kind == "whole":
            rewrite(folder)
        archwright.resume(folder, quiet=True)
        losses.append(values(folder, "train", "loss"))
    assert losses[0] == losses[1]
    assert losses[0] == pytest.approx(values(whole, "train", "loss"), abs=1e-6)


def rewrite(folder: RunFolder) -> None:
    """Put a checkpoint of one process in the place of the one in parts."""
    from archwright.training.data import reload_data
    from archwright.training.resolve import resolved_session

    session, _ = resolved_session(folder, reload_data(folder.spec, folder))
    session.restore(folder.checkpoints()[EVERY])
    session.save(folder.checkpoints_folder)
    assert (folder.checkpoints()[EVERY] / "model.safetensors").is_file()


def test_a_damaged_part_is_told_in_one_line(whole: RunFolder, tmp_path: Path) -> None:
    path = tmp_path / "run"
    shutil.copytree(whole.path, path)
    folder = gone_back(RunFolder(path), 2 * EVERY)
    (file,) = folder.checkpoints()[2 * EVERY].glob("model-00002-*")
    content = bytearray(file.read_bytes())
    content[-3] ^= 1
    file.write_bytes(content)
    with pytest.warns(
        UserWarning, match=r"model-00002-of-00002.safetensors is damaged: .* step-4 is used"
    ):
        archwright.resume(folder, quiet=True)
    assert ("resumed", EVERY) in events(folder)
    assert json.loads((folder.checkpoints()[STEPS] / "COMPLETE.json").read_text())["step"] == STEPS
