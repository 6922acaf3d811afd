"""Early stopping: end a run if its held-out loss no longer falls (Prechelt, 1998)."""

import math
from collections.abc import Iterable

from archwright.format import loss as loss_text
from archwright.runs.records import Record
from archwright.spec.run_spec import EarlyStopSpec


class EarlyStop:
    """Counts evaluations since the held-out loss reached a new minimum, by at least `min_delta`.

    The count depends only on recorded evaluations, so a resumed run has the same count.

    Args:
        records: previous records of the run.
    """

    def __init__(self, spec: EarlyStopSpec, records: Iterable[Record] = ()) -> None:
        self.spec = spec
        self.lowest = math.inf
        self.lowest_step = 0
        self.num_without = 0
        """Evaluations since the minimum."""
        for record in records:
            if record["kind"] == "eval":
                self.add(record)

    def add(self, evaluation: Record) -> bool:
        """Count an evaluation; True if its loss is a new minimum. NaN is not."""
        loss = evaluation["nats_per_token"]
        if loss is not None and loss < self.lowest - self.spec.min_delta:
            self.lowest, self.lowest_step, self.num_without = loss, evaluation["step"], 0
        else:
            self.num_without += 1
        return self.num_without == 0

    @property
    def restores(self) -> bool:
        """True if the run ends with the weights of an earlier step."""
        return self.is_due and self.spec.restore_best and self.lowest_step > 0

    @property
    def is_due(self) -> bool:
        """True if the run must end."""
        return 0 < self.spec.patience <= self.num_without

    @property
    def reason(self) -> str:
        """Reason for the end, for the terminal and the page."""
        by = f" by {self.spec.min_delta:g} or more" if self.spec.min_delta else ""
        number = (
            "the last evaluation" if self.num_without == 1 else f"{self.num_without} evaluations"
        )
        kept = f"; weights are those of step {self.lowest_step:,}" if self.restores else ""
        return (
            f"the held-out loss did not fall below {loss_text(self.lowest)}{by} in {number}{kept}"
        )
