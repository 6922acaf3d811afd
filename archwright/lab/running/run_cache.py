"""Cache of a study's runs: one folder per run, named by a hash of its inputs."""

import hashlib
import json
import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import fmean

import torch

from archwright.lab.results import Halves, Point, RunResult, Unit
from archwright.machine.decide import Decisions, environment
from archwright.runs import RunFolder
from archwright.runs.lossy import text_change_of
from archwright.runs.records import Record
from archwright.spec.errors import UserError
from archwright.spec.fingerprint import differing
from archwright.spec.run_spec import RunSpec
from archwright.training.data import Material
from archwright.training.resolve import EVALUATIONS

POOL = Path("studies/runs")
"""Default folder of runs, shared between studies."""

NUMERICS = 3
"""Version of the numerics, raised by hand with every change that alters the numbers of some run. Refactoring is no
such change. Runs of another version are not used. `tests/golden` holds it."""

DIVERGED = "diverged"
"""Event of a run that diverged before its end."""


def key(run: RunSpec, material: Material) -> str:
    """Return the hash of a run: its spec without defaults, tokens, torch and NUMERICS."""
    record = material.record()
    parts = (
        run.hash(),
        differing(run.machine),
        {side: record[side]["text"] for side in ("train", "held_out")},
        material.tokenizer.fingerprint,
        torch.__version__,
        NUMERICS,
    )
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]


def prepare(
    pool: Path, run: RunSpec, material: Material, decisions: Decisions, flops_per_token: float
) -> RunFolder:
    """Return the folder of a resolved run, so that training decides and measures nothing."""
    folder = RunFolder.create(pool / key(run, material), run)
    if not folder.resolved:
        with folder.removed_unless_started():
            folder.write_tokenizer(material.tokenizer)
            folder.write_spec(run)
            folder.write_environment(
                environment(decisions)
                | {
                    "numerics": NUMERICS,
                    "flops_per_token": flops_per_token,
                    "data": material.record(),
                }
            )
    return folder


def outcome(folder: RunFolder) -> str:
    """Return "finished", "diverged", or "" for an incomplete run."""
    if not folder.metrics_file.exists():
        return ""
    known = ("started", "resumed", "stopped", "finished", DIVERGED)
    names = [str(r.get("name")) for r in folder.metrics() if r["kind"] == "event"]
    last = next((name for name in reversed(names) if name in known), "")
    return last if last in ("finished", DIVERGED) else ""


def read(
    folder: RunFolder,
    variant: str,
    seed: int,
    lr: float,
    command: str,
    unit: Unit = "nats per token",
) -> RunResult:
    """Return the result of a finished or diverged run, with losses in a unit.

    Raises:
        UserError: The final evaluation is damaged.
    """
    records, environment = folder.metrics(), folder.environment()
    steps = [r for r in records if r["kind"] == "train"]
    evaluations = [r for r in records if r["kind"] == "eval"]
    vocab_size = folder.spec.model.vocab_size
    assert vocab_size != "auto"
    initial = _number(steps[0].get("loss")) if steps else math.log(vocab_size)
    last_evaluation = evaluations[-1] if evaluations and outcome(folder) != DIVERGED else {}
    if last_evaluation and "tuning" not in last_evaluation:
        raise UserError(
            f"{folder.metrics_file} is damaged: the final evaluation is missing. Remove {folder.path} to train the run "
            "again"
        )
    end = _number(last_evaluation.get("nats_per_token"))
    bits_per_nat = _bits_per_nat(evaluations)
    if math.isfinite(bits_per_nat) and text_change_of(folder) != "":
        bits_per_nat = math.nan
    scale = 1.0
    if unit == "bits per byte":
        scale = bits_per_nat
        if not math.isfinite(scale):  # of all held-out text; no document's first token is predicted
            text = environment["data"]["held_out"]
            tokens = text["num_tokens"] - text["num_documents"]
            scale = tokens / (text["num_bytes"] * math.log(2)) if text["num_bytes"] else math.nan
    last = steps[-1] if steps else {}
    cpu = float(last.get("cpu_seconds", math.nan))
    busy = float(last.get("seconds", math.nan)) if environment.get("gpu") else cpu
    return RunResult(
        key=folder.path.name,
        variant=variant,
        seed=seed,
        lr=lr,
        loss=min(end, initial) * scale,
        halves=_halves(last_evaluation, initial, scale, unit),
        bits_per_byte=min(end, initial) * bits_per_nat,
        initial_loss=initial * scale,
        diverged=not end < initial,
        tokens=int(last.get("tokens", 0)),
        seconds=float(last.get("seconds", math.nan)),
        cpu_seconds=cpu,
        tokens_per_second=float(last.get("tokens", math.nan)) / busy,
        memory_bytes=max((float(r.get("memory_bytes") or 0) for r in steps), default=math.nan),
        curve=_curve(
            [r for r in evaluations if "name" not in r],
            steps,
            float(environment.get("flops_per_token", math.nan)),
            unit,
            scale,
            folder.spec.machine.num_steps,
        ),
        lengths={int(r["name"]): _loss(r, unit) for r in records if r["kind"] == "length"},
        command=command,
        accuracy=float(last_evaluation.get("accuracy", math.nan)),
    )


def _halves(evaluation: Record, initial: float, scale: float, unit: Unit) -> Halves:
    """Return the tuning and the judging loss, clipped to the initial loss."""
    start = initial * scale
    if not evaluation:  # it diverged
        return Halves(start, start, (), ())
    sizes = tuple(evaluation["judged_tokens"])
    sums = tuple(map(_number, evaluation["judged_nats"]))
    tuning = _number(evaluation["tuning"])
    if unit == "bits per byte":
        sizes = tuple(evaluation["judged_bytes"])
        sums = tuple(nats / math.log(2) for nats in sums)
        tuning = _number(evaluation["tuning_bits_per_byte"])
    judged = math.fsum(sums) / sum(sizes) if sizes else math.inf
    return Halves(min(tuning, start), min(judged, start), sizes, sums)


def _loss(record: Record, unit: Unit) -> float:
    """Return the loss of an evaluation; infinite if it is missing."""
    return _number(record.get("bits_per_byte" if unit == "bits per byte" else "nats_per_token"))


def _curve(
    evaluations: Sequence[Record],
    steps: Sequence[Record],
    flops_per_token: float,
    unit: Unit,
    scale: float,
    num_steps: int | str,
) -> list[Point]:
    """Return the evaluations, each with the mean training loss since the previous one.

    For a run with a single evaluation at its end, the mean is over its last tenth.
    """
    points, before = [], 0
    if isinstance(num_steps, int) and [r["step"] for r in evaluations] == [num_steps]:
        before = num_steps - max(1, num_steps // EVALUATIONS)
    for record in evaluations:
        since = [_number(r.get("loss")) for r in steps if before < r["step"] <= record["step"]]
        before = record["step"]
        points.append(
            Point(
                step=record["step"],
                tokens=record["tokens"],
                flops=record["tokens"] * flops_per_token,
                seconds=float(record.get("cpu_seconds", math.nan)),
                loss=_loss(record, unit),
                train_loss=fmean(since) * scale if since else math.nan,
            )
        )
    return points


def _bits_per_nat(evaluations: Iterable[Record]) -> float:
    """Return bits per byte per nat per token, from the final evaluation; NaN without bytes."""
    for record in reversed(list(evaluations)):
        if record["num_bytes"] and "bits_per_byte" in record:
            return float(record["num_tokens"] / (record["num_bytes"] * math.log(2)))
    return math.nan


def _number(value: float | None) -> float:
    return math.inf if value is None else float(value)
