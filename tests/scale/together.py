"""Runs of several processes beside those of one."""

import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

import archwright
from archwright import checkpoint
from archwright.runs import RunFolder
from archwright.scale.checks import dropouts
from archwright.scale.layout import Layout
from archwright.spec.read import load_run
from archwright.spec.run_spec import RunSpec
from bench.scale import environment, torchrun
from tests.tiny import ROOT, tiny_run, tiny_words

TWELVE_STEPS = (
    *("budget=12steps", "checkpoint.every=6", "checkpoint.keep=9", "evaluate.every=6"),
    *("evaluate.max_tokens=900", "evaluate.final_max_tokens=900"),
)
"""A run of which two checkpoints and two evaluations are left."""
SHORT = (
    "evaluate.every=1000000",
    "evaluate.final_max_tokens=300",
    "model.attention.num_kv_heads=2",
)
"""A run that is not evaluated on its way, and that a tensor group of two can share."""
LOSSES = (("train", "loss"), ("eval", "nats_per_token"))
NORMS = ("train", "grad_norm")


def started(number: int, *words: str) -> "subprocess.CompletedProcess[str]":
    """Run a command of so many processes; return what it printed on standard error, and its exit code."""
    return subprocess.run(
        [*torchrun(number), *words],
        cwd=ROOT,
        env=environment(),
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
        timeout=240,
    )


def played(
    scene: str, place: Path, number: int, *words: str, options: tuple[str, ...] = ()
) -> "subprocess.CompletedProcess[str]":
    """Return what processes of a scene print, and torchrun's exit code."""
    command = [*torchrun(number), *options, "-m", "tests.scale.failing", scene, *words]
    return subprocess.run(
        command,
        cwd=place,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


def left_of(folder: Path) -> list[psutil.Process]:
    """Return the processes of a run that are still there."""
    return [p for p in psutil.process_iter(["cmdline"]) if str(folder) in (p.info["cmdline"] or [])]


def trained(number: int, out: Path, *words: str) -> RunFolder:
    """Return the run of a command line that so many processes train."""
    done = started(number, "-m", "archwright", *words, "--out", str(out), "--quiet")
    assert done.returncode == 0, done.stderr
    return RunFolder(out)


def two_train_as_one(
    text: Path, out: Path, scale: str, *words: str, records: Iterable[tuple[str, str]] = LOSSES
) -> RunFolder:
    """Hold the files and records of a tiny run of two processes against those of one, which then goes on with them
    from step 6 to the same end; return the folder."""
    words = *TWELVE_STEPS, *words
    whole = archwright.train(tiny_run(text, *words), out=out / "whole", quiet=True).folder
    shared = trained(2, out / "shared", *tiny_words(text, *words, scale))
    assert shared.finished
    assert_close(shared.model_file, whole.model_file)
    for kind, key in records:
        found, expected = (values(folder, kind, key) for folder in (shared, whole))
        assert found == pytest.approx(expected, rel=1e-5)
    gone_back(shared, 6)
    archwright.resume(shared, quiet=True)
    assert_close(shared.model_file, whole.model_file)
    return shared


def values(folder: RunFolder, kind: str, key: str) -> list[Any]:
    """Return what the records of a kind have under a key."""
    return [record[key] for record in folder.metrics() if record["kind"] == kind]


def events(folder: RunFolder) -> list[tuple[str, int]]:
    """Return the names and steps of what happened."""
    return [(r["name"], r["step"]) for r in folder.metrics() if r["kind"] == "event"]


def gone_back(folder: RunFolder, step: int) -> RunFolder:
    """Let a run stand where it had made so many steps, and return its folder."""
    folder.truncate_to(step)
    folder.model_file.unlink()
    return folder


def assert_close(file: Path, other: Path, atol: float = 5e-5) -> None:
    """Hold the weights of one file against those of another."""
    ours, theirs = (checkpoint.read_model(f) for f in (file, other))
    assert ours.keys() == theirs.keys()
    for name, value in ours.items():
        torch.testing.assert_close(value, theirs[name], rtol=1e-3, atol=atol)


def without_dropout(name: str, *changes: str) -> RunSpec:
    """Return a published model's run of eight rows a step, changed, without dropout."""
    run = load_run(name).override("batch_size=8", *changes)
    return run.override(*(f"{path}=0" for path, _ in dropouts(run)))


def layout_asked(run: RunSpec) -> Layout:
    """Return the layout that a run's `scale` asks for, without a launch."""
    given = run.scale.model_dump(exclude_defaults=True)
    schedule = given.pop("pipeline_schedule", "1f1b")
    return Layout(**given, schedule=schedule)
