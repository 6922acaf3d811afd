"""What a run reached, in numbers and in one sentence."""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from archwright.reporting import words
from archwright.reporting.record import Line, Record

WARM_UP_SHARE = 0.1
"""Share of the first steps that speed is not read from: caches fill, kernels compile."""


@dataclass(frozen=True)
class Result:
    """The numbers a run is judged by; None where it has none yet."""

    held_out: Line | None
    """The last `eval` line."""
    train_loss: float | None
    """Mean over the last hundredth of the steps, at least ten of them, in nats per token."""
    steps: int
    tokens: int
    seconds: float
    flops: float | None
    num_parameters: int | None
    tokens_per_second: float | None
    """Median after the first tenth of the steps."""
    utilisation: float | None
    memory_bytes: float | None
    spikes: int

    @property
    def bits_per_byte(self) -> float | None:
        """Bits per byte of held-out text."""
        return float(self.held_out["bits_per_byte"]) if self.held_out else None


def result_of(record: Record) -> Result:
    """Sum a run up."""
    train, last = record.train, record.evals[-1] if record.evals else None
    steps, tokens = len(train["step"]), int(train["tokens"].max(initial=0))
    num_parameters = record.environment.get("num_parameters")
    return Result(
        held_out=last,
        train_loss=_mean(train["loss"][-max(10, steps // 100) :]),
        steps=record.num_steps,
        tokens=tokens,
        seconds=float(np.nanmax(train["seconds"])) if steps else 0.0,
        flops=tokens * record.flops_per_token if record.flops_per_token else None,
        num_parameters=int(num_parameters) if num_parameters else None,
        tokens_per_second=_warm_median(train["tokens_per_second"]),
        utilisation=_warm_median(train["utilisation"]),
        memory_bytes=_largest(train["memory_bytes"]),
        spikes=sum(event["name"] == "loss_spike" for event in record.events),
    )


def verdict(record: Record, result: Result) -> tuple[str, str]:
    """Return the run's result as one sentence, cut in its head and the rest."""
    if result.steps == 0:
        return "Nothing trained yet", "."
    who = f"{words.count(result.num_parameters)} parameters" if result.num_parameters else "a model"
    if not result.held_out:
        loss = words.decimal(result.train_loss or math.nan)
        head = f"Training loss {loss} nats per token, not yet evaluated on held-out text"
        return head, f": {who}, {_effort(result.tokens, result.seconds)}{_device(record)}."
    last = result.held_out
    head = f"{words.decimal(last['bits_per_byte'])} bits per byte on held-out text"
    perplexity = f"perplexity {words.significant(last['perplexity'])} per token (base e)"
    effort = _effort(last["tokens"], last["seconds"])
    rest = f"{_beside(record, last)}: {who}, {perplexity}, {effort}{_device(record)}."
    return head, rest


def notice(record: Record, result: Result) -> str:
    """Return what a reader must know before trusting the verdict, or nothing."""
    lines = []
    planned = f" of {words.exact(record.planned_steps)}" if record.planned_steps else ""
    if record.state != "finished" and result.steps:
        where = f"at step {words.exact(result.steps)}{planned}"
        said = next((e.get("text", "") for e in reversed(record.events)), "").rstrip(".")
        reason = f": {said}" if record.state == "stopped" and said else ""
        how = "was stopped" if record.state == "stopped" else "has not finished; it stands"
        lines.append(f"This run {how} {where}{reason}.")
    if result.held_out and result.held_out["step"] < result.steps:
        lines.append(f"Last evaluated at step {words.exact(result.held_out['step'])}.")
    lines.append(_part_only(record, result))
    return " ".join(filter(None, lines))


def device(record: Record) -> str:
    """Return what the run was computed on: `AMD EPYC, 2 threads, bf16`."""
    environment = record.environment
    name = environment.get("gpu") or environment.get("cpu") or environment.get("machine") or ""
    threads = environment.get("threads")
    parts = [str(name), f"{threads} threads" if threads else "", record.spec.machine.precision]
    return ", ".join(part for part in parts if part and part != "auto")


def as_nats_per_token(bits_per_byte: float, held_out: Line) -> float:
    """Return bits per byte as nats per token of the same held-out text: b ln 2 bytes / tokens."""
    return bits_per_byte * math.log(2) * float(held_out["num_bytes"]) / held_out["num_tokens"]


def _beside(record: Record, last: Line) -> str:
    """Say which compressors the model beats and which it does not."""
    sides: dict[str, list[str]] = {"below": [], "above": [], "level with": []}
    for line in record.compressors:
        difference = round(last["bits_per_byte"], 3) - round(line["bits_per_byte"], 3)
        side = "below" if difference < 0 else "above" if difference > 0 else "level with"
        sides[side].append(f"{line['name']} ({words.decimal(line['bits_per_byte'])})")
    said = [f"{side} {words.listed(names)}" for side, names in sides.items() if names]
    return ", " + " but ".join(said) if said else ""


def _effort(tokens: float, seconds: float) -> str:
    return f"after {words.count(tokens)} tokens in {words.duration(seconds)}"


def _device(record: Record) -> str:
    name = device(record)
    return f" on {name}" if name else ""


def _part_only(record: Record, result: Result) -> str:
    """Say so where the compressors read more of the held-out text than the last evaluation did."""
    whole = max((line.get("num_bytes", 0) for line in record.compressors), default=0)
    read = result.held_out["num_bytes"] if result.held_out else whole
    if read >= whole:
        return ""
    return (
        f"The last evaluation read {words.size(read)} of the {words.size(whole)} "
        "of held-out text that the compressors read."
    )


def _mean(values: NDArray[np.float64]) -> float | None:
    return float(values.mean()) if len(values) else None


def _warm_median(values: NDArray[np.float64]) -> float | None:
    warm = values[int(WARM_UP_SHARE * len(values)) :]
    warm = warm[np.isfinite(warm)]
    return float(np.median(warm)) if len(warm) else None


def _largest(values: NDArray[np.float64]) -> float | None:
    finite = values[np.isfinite(values)]
    return float(finite.max()) if len(finite) else None
