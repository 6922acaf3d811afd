"""Result of a run, as numbers and as a sentence."""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from archwright import format as fmt
from archwright.data.eval_windows import why_no_bits
from archwright.reporting.history import History, Line
from archwright.runs.ending import early_end, early_end_text

WARM_UP_SHARE = 0.1
"""Share of the first steps that the speed excludes, because caches fill and kernels compile."""


@dataclass(frozen=True)
class Result:
    """Numbers of a run; a number is None if it is not available."""

    held_out: Line | None
    """Last `eval` record."""
    train_loss: float | None
    """Mean training loss over the last 1 % of the steps (at least ten), in nats per token."""
    steps: int
    tokens: int
    seconds: float
    flops: float | None
    num_parameters: int | None
    tokens_per_second: float | None
    """Median speed, without the first tenth of the steps."""
    utilisation: float | None
    memory_bytes: float | None
    spikes: int

    @property
    def bits_per_byte(self) -> float | None:
        """Bits per byte of held-out text, if the objective defines them."""
        last = self.held_out or {}
        return float(last["bits_per_byte"]) if "bits_per_byte" in last else None


def result_of(history: History) -> Result:
    """Return the result of a run."""
    train, last = history.train, history.evals[-1] if history.evals else None
    steps, tokens = len(train["step"]), int(train["tokens"].max(initial=0))
    num_parameters = history.environment.get("num_parameters")
    values = train["memory_bytes"]
    finite = values[np.isfinite(values)]
    return Result(
        held_out=last,
        train_loss=float(train["loss"][-closing_steps(steps) :].mean()) if steps else None,
        steps=history.num_steps,
        tokens=tokens,
        seconds=float(np.nanmax(train["seconds"])) if steps else 0.0,
        flops=tokens * history.flops_per_token if history.flops_per_token else None,
        num_parameters=int(num_parameters) if num_parameters else None,
        tokens_per_second=_warm_median(train["tokens_per_second"]),
        utilisation=_warm_median(train["utilisation"]),
        memory_bytes=float(finite.max()) if len(finite) else None,
        spikes=sum(event["name"] == "loss_spike" for event in history.events),
    )


def no_peak(history: History) -> bool:
    """True if other load disturbed the measurement of the machine's peak FLOPs per second."""
    return history.environment.get("peak_flops") == {}


def closing_steps(steps: int) -> int:
    """Return the number of steps in the mean training loss: the last 1 %, at least ten."""
    return min(steps, max(10, steps // 100))


def closing_words(steps: int) -> str:
    """Return a description of the steps in the mean training loss."""
    number = closing_steps(steps)
    return f"mean of the last {number} steps" if number > 1 else "of the only step"


def verdict(history: History, result: Result) -> tuple[str, str]:
    """Return the result as a sentence, split into headline and rest."""
    if result.steps == 0:
        return "Nothing trained yet", "in this run folder."
    how, last = _how(history, result), result.held_out
    bits = result.bits_per_byte
    loss = bits if bits is not None else last["nats_per_token"] if last else result.train_loss
    if loss is None or not math.isfinite(loss):
        split = "held-out" if last else "training"
        return f"The {split} loss is not finite", f"for {how}."
    if last and (task := history.task):
        head = f"{fmt.accuracy(last.get('accuracy', math.nan))} of answers right"
        guessed = f"with {fmt.accuracy(task['chance'])} right by guessing"
        return head, f"on {task['name']}, {guessed}, reached by {how}."
    if not last:
        head = f"{fmt.decimal(loss)} {history.loss_unit} in training"
        return (
            head,
            f"({closing_words(result.steps)}), reached by {how}, not yet evaluated on held-out text.",
        )
    unit = history.loss_unit if bits is None else "bits per byte"
    head = f"{fmt.decimal(loss)} {unit} on held-out text"
    case = history.loss_unit.removeprefix("nats ")
    perplexity = f"perplexity {fmt.significant(last['perplexity'])} {case} (base e)"
    return head, f"reached by {how}: {_versus_compressors(history, last)}{perplexity}."


def right_answers(evaluation: Line, task: Line) -> tuple[str, str]:
    """Return the accuracy on a task and its description."""
    share, number = evaluation.get("accuracy", math.nan), evaluation.get("num_answers", 0)
    return (
        fmt.accuracy(share),
        f"of {fmt.exact(number)} answers right; {fmt.accuracy(task['chance'])} by guessing",
    )


def second_task(evaluation: Line, history: History) -> list[tuple[str, str, str]]:
    """Return (name, value, unit) rows of a second task, if any."""
    if "second_loss" not in evaluation:
        return []
    name, case = history.spec.second_task, history.spec.second_cases
    right, of = {
        "token": ("judged right", "of tokens, as replaced or not"),
    }.get(case, ("rows right", f"{name}, half by guessing"))
    first, second = (
        fmt.accuracy(evaluation.get(f"{task}_accuracy", math.nan)) for task in ("token", "second")
    )
    return [
        ("tokens right", first, "of predicted tokens"),
        (name, fmt.loss(evaluation["second_loss"]), f"nats per {case}"),
        (right, second, of),
    ]


def notice(history: History, result: Result) -> str:
    """Return caveats of the verdict; empty if there are none."""
    lines = []
    planned = f" of {fmt.exact(history.planned_steps)}" if history.planned_steps else ""
    if history.state != "finished" and result.steps:
        position = f"at step {fmt.exact(result.steps)}{planned}"
        stops = [event.get("text", "") for event in history.events if event["name"] == "stopped"]
        clauses = stops[-1].rstrip(".") if stops else ""
        reason = f": {clauses}" if history.state == "stopped" and clauses else ""
        how = "was stopped" if history.state == "stopped" else "has not finished; it is"
        lines.append(f"This run {how} {position}{reason}.")
    if ended := early_end(history.events):
        lines.append(f"This run ended early, at {early_end_text(ended).rstrip('.')}.")
    if result.held_out and result.held_out["step"] < result.steps:
        lines.append(f"Last evaluated at step {fmt.exact(result.held_out['step'])}.")
    if history.text_change != "":
        lines.append(f"There are {why_no_bits(history.text_change)}.")
    lines.append(_part_only(history, result))
    return " ".join(filter(None, lines))


def device(history: History) -> str:
    """Return the device of a run: `AMD EPYC (2 threads, bf16)`."""
    environment = history.environment
    name = environment.get("gpu") or environment.get("cpu") or environment.get("machine") or ""
    threads = "" if environment.get("gpu") else environment.get("threads", "")
    count = f"{threads} thread{'s' * (threads != 1)}" if threads else ""
    parts = [part for part in (count, history.spec.machine.precision) if part not in ("", "auto")]
    return f"{name} ({', '.join(parts)})" if name and parts else str(name)


def as_nats_per_token(bits_per_byte: float, held_out: Line) -> float:
    """Convert bits per byte to nats per token of held-out text: b ln 2 bytes / tokens."""
    bytes_per_token: float = held_out["num_bytes"] / held_out["num_tokens"]
    return bits_per_byte * math.log(2) * bytes_per_token


def _versus_compressors(history: History, last: Line) -> str:
    """Compare the model with each compressor."""
    if "bits_per_byte" not in last:
        return ""
    sides: dict[str, list[str]] = {"better than": [], "worse than": [], "level with": []}
    for line in history.compressors:
        difference = round(last["bits_per_byte"], 3) - round(line["bits_per_byte"], 3)
        side = "better than" if difference < 0 else "worse than" if difference > 0 else "level with"
        sides[side].append(f"{line['name']} ({fmt.decimal(line['bits_per_byte'])})")
    clauses = [f"{side} {fmt.listed(names)}" for side, names in sides.items() if names]
    return " but ".join(clauses) + ", with " if clauses else ""


def _how(history: History, result: Result) -> str:
    """Describe the run: parameters, tokens, time and device."""
    number = result.num_parameters
    model = f"a model of {fmt.count(number)} parameters" if number else "the model"
    at = result.held_out or {"tokens": result.tokens, "seconds": result.seconds}
    effort = f"after {fmt.count(at['tokens'])} tokens in {fmt.duration(at['seconds'])}"
    name = device(history)
    return f"{model} {effort}" + (f" on {name}" if name else "")


def _part_only(history: History, result: Result) -> str:
    """Return a caveat if the last evaluation read less text than the compressors; empty otherwise."""
    total = max((line.get("num_bytes", 0) for line in history.compressors), default=0)
    read = result.held_out["num_bytes"] if result.held_out else total
    if read >= total:
        return ""
    return (
        f"The last evaluation read {fmt.size(read)} of the {fmt.size(total)} "
        "of held-out text that the compressors read."
    )


def _warm_median(values: NDArray[np.float64]) -> float | None:
    warm = values[int(WARM_UP_SHARE * len(values)) :]
    warm = warm[np.isfinite(warm)]
    return float(np.median(warm)) if len(warm) else None
