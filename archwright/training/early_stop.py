"""Early stopping: a run ends where its held-out loss falls no more (Prechelt, 1998)."""

import math
from collections.abc import Iterable

from archwright.format import loss as loss_text
from archwright.runs.records import Record
from archwright.spec.run_spec import EarlyStopSpec


class EarlyStop:
    """Counts evaluations since the held-out loss was last lower than ever, by `min_delta` at least.

    It is a function of the recorded evaluations alone, so a run that goes on from a checkpoint counts as it did before.

    Args:
        records: those of the run so far.
    """

    def __init__(self, spec: EarlyStopSpec, records: Iterable[Record] = ()) -> None:
        self.spec = spec
        self.lowest = math.inf
        self.num_without = 0
        """Evaluations since then."""
        for record in records:
            if record["kind"] == "eval":
                self.add(record)

    def add(self, evaluation: Record) -> None:
        """Take note of an evaluation; a loss that is no number is no new lowest."""
        loss = evaluation["nats_per_token"]
        if loss is not None and loss < self.lowest - self.spec.min_delta:
            self.lowest, self.num_without = loss, 0
        else:
            self.num_without += 1

    @property
    def is_due(self) -> bool:
        """Whether the run is to end here."""
        return 0 < self.spec.patience <= self.num_without

    @property
    def reason(self) -> str:
        """Why it is, for the terminal and the page."""
        by = f" by {self.spec.min_delta:g} or more" if self.spec.min_delta else ""
        number = (
            "the last evaluation" if self.num_without == 1 else f"{self.num_without} evaluations"
        )
        return f"the held-out loss did not fall below {loss_text(self.lowest)}{by} in {number}"
