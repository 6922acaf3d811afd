"""A run's history, read once and laid out in columns."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from archwright.runs import RunFolder
from archwright.runs.lossy import text_change_of
from archwright.spec.run_spec import RunSpec

Columns = dict[str, NDArray[Any]]
Line = Mapping[str, Any]
State = Literal["finished", "stopped", "unfinished"]

MEASURED = (
    "loss",
    "z_loss",
    "router_loss",
    "second_loss",
    "grad_norm",
    "lr",
    "tokens_per_second",
    "utilisation",
    "memory_bytes",
)


@dataclass(frozen=True)
class History:
    """A run as its folder tells it. Losses are in nats per token, times in seconds of training."""

    name: str
    folder: str
    spec: RunSpec
    train: Columns
    """One array per column, each of shape [steps]; NaN where a value was not recorded."""
    evals: Sequence[Line]
    compressors: Sequence[Line]
    """The `baseline` lines: what general compressors reach on the same held-out bytes."""
    events: Sequence[Line]
    environment: Mapping[str, Any]
    sample: str
    probes: Sequence[Line] = ()
    """Records of probes: a line per probed step."""
    text_change: str | None = ""
    """As of `text_change_of`; evaluations have no bits per byte unless it is empty."""

    @property
    def num_steps(self) -> int:
        """Steps trained so far."""
        return int(self.train["step"].max(initial=0))

    @property
    def planned_steps(self) -> int | None:
        """Steps the whole run has, where that is known; an estimate while a budget in time lasts."""
        if self.num_steps and (progress := float(self.train["progress"][-1])) > 1e-9:
            return round(self.num_steps / progress)
        planned = self.spec.machine.num_steps
        return planned if isinstance(planned, int) else None

    @property
    def flops_per_token(self) -> float | None:
        """FLOPs of training on one token."""
        value = self.environment.get("flops_per_token")
        return float(value) if value else None

    @property
    def task(self) -> Line | None:
        """The synthetic task that the text is, if it is one: its name, `floor`, the least loss in
        nats per answer, and `chance`, the accuracy of guessing."""
        found = self.environment.get("data", {}).get("task")
        return dict(found) if found else None

    @property
    def loss_unit(self) -> str:
        """The unit of losses."""
        return "nats per answer" if self.task else self.spec.objective.loss_unit

    @property
    def state(self) -> State:
        """How the run ended, or that it has not."""
        last = next((e["name"] for e in reversed(self.events) if e["name"] in _STATES), "")
        return _STATES.get(last, "unfinished")


_STATES: dict[str, State] = {
    "started": "unfinished",
    "resumed": "unfinished",
    "stopped": "stopped",
    "finished": "finished",
}


def read_history(run_folder: RunFolder) -> History:
    """Read everything a report needs from a run folder."""
    kinds: dict[str, list[Line]] = {}
    for line in run_folder.metrics():
        kinds.setdefault(line["kind"], []).append(line)
    lines = kinds.get("train", [])
    columns: Columns = {
        name: np.array([line[name] for line in lines], dtype=np.int64)
        for name in ("step", "tokens")
    }
    for name in ("seconds", "progress", *MEASURED):
        columns[name] = np.array([line.get(name) for line in lines], dtype=np.float64)
    evals = [_numbers(line) for line in kinds.get("eval", [])]
    change = text_change_of(run_folder)
    if change != "":
        evals = [{k: v for k, v in line.items() if k != "bits_per_byte"} for line in evals]
    return History(
        name=run_folder.spec.name or run_folder.path.name,
        folder=str(run_folder.path),
        spec=run_folder.spec,
        train=columns,
        evals=evals,
        compressors=kinds.get("baseline", []) if change == "" else [],
        events=kinds.get("event", []),
        environment=run_folder.environment(),
        sample=run_folder.samples(),
        probes=run_folder.probes(),
        text_change=change,
    )


def _numbers(line: Line) -> Line:
    """Return a line with NaN where it holds null, which stands for what was not finite."""
    return {key: math.nan if value is None else value for key, value in line.items()}
