"""The metrics of a run as columns: NumPy arrays by name, a row for each step."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from archwright.runs.records import Record
from archwright.spec.errors import UserError, nearest

if TYPE_CHECKING:
    import pandas

COUNTS = ("step", "tokens")
"""Columns of whole numbers; all others are floats, NaN where a step has no such number."""
USUAL = (*COUNTS, "seconds", "loss", "lr", "grad_norm", "held_out_loss")
"""Columns that every run has, also before its first step."""
HELD_OUT = "held_out_"
"""Begins the names of what an evaluation found."""
NO_NUMBERS = ("kind", "name", "text")


class RunHistory(Mapping[str, NDArray[Any]]):
    """The records of a run as arrays of one length: `history["loss"]`.

    A row is a step. Its columns have the names of the keys in metrics.jsonl, those of evaluations on held-out text
    with `held_out_` before them, `nats_per_token` called `held_out_loss`. Losses are in nats per token, `seconds` are
    of training.
    """

    def __init__(self, columns: Mapping[str, NDArray[Any]]) -> None:
        self._columns = dict(columns)

    @classmethod
    def from_records(cls, records: Iterable[Record]) -> RunHistory:
        """Return the history that records tell; of two evaluations at a step, the later counts, as at the end of a run
        it reads the most."""
        rows: dict[int, dict[str, Any]] = {}
        for record in records:
            if record["kind"] == "train":
                rows.setdefault(record["step"], {}).update(_numbers(record))
            elif record["kind"] == "eval":
                place = {key: record[key] for key in (*COUNTS, "seconds")}
                row = rows.setdefault(record["step"], place)
                row.update({_held_out(k): v for k, v in _numbers(record).items() if k not in place})
        steps = [rows[step] for step in sorted(rows)]
        names = dict.fromkeys([*USUAL, *(name for row in steps for name in row)])
        return cls(
            {
                name: np.array(
                    [row.get(name) for row in steps], np.int64 if name in COUNTS else np.float64
                )
                for name in names
            }
        )

    @property
    def evaluations(self) -> RunHistory:
        """The rows in which the model was evaluated on held-out text."""
        rows = ~np.isnan(self["held_out_loss"])
        return RunHistory({name: values[rows] for name, values in self.items()})

    def to_pandas(self) -> pandas.DataFrame:
        """Return the columns as a DataFrame.

        Raises:
            UserError: pandas is not installed.
        """
        try:
            import pandas
        except ImportError as error:
            raise UserError(
                "to_pandas: pandas is not installed; run: pip install pandas"
            ) from error
        return pandas.DataFrame(self._columns)

    def __getitem__(self, name: str) -> NDArray[Any]:
        if name not in self._columns:
            raise KeyError(
                f'no column "{name}"; there are {", ".join(self)}.{nearest(name, self._columns)}'
            )
        return self._columns[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._columns)

    def __len__(self) -> int:
        return len(self._columns)

    def __repr__(self) -> str:
        return f"RunHistory({len(self['step']):,} steps: {', '.join(self)})"


def _numbers(record: Record) -> dict[str, Any]:
    """Return the numbers of a record; null, which stands for what was not finite, is one."""
    return {
        key: value
        for key, value in record.items()
        if key not in NO_NUMBERS and isinstance(value, (int, float, type(None)))
    }


def _held_out(key: str) -> str:
    return HELD_OUT + ("loss" if key == "nats_per_token" else key)
