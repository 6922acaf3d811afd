"""CSV logs of a run: one file with a row per step, one with a row per evaluation."""

import csv
import io
from collections.abc import Iterable
from pathlib import Path

from archwright.files import atomic_write, check_replaceable, clear_errors, open_to_append
from archwright.reporting.history import MEASURED
from archwright.runs.records import Record

PLACE = ("step", "tokens", "seconds", "cpu_seconds")
COLUMNS = {
    "train": (*PLACE, *MEASURED, "progress"),
    "eval": (
        *PLACE,
        *("nats_per_token", "perplexity", "bits_per_byte", "num_tokens", "num_bytes"),
        *("accuracy", "num_answers", "token_accuracy", "second_loss", "second_accuracy"),
    ),
}
"""Columns of each kind of record. The kind is also the name of its CSV file. Missing values are empty cells."""


class CsvLog:
    """Writes records to CSV files in a folder.

    Args:
        records: Earlier records of the run, from which the files are rewritten.

    Raises:
        UserError: A write fails, or an existing file is not a log of archwright.
    """

    def __init__(self, folder: Path, records: Iterable[Record]) -> None:
        self.folder = folder
        lines = {kind: [_line(columns)] for kind, columns in COLUMNS.items()}
        for record in records:
            if record["kind"] in lines:
                lines[record["kind"]].append(_row(record))
        for kind, rows in lines.items():
            check_replaceable(self._file(kind), _is_log)
            atomic_write(self._file(kind), "".join(rows))

    def write(self, record: Record) -> None:
        """Append a record's row, if its kind has a file."""
        if record["kind"] in COLUMNS:
            file = self._file(record["kind"])
            with clear_errors(file), open_to_append(file, encoding="utf-8", newline="") as opened:
                opened.write(_row(record))

    def _file(self, kind: str) -> Path:
        return self.folder / f"{kind}.csv"


def _is_log(path: Path) -> bool:
    """True if a file starts like a log of any version."""
    return path.read_bytes().startswith(",".join(PLACE).encode())


def _row(record: Record) -> str:
    return _line(record.get(column) for column in COLUMNS[record["kind"]])


def _line(cells: Iterable[object]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerow(["" if c is None else c for c in cells])
    return text.getvalue()
