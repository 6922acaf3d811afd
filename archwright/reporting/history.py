"""History of a run, as columns."""

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
    """Records of a run folder. Losses are in nats per token, times in seconds of training."""

    name: str
    folder: str
    spec: RunSpec
    train: Columns
    """One array of shape [steps] per column; NaN marks missing values."""
    evals: Sequence[Line]
    compressors: Sequence[Line]
    """`baseline` records: results of general compressors on the same held-out bytes."""
    events: Sequence[Line]
    environment: Mapping[str, Any]
    sample: str
    probes: Sequence[Line] = ()
    """Probe records, one per probed step."""
    text_change: str | None = ""
    """Result of `text_change_of`. Unless it is empty, evaluations have no bits per byte."""

    @property
    def num_steps(self) -> int:
        """Number of steps trained so far."""
        return int(self.train["step"].max(initial=0))

    @property
    def planned_steps(self) -> int | None:
        """Total number of steps, if known; an estimate during a run with a time budget."""
        if self.num_steps and (progress := float(self.train["progress"][-1])) > 1e-9:
            return round(self.num_steps / progress)
        planned = self.spec.machine.num_steps
        return planned if isinstance(planned, int) else None

    @property
    def flops_per_token(self) -> float | None:
        """Training FLOPs per token, if known."""
        value = self.environment.get("flops_per_token")
        return float(value) if value else None

    @property
    def task(self) -> Line | None:
        """Synthetic task of the run, if any.

        Includes `name`, `floor` (minimum loss, nats per answer) and `chance` (accuracy of guessing)."""
        task = self.environment.get("data", {}).get("task")
        return dict(task) if task else None

    @property
    def loss_unit(self) -> str:
        """Unit of losses."""
        return "nats per answer" if self.task else self.spec.objective.loss_unit

    @property
    def state(self) -> State:
        """State of the run, from its last event of start or end."""
        last = next((e["name"] for e in reversed(self.events) if e["name"] in _STATES), "")
        return _STATES.get(last, "unfinished")


_STATES: dict[str, State] = {
    "started": "unfinished",
    "resumed": "unfinished",
    "stopped": "stopped",
    "finished": "finished",
}


def read_history(run_folder: RunFolder) -> History:
    """Read the history of a run from its folder."""
    kinds: dict[str, list[Line]] = {}
    for line in run_folder.metrics():
        kinds.setdefault(line["kind"], []).append(line)
    lines = kinds.get("train", [])
    columns: Columns = {
        name: np.array([line[name] for line in lines], dtype=np.int64)
        for name in ("step", "tokens")
    }
    auxiliary = {name for line in lines for name in line if name.endswith("_loss")}
    for name in ("seconds", "progress", *MEASURED, *sorted(auxiliary - {*MEASURED})):
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
    """Replace null, the record of a non-finite number, with NaN."""
    return {key: math.nan if value is None else value for key, value in line.items()}
