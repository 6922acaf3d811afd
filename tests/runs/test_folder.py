import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from archwright import checkpoint
from archwright.checkpoint.started import FILE
from archwright.runs import RunFolder, find
from archwright.spec.errors import UserError
from archwright.spec.run_spec import RunSpec

SPEC = RunSpec(name="trial", budget="10steps")


def contents(folder: Path) -> dict[str, bytes]:
    return {
        str(file.relative_to(folder)): file.read_bytes()
        for file in sorted(folder.rglob("*"))
        if file.is_file()
    }


def make_checkpoint(run: RunFolder, step: int) -> Path:
    from torch import nn

    return checkpoint.save(
        run.checkpoints_folder, step, model=nn.Linear(1, 1), optimizers={}, state={}, keep=9
    )


def test_a_run_is_made_and_opened(tmp_path: Path) -> None:
    path = tmp_path / "runs" / "trial"
    made = RunFolder.create(path, SPEC)
    assert made.spec == SPEC
    opened = RunFolder.open(path)
    assert opened.path == path
    assert opened.spec == SPEC
    assert opened.metrics() == []
    assert opened.environment() == {}
    assert opened.samples() == ""
    assert opened.checkpoints() == {}
    assert not opened.finished
    assert sorted(contents(path)) == [FILE, "lock", "requested.toml", "spec.toml"]


def test_what_is_written_is_read(tmp_path: Path) -> None:
    run = RunFolder.create(tmp_path, SPEC)
    run.write_environment({"threads": 2, "peak": {"fp32": float("inf")}})
    run.write_samples("Once é\n")
    run.append({"kind": "note", "step": 1, "loss": 2.5})
    seen = {"kind": "probes", "step": 1, "tokens": 8, "seconds": 0.5}
    run.append_probes(seen | {"values": {"log_z": {"head": float("nan")}}})
    assert run.probes() == [seen | {"values": {"log_z": {"head": None}}}]
    assert run.environment() == {"threads": 2, "peak": {"fp32": None}}
    assert run.samples() == "Once é\n"
    assert run.metrics() == [{"kind": "note", "step": 1, "loss": 2.5}]


def test_an_equal_spec_comes_back_to_its_run(tmp_path: Path) -> None:
    run = RunFolder.create(tmp_path, SPEC)
    decided = SPEC.override("machine.threads=2", "machine.num_steps=10", "schedule.warmup=3")
    run.write_spec(decided)
    run.write_environment({})
    before = contents(tmp_path)
    again = RunFolder.create(tmp_path, SPEC)
    assert again.spec == decided
    # What the machine does is no part of what is trained.
    RunFolder.create(tmp_path, SPEC.override("machine.threads=1", "name=other"))
    assert contents(tmp_path) == before


def test_another_spec_is_refused_with_the_difference(tmp_path: Path) -> None:
    run = RunFolder.create(tmp_path, SPEC)
    run.write_spec(SPEC.override("machine.threads=2", "schedule.warmup=3"))
    run.write_environment({})
    before = contents(tmp_path)
    with pytest.raises(UserError) as caught:
        RunFolder.create(tmp_path, SPEC.override("seed=1", "model.dim=256"))
    (line,) = caught.value.lines
    assert f"{tmp_path} holds another run" in line
    assert "seed: 0 -> 1" in line
    assert "model.dim: " in line
    assert "warmup" not in line  # decided by the machine, not asked for
    assert "--out" in line
    assert f"--resume {tmp_path}" in line
    assert contents(tmp_path) == before


def test_many_differences_are_cut_short(tmp_path: Path) -> None:
    RunFolder.create(tmp_path, SPEC).write_environment({})
    other = SPEC.override(
        *(
            "seed=1",
            "model.dim=256",
            "batch_size=2",
            "budget=1m",
            "max_grad_norm=2.0",
            "z_loss=1.0",
        ),
        *("grad_accum_steps=2", "data.text=x", "optimizer.lr=0.1", "evaluate.every=3"),
    )
    with pytest.raises(UserError, match="; and 2 more") as caught:
        RunFolder.create(tmp_path, other)
    assert len(caught.value.lines) == 1


def test_a_folder_of_something_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("x")
    (tmp_path / "zoo").mkdir()
    with pytest.raises(UserError, match=r"not empty: it holds thesis\.tex and 1 more"):
        RunFolder.create(tmp_path, SPEC)
    assert list(contents(tmp_path)) == ["thesis.tex"]
    with pytest.raises(UserError, match="is a file"):
        RunFolder.create(tmp_path / "thesis.tex", SPEC)
    with pytest.raises(UserError, match="cannot be written"):
        RunFolder.create(tmp_path / "thesis.tex" / "run", SPEC)


@pytest.mark.slow
@pytest.mark.sampled(fast=1)
@pytest.mark.parametrize("written", [0, 1, 2])
def test_a_creation_that_was_killed_is_done_again(tmp_path: Path, written: int) -> None:
    """A child dies after it has written so many of the files."""
    program = f"""
import os, pathlib, sys
from archwright.runs import RunFolder
from archwright.spec.run_spec import RunSpec
replace, left = pathlib.Path.replace, [{written}]
def die(self, target):
    if target.suffix == ".toml":
        left[0] -= 1
        if left[0] < 0:
            os._exit(9)
    return replace(self, target)
pathlib.Path.replace = die
RunFolder.create(sys.argv[1], RunSpec(name="trial", budget="10steps"))
"""
    done = subprocess.run(
        [sys.executable, "-c", program, tmp_path / "run"],
        check=False,
        cwd=Path(__file__).parents[2],
    )
    assert done.returncode == (0 if written == 2 else 9)
    assert RunFolder(tmp_path / "run").exists == (written == 2)
    assert RunFolder.create(tmp_path / "run", SPEC).spec == SPEC


@pytest.mark.parametrize(
    "name", ["tokenizer", "requested.toml", "lock", "lock.json", ".hidden", ".a.tmp"]
)
def test_what_a_run_would_make_is_not_taken_for_its_own(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_text("mine") if name != "tokenizer" else path.mkdir()
    with pytest.raises(UserError, match=f"not empty: it holds {name}"):
        RunFolder.create(tmp_path, SPEC)
    assert [p.name for p in tmp_path.iterdir()] == [name]


def test_a_tokenizer_that_came_between_stays(tmp_path: Path) -> None:
    """A start was recorded, and killed; then somebody put a folder where the tokenizer goes."""
    run = RunFolder.create(tmp_path, SPEC)
    run.tokenizer_folder.mkdir()
    (run.tokenizer_folder / "tokenizer.json").write_text("mine")
    of_run: Any = SimpleNamespace(fingerprint="that of the run", save=None)
    with (
        pytest.raises(UserError, match="not the tokenizer of this run"),
        run.removed_unless_started(),
    ):
        run.write_tokenizer(of_run)
    assert contents(tmp_path) == {"tokenizer/tokenizer.json": b"mine"}


def test_the_record_of_a_start_goes_when_the_run_has_begun(tmp_path: Path) -> None:
    run = RunFolder.create(tmp_path, SPEC)
    with run.removed_unless_started():
        (tmp_path / ".spec.toml.99999999999.0123abcd.tmp").touch()
        (tmp_path / ".spec.toml.999999999.0123abcd.tmp").touch()
        run.write_environment({})
    assert sorted(contents(tmp_path)) == [
        *(
            ".spec.toml.99999999999.0123abcd.tmp",
            "environment.json",
            "lock",
            "requested.toml",
            "spec.toml",
        )
    ]


def test_a_busy_folder_is_not_begun_anew(tmp_path: Path) -> None:
    run = RunFolder.create(tmp_path, SPEC)
    with run.lock():
        before = contents(tmp_path)
        with pytest.raises(UserError, match="in use by process"):
            RunFolder.create(tmp_path, SPEC.override("seed=1"))
        assert contents(tmp_path) == before


def test_opening_what_is_no_run(tmp_path: Path) -> None:
    RunFolder.create(tmp_path / "modern", SPEC)
    with pytest.raises(UserError, match=r'there is no such run\. Did you mean ".*/modern"'):
        RunFolder.open(tmp_path / "modren")
    with pytest.raises(UserError, match=r"there is no such run\.$"):
        RunFolder.open(tmp_path / "none" / "none")
    (tmp_path / "spec.toml").write_text("dim = 3\n")
    with pytest.raises(UserError, match="no format number"):
        RunFolder.open(tmp_path)
    (tmp_path / "spec.toml").write_text("dim = \n")
    with pytest.raises(UserError, match=r"spec\.toml is damaged: it is not TOML"):
        RunFolder.open(tmp_path)


def test_mistakes_in_the_spec_name_its_file(tmp_path: Path) -> None:
    run = RunFolder.create(tmp_path, SPEC)
    with run.spec_file.open("a") as file:
        file.write("\n[nonsense]\nx = 1\n")
    with pytest.raises(UserError, match=r"spec\.toml: .*nonsense"):
        _ = RunFolder.open(tmp_path).spec


def test_cut_back(tmp_path: Path) -> None:
    run = RunFolder.create(tmp_path, SPEC)
    for step in (0, 10, 20, 25):
        run.append({"kind": "note", "step": step})
        run.append_probes(
            {"kind": "probes", "step": step, "tokens": 0, "seconds": 0.0, "values": {}}
        )
        run.append_probes({"kind": "note", "step": step})  # of another kind, and left out
    paths = {step: make_checkpoint(run, step) for step in (10, 20)}
    (run.checkpoints_folder / ".tmp-25").mkdir()
    (run.path / ".spec.toml.123.0123abcd.tmp").touch()
    assert run.checkpoints() == paths
    run.truncate_to(10)
    assert [record["step"] for record in run.metrics()] == [0, 10]
    assert [record["step"] for record in run.probes()] == [0, 10]
    assert [p.name for p in run.checkpoints_folder.iterdir()] == ["step-10"]
    assert not list(run.path.glob(".*.tmp"))
    run.truncate_to(-1)
    assert run.metrics() == []
    assert run.checkpoints() == {}


def test_finished(tmp_path: Path) -> None:
    run = RunFolder.create(tmp_path, SPEC)
    for name, finished in (
        *(("started", False), ("stopped", False), ("resumed", False), ("finished", True)),
        *(("loss_spike", True), ("resumed", False)),
    ):
        run.append({"kind": "event", "step": 1, "name": name})
        assert run.finished == finished


def test_runs_are_found(tmp_path: Path) -> None:
    for name in ("b", "a"):
        RunFolder.create(tmp_path / name, SPEC)
    (tmp_path / "c").mkdir()
    assert [run.path.name for run in find(tmp_path)] == ["a", "b"]
    assert find(tmp_path / "none") == []


def test_a_damaged_environment_is_named(tmp_path: Path) -> None:
    run = RunFolder.create(tmp_path, SPEC)
    run.write_environment({"data": [1], "decisions": {"a": 3}, "cpu": "x", "memory_bytes": "much"})
    with pytest.warns(UserWarning, match="left out as damaged: data, decisions, memory_bytes"):
        assert run.environment() == {"cpu": "x"}
    run.environment_file.write_text("[]")
    with pytest.raises(UserError, match="no JSON object"):
        run.environment()
    run.environment_file.write_text("{")
    with pytest.raises(UserError, match=r"environment\.json is not JSON"):
        run.environment()


@pytest.mark.skipif(sys.platform != "linux", reason="mounts a tmpfs")
def test_a_read_only_and_a_full_disk(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=100k", "none", disk]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("may not mount a file system")
    try:
        run = RunFolder.create(disk / "run", SPEC)
        (disk / "ballast").write_bytes(b"x" * (os.statvfs(disk).f_bavail * 4096))
        for call in (
            lambda: RunFolder.create(disk / "new", SPEC),
            lambda: run.write_samples("x"),
            lambda: run.append({"kind": "train", "step": 1}),
        ):
            with pytest.raises(UserError, match="cannot be written: No space left on device"):
                call()
        assert run.metrics() == []
        (disk / "ballast").unlink()
        assert RunFolder.create(disk / "new", SPEC).spec == SPEC
        subprocess.run(["mount", "-o", "remount,ro", disk], check=True)
        for call in (
            lambda: RunFolder.create(disk / "other", SPEC),
            lambda: run.append({"kind": "train", "step": 1}),
            lambda: run.lock().__enter__(),
        ):
            with pytest.raises(UserError, match="cannot be written: Read-only file system"):
                call()
        assert RunFolder.create(disk / "run", SPEC).spec == SPEC
    finally:
        subprocess.run(["umount", disk], check=True)


def test_reading_a_run_needs_no_torch(tmp_path: Path) -> None:
    run = RunFolder.create(tmp_path, SPEC)
    make_checkpoint(run, 3)
    program = """
import json, sys
from archwright.runs import RunFolder
run = RunFolder.open(sys.argv[1])
run.spec, run.metrics(), run.environment(), run.samples(), run.finished
print(json.dumps([list(run.checkpoints()), "torch" in sys.modules]))
"""
    done = subprocess.run(
        [sys.executable, "-c", program, tmp_path],
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(__file__).parents[2],
    )
    assert json.loads(done.stdout) == [[3], False]


@pytest.mark.skipif(os.name == "nt", reason="needs links")
@pytest.mark.parametrize("name", ["checkpoints", "tokenizer", "csv", "tensorboard", "wandb"])
def test_a_strangers_run_with_links_for_folders_is_refused(name: str, tmp_path: Path) -> None:
    run = RunFolder.create(tmp_path / "run", SPEC)
    (tmp_path / "mine").mkdir()
    (run.path / name).symlink_to(tmp_path / "mine")
    for use in (RunFolder.open, lambda path: RunFolder.create(path, SPEC)):
        with pytest.raises(UserError, match=f"{name}: found a link to .*mine; expected a folder"):
            use(run.path)


@pytest.mark.skipif(os.name == "nt", reason="needs links")
@pytest.mark.parametrize("name", ["lock", "metrics.jsonl", FILE])
def test_nothing_is_written_through_a_link_in_place_of_a_file(name: str, tmp_path: Path) -> None:
    run, mine = RunFolder(tmp_path / "run"), tmp_path / "mine"
    mine.write_text("mine\n")
    run.path.mkdir()
    (run.path / name).symlink_to(mine)
    with pytest.raises(UserError, match=r"found a link; expected a file|not empty"):  # noqa: PT012
        RunFolder.create(run.path, SPEC) if name == FILE else run.append(
            {"kind": "event", "step": 0}
        )
        with run.lock():
            pass
    assert mine.read_text() == "mine\n"


def test_who_loses_the_lock_stops_and_leaves_it_to_the_next(tmp_path: Path) -> None:
    """Lock files were removed by hand, and another process has begun."""
    run = RunFolder.create(tmp_path / "run", SPEC)
    with run.lock():
        run.check_kept()
        run.lock_file.unlink()
        run.holder_file.unlink()
        with RunFolder.open(run.path).lock():
            with pytest.raises(UserError, match=r"lock\.json was removed during training"):
                run.check_kept()
            run.holder_file.write_text(run.holder_file.read_text().replace('"pid": ', '"pid": 1'))
    assert run.holder_file.exists()
