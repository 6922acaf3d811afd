"""Comparability of several runs: refusals, the common unit of losses, and caveats."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import Any

from archwright import format as fmt
from archwright.data.eval_windows import why_no_bits
from archwright.reporting.history import History
from archwright.reporting.result import device
from archwright.spec.errors import UserError

MOST = 16
"""Maximum number of runs on a page."""
ALIKE = 1.05
"""Ratio of token counts, or of held-out byte counts, above which a page has a note."""


@dataclass(frozen=True)
class Compared:
    """Several runs under distinct names, and their comparability."""

    runs: Mapping[str, History]
    in_bits: bool
    """True if losses are in bits per byte, because tokenizers differ."""
    same_text: bool
    """True if all runs were evaluated on the same held-out text."""
    same_tokens: bool
    """True if token counts are about equal and final losses therefore comparable."""
    notes: Sequence[str] = ()
    """Caveats, one or two sentences per note."""

    @property
    def unit(self) -> str:
        """Unit of all losses."""
        return "bits per byte" if self.in_bits else next(iter(self.runs.values())).loss_unit


def compared(histories: Sequence[History]) -> Compared:
    """Check whether runs can be compared, and in which unit.

    Raises:
        UserError: There are too many runs or duplicates, a run is not trained, objectives or tasks differ, or
            tokenizers differ and bits per byte are missing.
    """
    if lines := [*_refusals(histories)]:
        raise UserError(*lines)
    runs = dict(zip(_labels(histories), histories, strict=True))
    task = histories[0].task is not None
    in_bits = not task and not _all_alike(histories, _same_tokenizer)
    same_text = task or _all_alike(histories, lambda one, other: _same_text(one, other, "held_out"))
    tokens = [int(history.train["tokens"].max()) for history in histories]
    same_tokens = max(tokens) <= ALIKE * min(tokens)
    result = Compared(runs, in_bits, same_text, same_tokens)
    return replace(result, notes=[*_notes(result)])


def bits_per_byte(history: History) -> float | None:
    """Return one nat per token of training text in bits per byte; None if unknown."""
    text = history.environment.get("data", {}).get("train", {})
    if not text.get("num_bytes") or not text.get("num_tokens"):
        return None
    return float(text["num_tokens"] / (text["num_bytes"] * math.log(2)))


def _refusals(histories: Sequence[History]) -> Iterator[str]:
    if len(histories) > MOST:
        yield f"found {len(histories)} runs; expected at most {MOST}, so that a page can distinguish them"
    seen: set[Path] = set()
    for history in histories:
        folder = Path(history.folder).resolve()
        if folder in seen:
            yield f"{history.folder}: given twice; give each run once"
        seen.add(folder)
        if not len(history.train["step"]):
            yield f"{history.folder}: nothing was trained there yet, so there is no curve; leave it out"
    first = histories[0]
    for history in histories[1:]:
        if (unit := _measure(history)) != (other := _measure(first)):
            yield (
                f"{history.folder}: its losses are {unit}, but the losses of {first.folder} are {other}; "
                "give runs of one objective and one task"
            )
        elif history.task is None and not _same_tokenizer(first, history):
            lacking = [
                h for h in (first, history) if any("bits_per_byte" not in e for e in h.evals)
            ]
            for run in lacking[:1]:
                is_lossy = run.text_change != ""
                why = why_no_bits(run.text_change) if is_lossy else "no bits per byte"
                yield (
                    f"{history.folder} and {first.folder}: their tokenizers differ, and {run.folder} has {why}, "
                    "so their losses cannot be compared; give runs of one tokenizer"
                )


def _measure(history: History) -> str:
    """Return the unit of a run's losses, with its task or objective."""
    if history.task:
        return f"{history.loss_unit} of {history.task['name']}"
    return f"{history.loss_unit} of {history.spec.objective.kind}"


def _all_alike(histories: Sequence[History], alike: Callable[[History, History], bool]) -> bool:
    return all(alike(histories[0], history) for history in histories[1:])


def _same_tokenizer(one: History, other: History) -> bool:
    """True if two runs have the same tokenizer. If it was not recorded, BPE requires equal training texts."""
    recorded = [history.environment.get("data", {}).get("tokenizer") for history in (one, other)]
    if all(recorded):
        return recorded.count(recorded[0]) == len(recorded)
    if one.spec.data.tokenizer != other.spec.data.tokenizer:
        return False
    return one.spec.data.tokenizer.kind != "bpe" or _same_text(one, other, "train")


def _same_text(one: History, other: History, part: str) -> bool:
    """True if two runs read the same text, judged by recorded sizes or, if none are recorded, by settings."""
    sizes = [_size(history, part) for history in (one, other)]
    if all(sizes):
        return sizes[0] == sizes[1]
    left_out = {"tokenizer", "packing"}
    return one.spec.data.model_dump(exclude=left_out) == other.spec.data.model_dump(
        exclude=left_out
    )


def _size(history: History, part: str) -> tuple[Any, ...]:
    text = history.environment.get("data", {}).get(part, {})
    sizes = tuple(text.get(name) for name in ("num_bytes", "num_documents"))
    return sizes if all(sizes) else ()


def _labels(histories: Sequence[History]) -> list[str]:
    """Return the name of each run, or its folder if names repeat."""
    names = [history.name for history in histories]
    return [n if names.count(n) == 1 else h.folder for n, h in zip(names, histories, strict=True)]


def _notes(comparison: Compared) -> Iterator[str]:
    runs = comparison.runs
    if comparison.in_bits:
        kinds = {name: _tokenizer_words(history) for name, history in runs.items()}
        yield (
            f"Tokenizers differ ({_by_value(kinds)}): nats per token and perplexity are not comparable. Losses are "
            "in bits per byte; training losses are converted by the bytes per token of each run's training text."
        )
    if not comparison.same_text:
        texts = {name: _text_words(history) for name, history in runs.items()}
        yield f"Held-out texts differ ({_by_value(texts)}): losses are not comparable."
    read = {name: history.evals[-1]["num_bytes"] for name, history in runs.items() if history.evals}
    if comparison.same_text and read and max(read.values()) > ALIKE * min(read.values()):
        sizes = {name: fmt.size(number) for name, number in read.items()}
        yield f"Last evaluations read different amounts of the held-out text ({_by_value(sizes)})."
    if not comparison.same_tokens:
        counts = {name: fmt.count(history.train["tokens"].max()) for name, history in runs.items()}
        limit = "curves are comparable at equal tokens, their ends are not"
        yield f"Numbers of tokens differ ({_by_value(counts)}): {limit}."
    devices = {name: device(history) for name, history in runs.items()}
    if len({*devices.values()}) > 1:
        yield f"Devices differ ({_by_value(devices)}): throughput, utilisation and time are not comparable."


def _tokenizer_words(history: History) -> str:
    tokenizer = history.spec.data.tokenizer
    size = history.spec.model.vocab_size
    return f"{tokenizer.kind} of {size:,} tokens" if isinstance(size, int) else tokenizer.kind


def _text_words(history: History) -> str:
    data = history.spec.data
    named = data.held_out or data.texts
    text = history.environment.get("data", {}).get("held_out", {})
    size = f", {fmt.size(text['num_bytes'])}" if text.get("num_bytes") else ""
    return f"of {', '.join(map(str, named))}{size}"


def _by_value(values: Mapping[str, str]) -> str:
    """Group runs by value: `a and b: 1 MB; c: 330 kB`."""
    ordered = sorted(values, key=lambda name: [*values.values()].index(values[name]))
    groups = groupby(ordered, key=values.__getitem__)
    return "; ".join(f"{fmt.listed([*names])}: {value}" for value, names in groups)
