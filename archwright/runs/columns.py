"""Metrics of a run as NumPy arrays by name, a row per step."""

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
"""Integer columns; all others are floats, with NaN for missing values."""
USUAL = (*COUNTS, "seconds", "loss", "lr", "grad_norm", "held_out_loss")
"""Columns of every run, even before its first step."""
HELD_OUT = "held_out_"
"""Prefix of columns of evaluations on held-out text."""
NO_NUMBERS = ("kind", "name", "text")


class RunHistory(Mapping[str, NDArray[Any]]):
    """Records of a run as arrays of equal length: `history["loss"]`.

    Each row is a step. Columns are named after keys in metrics.jsonl. Columns of evaluations on held-out text have the
    prefix `held_out_`; `held_out_loss` is `nats_per_token`. Losses are in nats per token; `seconds` is training time.
    """

    def __init__(self, columns: Mapping[str, NDArray[Any]]) -> None:
        self._columns = dict(columns)

    @classmethod
    def from_records(cls, records: Iterable[Record]) -> RunHistory:
        """Return the history of a run's records.

        The last evaluation of a step counts: at the end of a run, it covers the most text."""
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
        """Rows with an evaluation on held-out text."""
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
    """Return the numeric entries of a record, including null, the record of a non-finite number."""
    return {
        key: value
        for key, value in record.items()
        if key not in NO_NUMBERS and isinstance(value, (int, float, type(None)))
    }


def _held_out(key: str) -> str:
    return HELD_OUT + ("loss" if key == "nats_per_token" else key)
