"""The tool that kills and fails verbs: it sees what does not hold, and lets pass what does."""

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from archwright.files import atomic_write
from archwright.spec.errors import UserError
from tests.faults.cases import Stage
from tests.faults.disk import Blow
from tests.faults.scenes import SCENES, Scene, hashes
from tests.fuzz.cases import as_verb

pytestmark = pytest.mark.skipif(os.name == "nt", reason="needs fork and SIGKILL")


def safe() -> None:
    """Write two files, each whole or not at all, and clear away what a killed one left."""
    for stale in Path("made").glob(".*.tmp"):
        stale.unlink()
    atomic_write("made/a", "first")
    atomic_write("made/b", "second")


def torn() -> None:
    """Take for good what is there, though it may be half."""
    Path("made").mkdir(exist_ok=True)
    if not Path("made/a").exists():
        with Path("made/a").open("w") as file:
            file.write("first")


def littering() -> None:
    atomic_write("made/a", "first")
    Path(f"made/{os.getpid()}.tmp").write_text("x")
    Path(f"made/{os.getpid()}.tmp").unlink()


def taking_over() -> None:
    """Remove what is in the way, whose it is."""
    Path("notes.txt").unlink(missing_ok=True)


def falling() -> None:
    try:
        Path("made").mkdir(exist_ok=True)
        Path("made/a").write_text("first")
    except OSError as error:
        raise RuntimeError from error


def stage(folder: Path, do: Callable[[], None], name: str = "fake") -> Stage:
    plain = Scene(name, 1, lambda: None, lambda: as_verb(do), lambda: hashes("made/[ab]"))
    return Stage(plain, folder)


def problems(found: Stage, blow: Blow) -> list[str]:
    verdict = found.struck(0, "error" if blow.error else "kill", blow)
    return [*verdict.problems, *(f"left over: {name}" for name in verdict.left)]


@pytest.mark.slow
def test_what_holds_passes_at_every_event(tmp_path: Path) -> None:
    found = stage(tmp_path, safe)
    assert found.num_events > 8
    for at in range(1, found.num_events + 1):
        assert problems(found, Blow(at, half=True)) == []
        assert problems(found, Blow(at, errno.ENOSPC)) == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("do", "error", "seen"),
    [
        (torn, 0, "other results: made/a"),
        (littering, 0, "left over: made/"),
        (taking_over, 0, "harmed: notes.txt"),
        (falling, errno.EIO, "exit code 1: RuntimeError"),
    ],
)
def test_what_does_not_hold_is_seen(
    tmp_path: Path, do: Callable[[], None], error: int, seen: str
) -> None:
    found = stage(tmp_path, do)
    blows = [Blow(at, error, half=True) for at in range(1, found.num_events + 1)]
    lines = [line for blow in blows for line in problems(found, blow)]
    assert any(seen in line for line in lines), lines


def test_an_answer_names_its_file(tmp_path: Path) -> None:
    def nameless() -> None:
        try:
            Path("made").mkdir()
        except OSError as error:
            raise OSError(error.errno, error.strerror) from None

    lines = problems(stage(tmp_path, nameless), Blow(1, errno.EACCES))
    assert any("names no file" in line for line in lines), lines


def test_errors_of_a_disk_reach_a_writer(tmp_path: Path) -> None:
    seen = []

    def write() -> None:
        try:
            safe()
        except UserError as error:
            seen.append(str(error))
            raise

    found = stage(tmp_path, write)
    ended = found.struck(0, "error", Blow(found.num_events, errno.EDQUOT, for_good=True))
    assert ended.problems == []


def test_shares_make_the_whole() -> None:
    assert sum(scene.share for scene in SCENES) == pytest.approx(1)
    assert sum(round(200 * scene.share) for scene in SCENES) == 200
    assert sum(round(100 * scene.share) for scene in SCENES) == 100
