"""What becomes of a run, and of the script that trains it, where a process fails, stops, or is started again."""

from pathlib import Path

import pytest
from torch.distributed.run import get_args_parser

from archwright.runs import RunFolder
from tests.scale.together import SHORT, events, left_of, played
from tests.tiny import tiny_words

pytestmark = pytest.mark.slow

KNOWS_TIMEOUT = "--shutdown-timeout" in get_args_parser().format_help()
"""Whether torchrun has the option, as from torch 2.12 on; without it what is left is killed after 30 seconds."""
BOTH = ("scale.shard=2", "scale.tensor=2")
"""Four processes that wait for each other in all groups: those of shards, of tensors, and all."""


@pytest.mark.parametrize("number", [2, pytest.param(4, marks=pytest.mark.release)])
def test_a_script_goes_on_after_failures_inside_an_order(
    number: int, text: Path, tmp_path: Path
) -> None:
    """A full disk while weights are gathered, what another process alone is refused, and what breaks there."""
    words = tiny_words(text, "budget=3steps", *SHORT, *(BOTH if number == 4 else ()))
    done = played("fail", tmp_path, number, *words)
    assert done.returncode == 0, done.stderr
    wanted = {
        "gather UserError No space",
        "refused UserError full",
        "broken another mine",
        "whole True",
    }
    assert sorted(done.stdout.splitlines()) == sorted([*wanted] * number), done.stderr


@pytest.mark.parametrize(
    ("number", "scale"), [pytest.param(2, (), marks=pytest.mark.release), (4, BOTH)]
)
def test_a_process_that_stops_ends_the_run(
    number: int, scale: tuple[str, ...], text: Path, tmp_path: Path
) -> None:
    """Four wait for it in a group of tensors, which is none of all."""
    words = tiny_words(text, "budget=100000steps", *SHORT, *scale)
    folder, options = tmp_path / "run", ("--shutdown-timeout=3",) if KNOWS_TIMEOUT else ()
    done = played("stopped", tmp_path, number, *words, "--out", str(folder), options=options)
    assert done.returncode != 0
    found = [line for line in done.stderr.splitlines() if line.startswith("archwright: a process")]
    (line,) = found or [done.stderr]
    assert "does not answer for 15 s, so all end" in line
    assert "LostError" not in done.stderr, "no traceback but torchrun's own"
    assert left_of(folder) == []


@pytest.mark.parametrize(
    ("scene", "line"),
    [("sigterm", "Stopped: stopped at step "), ("diverge", "DivergedError: the loss became nan")],
)
def test_a_restart_does_not_undo_an_end(scene: str, line: str, text: Path, tmp_path: Path) -> None:
    """What ended by a signal, or by its loss, ends at once when torchrun starts it again; the same command goes on."""
    folder = RunFolder(tmp_path / "run")
    words = tiny_words(text, "budget=6steps", *SHORT, "--out", str(folder.path))
    done = played(scene, tmp_path, 2, *words, options=("--max-restarts=1",))
    assert done.returncode != 0
    again = f"archwright: this run had ended when torchrun started it again, so all end: {line}"
    assert done.stderr.count(again) == 1, done.stderr
    assert [name for name, _ in events(folder)] == ["started", "stopped"]
    done = played("plain", tmp_path, 2, *words)
    assert done.returncode == 0, done.stderr
    assert folder.finished
