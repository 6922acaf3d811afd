import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from archwright.runs.lock import Holder, locked
from archwright.spec.errors import UserError

PROGRAM = """
import sys, time
from pathlib import Path
from archwright.runs.lock import locked
with locked(Path(sys.argv[1]) / "lock", Path(sys.argv[1]) / "lock.json"):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def other(tmp_path: Path) -> Iterator[subprocess.Popen]:
    """Another process that holds the lock of the folder until its input ends."""
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, tmp_path],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[2],
    )
    assert process.stdout
    assert process.stdout.readline() == "held\n"
    yield process
    process.kill()
    process.communicate()


def lock(folder: Path):
    return locked(folder / "lock", folder / "lock.json")


def change(folder: Path, **values: object) -> Holder:
    """Rewrite who holds the lock."""
    file = folder / "lock.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | values))
    return Holder(**json.loads(file.read_text()))


@pytest.mark.slow
def test_a_second_process_is_kept_off_and_told_by_whom(
    tmp_path: Path, other: subprocess.Popen
) -> None:
    with pytest.raises(UserError) as caught, lock(tmp_path):
        pass
    (line,) = caught.value.lines
    assert line.startswith(f"{tmp_path} is in use by process {other.pid} on {os.uname().nodename}")
    assert "since 2" in line
    # Being refused took nothing from the one who holds it.
    with pytest.raises(UserError, match=f"process {other.pid} "), lock(tmp_path):
        pass
    other.communicate("")
    with lock(tmp_path) as before:
        assert before is None
    assert not (tmp_path / "lock.json").exists()


def test_the_lock_of_a_killed_process_is_taken_over(
    tmp_path: Path, other: subprocess.Popen
) -> None:
    other.send_signal(signal.SIGKILL)
    other.wait()
    with lock(tmp_path) as before:
        assert before
        assert before.pid == other.pid
        assert json.loads((tmp_path / "lock.json").read_text())["pid"] == os.getpid()
    with lock(tmp_path) as before:
        assert before is None


def test_a_reused_process_number_is_no_holder(tmp_path: Path, other: subprocess.Popen) -> None:
    other.kill()
    other.wait()
    change(tmp_path, pid=os.getpid(), started=1e9)
    with lock(tmp_path) as before:
        assert before
        assert before.pid == os.getpid()


@pytest.mark.slow
def test_a_process_of_another_host_is_not_declared_dead(
    tmp_path: Path, other: subprocess.Popen
) -> None:
    other.kill()
    other.wait()
    change(tmp_path, host="elsewhere")
    with (
        pytest.raises(UserError, match=r"on elsewhere since .* delete .*lock\.json"),
        lock(tmp_path),
    ):
        pass
    assert (tmp_path / "lock.json").exists()
    (tmp_path / "lock.json").unlink()
    with lock(tmp_path) as before:
        assert before is None


@pytest.mark.slow
def test_a_child_that_outlives_its_parent_still_holds(
    tmp_path: Path, other: subprocess.Popen
) -> None:
    change(tmp_path, pid=2**22 + 1)  # more than any process has
    with pytest.raises(UserError, match="child process of"), lock(tmp_path):
        pass


@pytest.mark.parametrize("content", ["", "null", "[1]", '{"pid": 1}', "\0"])
def test_an_unreadable_holder_is_ignored(tmp_path: Path, content: str) -> None:
    (tmp_path / "lock.json").write_text(content)
    with lock(tmp_path) as before:
        assert before is None


def test_not_twice_in_one_process_either(tmp_path: Path) -> None:
    with lock(tmp_path):
        with pytest.raises(UserError, match=f"process {os.getpid()} "), lock(tmp_path):
            pass
        assert (tmp_path / "lock.json").exists()
    with lock(tmp_path):
        pass


def test_it_is_let_go_after_an_error(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), lock(tmp_path):
        _ = 1 / 0
    with lock(tmp_path) as before:
        assert before is None


@pytest.mark.parametrize(
    "content",
    [
        *('{"pid": [1], "host": "a", "since": "b", "started": 1.0}', "[1]", "[" * 9999),
        *('{"pid": -1, "host": "a", "since": "b", "started": 1.0}', "{}", "\\xff"),
        '{"pid": 1, "host": "a", "since": "b", "started": "x"}',
        '{"pid": 1e99, "host": "a", "since": "b", "started": 1.0}',
    ],
)
def test_a_file_that_names_no_holder_keeps_nobody_off(content: str, tmp_path: Path) -> None:
    (tmp_path / "lock.json").write_text(content)
    with lock(tmp_path) as before:
        assert before is None
