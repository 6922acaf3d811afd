"""The tool that kills processes of one run: its kills happen where it says, and it sees what does not hold."""

import errno
import os
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from archwright import checkpoint
from archwright.files import replacing
from tests.faults.ranks import PHASES, SEALING, TORCHRUN, TRAINING, WRITING, Moment, Plan, Struck
from tests.faults.scale import GRIDS, KILLS, ROUTES, Ended, Stage, Verdict, _orphans, rows

pytestmark = pytest.mark.skipif(os.name == "nt", reason="needs SIGKILL")


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Stage:
    return Stage(tmp_path_factory.mktemp("faults"), 0)


def test_kills_are_of_all_kinds(stage: Stage) -> None:
    phases, victims, sizes = Counter[str](), Counter[int](), Counter[int]()
    for number in range(40):
        route = ROUTES[number % len(ROUTES)]
        launches = [*stage._launches(number, (route[0], route[-1]))]
        kills = [m for _, moments, _ in launches for m in moments if not m.error]
        assert len(kills) == KILLS
        *before, last = launches
        assert all(len(moments) > restarts for _, moments, restarts in before), "these fail"
        assert len(last[1]) <= last[2], "the last one is finished"
        phases.update(moment.phase for moment in kills)
        victims.update(len(moment.victims) for moment in kills)
        sizes.update(GRIDS[name].number for name, moments, _ in launches for _ in moments)
    assert min(phases[phase] for phase in PHASES) >= 20
    assert min(sizes[number] for number in (1, 2, 4)) >= 20
    assert min(victims[number] for number in (1, 2, 4)) >= 10


@pytest.mark.parametrize(
    ("victims", "error", "written"),
    [
        *(((0,), 0, b"abcd"), ((0, 1), 0, b"abcd"), ((), errno.ENOSPC, b"abcd")),
        *(((1,), 0, b""), ((TORCHRUN,), 0, b"")),
    ],
    ids=["itself", "all", "a full disk", "another", "torchrun"],
)
def test_who_goes_on_has_written_nothing_by_halves(
    victims: tuple[int, ...],
    error: int,
    written: bytes,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Half of a tensor, and then all of it, would make another file than without the blow."""
    fallen, file = [], tmp_path / "run" / "checkpoints" / "file"
    monkeypatch.setattr(Struck, "__init__", lambda *_: None)
    monkeypatch.setattr(Struck, "_fall", lambda self: fallen.append(True))
    struck = Struck(None, 0, 0)  # type: ignore[arg-type]
    struck.folder, struck.rank, struck.phase = str(tmp_path / "run"), 0, WRITING
    struck.moment, struck.is_mine = Moment(WRITING, 0, 1, 0.0, victims, error), True
    struck.nth, struck.number, struck.is_full = {WRITING: 1}, 0, False
    struck.plan = Plan("", "", (), {f"0 {WRITING}": 1})
    file.parent.mkdir(parents=True)
    with file.open("wb") as plain:
        struck.meet("write", file, lambda: plain.write(b"abcd"))
    assert fallen == [True]
    assert file.read_bytes() == written


@pytest.mark.slow
@pytest.mark.parametrize("phase", [TRAINING, WRITING, SEALING])
@pytest.mark.release
def test_a_kill_falls_where_it_should_and_costs_nothing(stage: Stage, phase: str) -> None:
    plain, place = stage.plain("1"), stage.folder / phase
    place.mkdir()
    moment = Moment(phase, 0, 2, 0.5, (0,))
    ended = stage._launched(place, GRIDS["1"], (moment,), stage._events["1"], 1)
    [note] = ended.notes
    assert note["victims"] == [0]
    assert note["phase"] == phase or phase == TRAINING  # a checkpoint may be written meanwhile
    found = Verdict(0, "1")
    stage._add(found, ended, (moment,), 1)
    stage._compare(found, place / "run", plain, is_exact=True)
    assert found.is_good, found
    assert rows([found])[0][:2] == ["1", 1]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("harm", "seen"),
    [
        (lambda run: changed(run / "model.safetensors"), "apart"),
        (lambda run: changed(next(run.glob("checkpoints/*/optim*"))), "other content"),
        (lambda run: next(run.glob("checkpoints/*/optim*")).unlink(), "missing: "),
        (lambda run: (run / "checkpoints" / ".tmp-3").mkdir(), ".tmp-3"),
        (lambda run: without_a_step(run / "metrics.jsonl"), "inf apart"),
    ],
)
def test_what_is_lost_is_seen(
    stage: Stage, tmp_path: Path, harm: Callable[[Path], None], seen: str
) -> None:
    plain, run = stage.plain("1"), tmp_path / "run"
    shutil.copytree(plain, run)
    harm(run)
    found = Verdict(0, "1")
    stage._compare(found, run, plain, is_exact=True)
    assert any(seen in line for line in (*found.problems, *found.left)), found


def changed(file: Path) -> None:
    """Change a number a little."""
    tensors, about = checkpoint.read_model(file), checkpoint.read_metadata(file)
    name = next(name for name, value in tensors.items() if value.ndim)
    tensors[name] = tensors[name] + torch.finfo(torch.float32).eps
    with replacing(file) as beside:  # the tensors are those of the old file, mapped
        checkpoint.weights.write_tensors(beside, tensors, about)


def without_a_step(file: Path) -> None:
    lines = file.read_text().splitlines(keepends=True)
    lines.remove(next(line for line in lines if '"train"' in line))
    file.write_text("".join(lines))


def test_wrong_ends_are_seen() -> None:
    kill, full = Moment(TRAINING, 0, 2, 0.5, (0,)), Moment(WRITING, 0, 1, 0.5, (), errno.ENOSPC)
    note = {"phase": TRAINING}
    cases = [
        ((kill,), 0, Ended(0, "", [note], []), "exit code 0"),
        ((kill,), 1, Ended(1, "", [note], []), "exit code 1"),
        ((kill._replace(victims=(TORCHRUN,)),), 0, Ended(0, "", [note], []), "exit code 0"),
        ((kill,), 1, Ended(0, "", [{}], []), "nothing fell"),
        ((full,), 0, Ended(1, "Traceback", [note], []), "reported in 0 lines"),
    ]
    for moments, restarts, ended, seen in cases:
        found = Verdict(0, "1")
        Stage._add(found, ended, moments, restarts)
        assert len(found.problems) == 1
        assert seen in found.problems[0]
    found = Verdict(0, "1")
    Stage._add(found, Ended(0, "", [], ["RANK=1 of 7"]), (), 0)
    assert not found.is_good


def test_a_process_that_is_left_is_found_and_ended(tmp_path: Path) -> None:
    words = [sys.executable, "-c", "input()", str(tmp_path / "plan.json")]
    with subprocess.Popen(words, stdin=subprocess.PIPE) as process:
        assert _orphans(tmp_path, 0) == [f"RANK=none of {process.pid}"]
        process.wait(10)
    assert _orphans(tmp_path, 0) == []
