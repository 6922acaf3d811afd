"""What a run folder says of its run in a line, read without the specs: damaged runs say what they can."""

import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from archwright.runs.folder import RUNS, RunFolder, find
from archwright.spec.errors import UserError
from archwright.spec.toml import read_toml


@dataclass(frozen=True)
class RunSummary:
    """A run in a line; what is not known is None, or empty."""

    path: Path
    state: str
    """finished, open, or damaged."""
    model: str = ""
    num_parameters: int | None = None
    tokens: int = 0
    """Trained on so far."""
    loss: float | None = None
    """Nats per token on the held-out text, the last time it was judged on it."""
    bits_per_byte: float | None = None
    text: str = ""
    changed: float = 0.0
    """When its files were last written, in seconds since 1970."""
    damage: str = ""
    """The first thing that cannot be read."""


def summaries(parent: str | Path = RUNS) -> list[RunSummary]:
    """Return the runs directly inside a folder, the newest first."""
    found = [_summary(folder) for folder in find(parent)]
    return sorted(found, key=lambda run: (-run.changed, run.path.name))


def _summary(folder: RunFolder) -> RunSummary:
    known: dict[str, Any] = {"changed": _changed(folder)}
    damage: list[str] = []
    for read in (_from_spec, _from_metrics, _from_environment):
        try:
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                known |= read(folder)
            damage += [str(warning.message) for warning in caught]
        except (UserError, OSError) as error:
            damage.append(str(error))
    if not known.pop("lossless", True):
        known["bits_per_byte"] = None
    state = known.pop("state", "open")
    first = damage[0] if damage else ""
    return RunSummary(folder.path, "damaged" if first else state, **known, damage=first)


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
    found = {"num_parameters": environment.get("num_parameters")}
    # Recorded; that of an older run is tested by `report` alone.
    change = environment.get("data", {}).get("text_change")
    return found if change is None else found | {"lossless": not change}


def _table(values: dict[str, Any], name: str) -> dict[str, Any]:
    found = values.get(name)
    return found if isinstance(found, dict) else {}


def _changed(folder: RunFolder) -> float:
    """Return the time of the newest of the files that training writes."""
    files = (folder.metrics_file, folder.environment_file, folder.spec_file)
    return max((file.stat().st_mtime for file in files if file.exists()), default=0.0)
