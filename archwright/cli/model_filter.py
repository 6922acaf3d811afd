"""Filters of the table of architectures: `norm=layer "year>=2024" mixer=latent`."""

import operator
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from archwright.cli.architectures_table import Record
from archwright.spec.errors import UserError, nearest

FILTER = re.compile(r"\s*([A-Za-z][\w. -]*?)\s*(>=|<=|!=|=|>|<)\s*(.*?)\s*")
NUMBER = re.compile(r"(\d[\d,]*\.?\d*)\s*([kMBT]?)")
THOUSANDS = {"": 1.0, "k": 1e3, "M": 1e6, "B": 1e9, "T": 1e12}
ORDERS: dict[str, Callable[[float, float], bool]] = {
    ">=": operator.ge,
    "<=": operator.le,
    ">": operator.gt,
    "<": operator.lt,
}
MIXERS = ("attention", "recurrence")
"""Axes covered by the key `mixer`."""
MOST_NAMED = 12
"""Maximum number of values listed in an error."""
SWITCHES = {"true": "yes", "false": "no"}

Index = Mapping[str, Mapping[str, str]]
"""Names of the models with a value, separated by blanks: `index[path][value]`."""
Texts = dict[str, list[str]]
"""Values of each model, by its name; empty if they are unknown."""


@dataclass(frozen=True)
class Filter:
    """A condition on models."""

    key: str
    order: str
    value: str
    written: str
    """Text of the condition on the command line."""

    def names(self, records: Sequence[Record], index: Index) -> set[str]:
        """Return the names of matching models.

        Raises:
            UserError: unknown key or value, or `<` or `>` without a number.
        """
        sources = _sources(self.key, records, index)
        if self.order in ORDERS:
            return self._ordered(sources)
        matches = {
            name
            for column, texts in sources
            for name, values in texts.items()
            if any(_is(text, self.value, in_words=column) for text in values)
        }
        if not matches:
            self._check_value(sources, index)
        if self.order == "=":
            return matches
        with_values = {name for _, texts in sources for name, values in texts.items() if values}
        return with_values - matches

    def _ordered(self, sources: list[tuple[bool, Texts]]) -> set[str]:
        bound = _number(self.value)
        if bound is None:
            raise UserError(f'{self.written}: found "{self.value}"; expected a number, such as 7B')
        numbers = {
            name: [number for text in values if (number := _number(text)) is not None]
            for _, texts in sources
            for name, values in texts.items()
        }
        if not any(numbers.values()):
            raise UserError(
                f"{self.written}: {self.key} is not a number; expected {self.key}=VALUE or {self.key}!=VALUE"
            )
        compare = ORDERS[self.order]
        return {name for name, values in numbers.items() if any(compare(n, bound) for n in values)}

    def _check_value(self, sources: list[tuple[bool, Texts]], index: Index) -> None:
        """Raise a UserError for an unknown value, unless it is a number."""
        kinds = [kind for path in _paths(self.key, index) for kind in index[path]]
        texts = [text for _, models in sources for values in models.values() for text in values]
        values = [*dict.fromkeys([*kinds, *texts])]
        numbers = any(_number(text) is not None for text in values)
        if (numbers and _number(self.value) is not None) or self.value.lower() in map(
            str.lower, kinds
        ):
            return
        there = f": there are {', '.join(values)}" if len(values) <= MOST_NAMED else ""
        raise UserError(
            f'{self.key}: found "{self.value}", which no model has{there}.{nearest(self.value, values)}'
        )


def filtered(
    records: Sequence[Record], index: Index, words: Sequence[str]
) -> tuple[list[Record], str]:
    """Return the models that match all filters, and the text of the filters.

    Raises:
        UserError: unknown keys or values.
    """
    filters = [_read(word) for word in words]
    names = {record["model"] for record in records}
    lines: list[str] = []
    for condition in filters:
        try:
            names &= condition.names(records, index)
        except UserError as error:
            lines += error.lines
    if lines:
        raise UserError(*lines)
    return [record for record in records if record["model"] in names], ", ".join(
        condition.written for condition in filters
    )


def _read(word: str) -> Filter:
    match = FILTER.fullmatch(word)
    assert match
    key, order, value = match.groups()
    if not value:
        raise UserError(f'{word}: expected a value; quote what holds < or >: "year>=2024"')
    return Filter(
        key.removeprefix("model.").replace(" ", "_").replace("-", "_"), order, value, word.strip()
    )


def _sources(key: str, records: Sequence[Record], index: Index) -> list[tuple[bool, Texts]]:
    """Return the columns and paths that a key matches, as (True for a column, values by model)."""
    sources: list[tuple[bool, Texts]] = []
    columns = [name for name in records[0] if name != "unpublished"]
    if key in columns:
        sources.append((True, {record["model"]: _pieces(record, key) for record in records}))
    for path in _paths(key, index):
        texts: Texts = {}
        for text, names in index[path].items():
            for name in names.split():
                texts.setdefault(name, []).append(text)
        sources.append((False, texts))
    if not sources:
        short = [path.removesuffix(".kind") for path in index]
        hint = nearest(key, [*columns, "mixer", *index, *short])
        raise UserError(
            f"{key}: neither a column nor a value of models; the columns are {', '.join(columns)}.{hint}"
        )
    return sources


def _paths(key: str, index: Index) -> list[str]:
    """Return the full paths of a key; if several paths match, only the outermost."""
    if key == "mixer":
        return [path for axis in MIXERS if (path := f"{axis}.kind") in index]
    for path in (key, f"{key}.kind"):
        if path in index:
            return [path]
    ends = (f".{key}", f".{key}.kind")
    below = [path for path in index if path.endswith(ends)]
    return sorted(below, key=lambda path: path.count("."))[:1]


def _pieces(record: Record, column: str) -> list[str]:
    """Split a cell into values; there are several if the model's layers differ."""
    cell = record.get(column, "")
    if not cell:
        return [] if record["unpublished"] else ["none"]
    return re.split(r" \+ |, (?!\d{3}\b)", cell)


def _is(text: str, value: str, *, in_words: bool) -> bool:
    """True if a text equals a value, or contains it if `in_words`."""
    a, b = text.lower(), value.lower()
    if a == b or (in_words and SWITCHES.get(b) == a):
        return True
    numbers = _number(text), _number(value)
    if None not in numbers and numbers[0] == numbers[1]:
        return True
    return in_words and f" {b} " in f" {a} "


def _number(text: str) -> float | None:
    match = NUMBER.fullmatch(text)
    return float(match[1].replace(",", "")) * THOUSANDS[match[2]] if match else None


def named_like(records: Sequence[Record], word: str) -> list[Record]:
    """Return the models with names that contain a word."""
    return [record for record in records if word.lower() in record["model"]]


def by_year(records: Sequence[Record], among: Sequence[Record]) -> list[list[str]]:
    """Count models per year in `records`, and in `among`."""
    of_all, here = (Counter(record["year"] for record in rows) for rows in (among, records))
    years = sorted(of_all.items())
    if len(records) == len(among):
        return [["year", "models"], *([year, str(number)] for year, number in years)]
    rows = [[year, str(here[year]), f"of {number}"] for year, number in years]
    return [["year", "models", ""], *rows]
