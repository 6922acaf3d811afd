"""The smallest study that is one: a tiny model, a text of a few words, seconds on one core."""

import csv
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from archwright.lab.results import StudyResults
from archwright.runs import RunFolder
from tests.tiny import MACHINE, SHAPE, command, surroundings, write_text

COMMON = (
    *SHAPE,
    *(word for word in MACHINE if "threads" not in word),
    "machine.loss=whole",
    "evaluate.max_tokens=512",
    "evaluate.every=10",
    "optimizer.lr=0.01",
)


def words(text: Path | str, *variants: str) -> list[str]:
    """Return the words of a study of `modern` and variants on a text."""
    return ["modern", *variants, f"data.text={text}", *COMMON]


OPTIONS = {
    "budget": "20steps",
    "seeds": 2,
    "early_stopping": False,  # in so few steps nothing is learnt
    "evaluation_tokens": 2048,
    "parallelism": "processes",
}


@contextmanager
def working_in(folder: Path) -> Iterator[Path]:
    """Work in a folder that has a text and a cache of its own."""
    write_text(folder / "text.txt", 2000)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("ARCHWRIGHT_CACHE", str(folder / "cache"))
        patch.setenv("PYTHONPATH", surroundings()["PYTHONPATH"])
        yield folder


Losses = dict[tuple[str, int, float], float]
"""(variant, seed, lr) -> loss."""


def losses(found: StudyResults) -> Losses:
    """Return the loss of every run."""
    return {(r.variant, r.seed, r.lr): r.loss for r in found.runs}


def tabled_losses(study: Path) -> Losses:
    """Return the loss of every run of the whole horizon by a study's runs.csv."""
    with (study / "runs.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    whole = max(int(r["tokens"]) for r in rows)
    kept = [r for r in rows if int(r["tokens"]) == whole]
    return {(r["variant"], int(r["seed"]), float(r["lr"])): float(r["loss"]) for r in kept}


def killed_twice_and_finished(
    place: Path, variant: str, parallelism: str, *, seeds: int = 2, kill_a_worker: bool = False
) -> tuple[set[str], Losses]:
    """Kill a study's process when one run is finished and again when five are, after one of its workers if asked; let
    it finish, and return the runs that were there before, which it must leave as they are, and the losses."""
    again = command(
        "compare",
        *words("text.txt", variant),
        *("--budget", "20steps", "--seeds", str(seeds), "--evaluation-tokens", "2048"),
        "--no-early-stopping",
        *("--parallelism", parallelism, "--quiet", "--out", "killed", "--runs", "killed-runs"),
    )
    runs = place / "killed-runs"
    kept: set[str] = set()
    for goal in (1, 5):
        process = subprocess.Popen(again, cwd=place, env=surroundings())
        while len(finished(runs)) < goal and process.poll() is None:
            time.sleep(0.01)
        if kill_a_worker and process.poll() is None:
            for worker in psutil.Process(process.pid).children()[:1]:
                worker.kill()
        time.sleep(0.3)
        process.send_signal(signal.SIGKILL)
        process.wait()
        time.sleep(0.3)
        kept |= finished(runs)
    written = {key: (runs / key / "metrics.jsonl").stat().st_mtime_ns for key in kept}
    done = subprocess.run(again, cwd=place, env=surroundings(), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert {key: (runs / key / "metrics.jsonl").stat().st_mtime_ns for key in kept} == written
    return kept, tabled_losses(place / "killed")


def finished(runs: Path) -> set[str]:
    """Return the names of the runs in a folder that are finished."""
    return {f.parent.name for f in runs.glob("*/metrics.jsonl") if RunFolder(f.parent).finished}


FEW = (
    *("--seeds", "2", "--evaluation-tokens", "2048", "--parallelism", "processes"),
    *("--no-tune-lr", "--no-early-stopping", "--horizons", "none"),
)
"""Options of a study of four runs."""


def few(out: str, *more: str, budget: str = "20steps") -> list[str]:
    """Return the command of a study of four runs, which has them for itself."""
    given = (*words("text.txt", ":norm.kind=layer"), *FEW, "--budget", budget, "--quiet")
    return command("compare", *given, "--out", out, "--runs", f"{out}-runs", *more)


TIMES = ("seconds", "cpu_seconds", "tokens_per_second", "memory_bytes", "command")
"""Columns of runs.csv that are of no number's identity."""


def numbers(study: Path) -> tuple[str, list[dict[str, str]], dict[str, list[float]]]:
    """Return all that a study's runs and tables say but for times: effects.csv, rows of runs.csv, and every loss."""
    with (study / "runs.csv").open(newline="", encoding="utf-8") as file:
        rows = [{k: v for k, v in r.items() if k not in TIMES} for r in csv.DictReader(file)]
    runs = study.with_name(f"{study.name}-runs")
    kept = {f.parent.name: RunFolder(f.parent).metrics() for f in runs.glob("*/metrics.jsonl")}
    steps = {key: [r["loss"] for r in found if r["kind"] == "train"] for key, found in kept.items()}
    effects = (study / "effects.csv").read_text("utf-8")
    advice = re.compile(
        r"would tell, .*(?= --add-seeds)"
    )  # its time, and the folder in its command
    return advice.sub("would tell:", effects), rows, steps


def until(condition: Callable[[], object], process: "subprocess.Popen[str]") -> None:
    """Wait until something holds, as long as a process goes on."""
    end = time.monotonic() + 300
    while not condition():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < end
        time.sleep(0.02)


def trained_now(runs: Path) -> list[RunFolder]:
    """Return the runs that a process trains and has trained some steps of."""
    found = [RunFolder(file.parent) for file in runs.glob("*/metrics.jsonl")]
    return [r for r in found if r.holder() and any(s["kind"] == "train" for s in r.metrics()[-1:])]


def events(run: RunFolder) -> list[str]:
    """Return what happened to a run."""
    return [r["name"] for r in run.metrics() if r["kind"] == "event"]
