"""`python -m archwright.catalogue.architectures` writes docs/architectures.md: what each published model
chose, one row each."""

from collections.abc import Sequence
from pathlib import Path

from archwright.format import flops, parameters, size

Record = dict[str, str]
"""A model in the table: its name as `model`, its cells by column, and what is `unpublished` of it."""

IN_DIGITS = {
    "parameters": parameters,
    "cache_per_token": size,
    "flops_per_token": flops,
    "training_memory": size,
}
"""Columns of large numbers, and how these are read."""

FILE = Path(__file__).parents[2] / "docs" / "architectures.md"

HEAD = """\
# Architectures

<!-- Written by `make docs` from the presets. -->

What each model that comes with the package chose, oldest first. Each cell is derived from the model's own
file in [`archwright/presets/models`](../archwright/presets/models), which names the sources; parameters are
counted from the built model. `archwright list` prints this table, also as CSV or JSON, `archwright show NAME`
a model, `archwright diff A B` what two of them do otherwise.

A loss that is added in training, such as the z-loss of PaLM, OLMo 2 and Falcon 2, is no part of a model and
not in this table.
"""


def write() -> None:
    """Write the page into the checkout."""
    FILE.write_text(markdown(), encoding="utf-8")


def markdown() -> str:
    """Return the page."""
    from archwright.catalogue.table import (
        COLUMNS,
        rows,
    )  # reads every preset; a table that is there needs none

    found = rows()
    records = [row.record() for row in found]
    lines = [HEAD, table(records, [*records[0]]), "## Columns\n"]
    lines += [f"- **{_title(name)}**: {column.meaning}" for name, column in COLUMNS.items()]
    lines += ["", "## Unpublished\n", "These cannot be built; an empty cell is not public.\n"]
    lines += [f"- **{row.name}**: {row.unpublished}." for row in found if row.unpublished]
    return "\n".join(lines) + "\n"


def table(records: Sequence[Record], names: Sequence[str]) -> str:
    """Return models as a table in Markdown, whose columns have these names; the last, what is unpublished, stands
    beside the model's."""
    names = names[:-1]
    lines = [[*map(_title, names)], ["---"] * len(names)]
    for record in records:
        name = f"{record['model']} (unpublished)" if record["unpublished"] else record["model"]
        lines.append([name, *(short(record)[column] for column in names[1:])])
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def short(record: Record) -> Record:
    """Return a record for reading, with large numbers in three digits."""
    numbers = {name: record.get(name, "") for name in IN_DIGITS}
    return record | {
        name: IN_DIGITS[name](int(text)) for name, text in numbers.items() if text.isdigit()
    }


def _title(name: str) -> str:
    return name.replace("_", " ")


if __name__ == "__main__":
    write()
