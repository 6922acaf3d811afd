"""Summaries of run folders, including damaged ones, without validation of specs."""

import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from archwright.runs.folder import RUNS, RunFolder, find
from archwright.spec.errors import UserError
from archwright.spec.toml import read_toml


@dataclass(frozen=True)
class RunSummary:
    """Summary of a run; unknown values are None or empty."""

    path: Path
    state: str
    """`finished`, `open` or `damaged`."""
    model: str = ""
    num_parameters: int | None = None
    tokens: int = 0
    """Number of tokens trained on."""
    loss: float | None = None
    """Last held-out loss, in nats per token."""
    bits_per_byte: float | None = None
    text: str = ""
    changed: float = 0.0
    """Time of the last change of the files, in seconds since 1970."""
    damage: str = ""
    """First error in reading the run."""


def summaries(parent: str | Path = RUNS) -> list[RunSummary]:
    """Return summaries of the runs directly inside a folder, newest first."""
    runs = [_summary(folder) for folder in find(parent)]
    return sorted(runs, key=lambda run: (-run.changed, run.path.name))


def _summary(folder: RunFolder) -> RunSummary:
    files = (folder.metrics_file, folder.environment_file, folder.spec_file)
    changed = max((file.stat().st_mtime for file in files if file.exists()), default=0.0)
    values: dict[str, Any] = {"changed": changed}
    damage: list[str] = []
    for read in (_from_spec, _from_metrics, _from_environment):
        try:
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                values |= read(folder)
            damage += [str(warning.message) for warning in caught]
        except (UserError, OSError) as error:
            damage.append(str(error))
    if not values.pop("lossless", True):
        values["bits_per_byte"] = None
    state = values.pop("state", "open")
    first = damage[0] if damage else ""
    return RunSummary(folder.path, "damaged" if first else state, **values, damage=first)


def _from_spec(folder: RunFolder) -> dict[str, Any]:
    values = read_toml(folder.spec_file)
    model, data = (_table(values, name) for name in ("model", "data"))
    text = data.get("pairs") or data.get("text") or ""
    texts = [text] if isinstance(text, str) else text
    named = texts if isinstance(texts, list) else []
    is_file = _table(data, "tokenizer").get("kind") == "file"
    return {
        "lossless": not is_file and not _table(values, "init").get("from"),
        "model": str(model.get("name") or values.get("name") or ""),
        "text": ", ".join(Path(str(name)).name or str(name) for name in named),
    }


def _from_metrics(folder: RunFolder) -> dict[str, Any]:
    records = folder.metrics()
    evals = [record for record in records if record["kind"] == "eval"]
    last = evals[-1] if evals else {}
    return {
        "state": "finished" if folder.finished else "open",
        "tokens": max((record.get("tokens", 0) for record in records), default=0),
        "loss": last.get("nats_per_token"),
        "bits_per_byte": last.get("bits_per_byte"),
    }


def _from_environment(folder: RunFolder) -> dict[str, Any]:
    environment = folder.environment()
    values = {"num_parameters": environment.get("num_parameters")}
    change = environment.get("data", {}).get("text_change")
    return values if change is None else values | {"lossless": not change}


def _table(values: dict[str, Any], name: str) -> dict[str, Any]:
    table = values.get(name)
    return table if isinstance(table, dict) else {}
