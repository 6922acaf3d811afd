"""`python -m docs._make.architectures` writes docs/architectures.md: a row with the choices of each published model."""

from pathlib import Path

from archwright.catalogue.table import COLUMNS, rows
from archwright.cli.architectures_table import table

FILE = Path(__file__).parents[1] / "architectures.md"

HEAD = """\
# Architectures

<!-- Written by `make docs` from the presets. -->

For users who compare published models: the choices of each model in the package, oldest first. Each cell is
derived from the model's file in [`archwright/presets/models`](../archwright/presets/models), or for special systems in
[`archwright/classic/presets/models`](../archwright/classic/presets/models), which names the sources. Parameters are
counted from the built model. `archwright list` prints this table, also as CSV or JSON; `archwright show NAME` prints
a model, and `archwright diff A B` the differences between two.

A loss that is added in training, such as the z-loss of PaLM, OLMo 2 and Falcon 2, is not part of a model and
not in this table.
"""


def write() -> None:
    """Write the page into the checkout."""
    FILE.write_text(markdown(), encoding="utf-8")


def markdown() -> str:
    """Return the page."""
    found = rows()
    records = [row.record() for row in found]
    lines = [HEAD, table(records, [*records[0]]), "## Columns\n"]
    lines += [
        f"- **{name.replace('_', ' ')}**: {column.meaning}" for name, column in COLUMNS.items()
    ]
    lines += ["", "## Unpublished\n", "These cannot be built; an empty cell is not public.\n"]
    lines += [f"- **{row.name}**: {row.unpublished}." for row in found if row.unpublished]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    write()
