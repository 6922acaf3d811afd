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
"""Axes whose kinds `mixer` stands for."""
MOST_NAMED = 12
"""Most values that are named to who asks for one that is not there."""
SWITCHES = {"true": "yes", "false": "no"}

Index = Mapping[str, Mapping[str, str]]
"""The models that have each value, separated by blanks, by path and value."""
Texts = dict[str, list[str]]
"""What each model has, by its name; of a model of which nothing is known, nothing."""


@dataclass(frozen=True)
class Filter:
    """A condition on models."""

    key: str
    order: str
    value: str
    written: str
    """The condition as it was given."""

    def names(self, records: Sequence[Record], index: Index) -> set[str]:
        """Return the models that meet it.

        Raises:
            UserError: a key or value that no model has, or an order of what is no number.
        """
        sources = _sources(self.key, records, index)
        if self.order in ORDERS:
            return self._ordered(sources)
        found = {
            name
            for column, texts in sources
            for name, given in texts.items()
            if any(_is(text, self.value, in_words=column) for text in given)
        }
        if not found:
            self._check_value(sources, index)
        if self.order == "=":
            return found
        known = {name for _, texts in sources for name, given in texts.items() if given}
        return known - found

    def _ordered(self, sources: list[tuple[bool, Texts]]) -> set[str]:
        bound = _number(self.value)
        if bound is None:
            raise UserError(f'{self.written}: found "{self.value}"; expected a number, such as 7B')
        numbers = {
            name: [number for text in given if (number := _number(text)) is not None]
            for _, texts in sources
            for name, given in texts.items()
        }
        if not any(numbers.values()):
            raise UserError(
                f"{self.written}: {self.key} is no number; expected {self.key}=VALUE or {self.key}!=VALUE"
            )
        compare = ORDERS[self.order]
        return {name for name, given in numbers.items() if any(compare(n, bound) for n in given)}

    def _check_value(self, sources: list[tuple[bool, Texts]], index: Index) -> None:
        """Refuse a value that is no number and that nothing can have."""
        kinds = [kind for path in _paths(self.key, index) for kind in index[path]]
        texts = [text for _, models in sources for given in models.values() for text in given]
        known = [*dict.fromkeys([*kinds, *texts])]
        numbers = any(_number(text) is not None for text in known)
        if (numbers and _number(self.value) is not None) or self.value.lower() in map(
            str.lower, kinds
        ):
            return
        there = f": there are {', '.join(known)}" if len(known) <= MOST_NAMED else ""
        raise UserError(
            f'{self.key}: found "{self.value}", which no model has{there}.{nearest(self.value, known)}'
        )


def filtered(
    records: Sequence[Record], index: Index, words: Sequence[str]
) -> tuple[list[Record], str]:
    """Return the models that meet all conditions, and these in words.

    Raises:
        UserError: a key or a value that there is not, one line each.
    """
    filters = [_read(word) for word in words]
    names = {record["model"] for record in records}
    lines: list[str] = []
    for each in filters:
        try:
            names &= each.names(records, index)
        except UserError as error:
            lines += error.lines
    if lines:
        raise UserError(*lines)
    return [record for record in records if record["model"] in names], ", ".join(
        each.written for each in filters
    )


def _read(word: str) -> Filter:
    found = FILTER.fullmatch(word)
    assert found
    key, order, value = found.groups()
    if not value:
        raise UserError(f'{word}: expected a value; quote what holds < or >: "year>=2024"')
    return Filter(
        key.removeprefix("model.").replace(" ", "_").replace("-", "_"), order, value, word.strip()
    )


def _sources(key: str, records: Sequence[Record], index: Index) -> list[tuple[bool, Texts]]:
    """Return what models have at a key, and whether that is a column of the table."""
    found: list[tuple[bool, Texts]] = []
    columns = [name for name in records[0] if name != "unpublished"]
    if key in columns:
        found.append((True, {record["model"]: _pieces(record, key) for record in records}))
    for path in _paths(key, index):
        texts: Texts = {}
        for text, names in index[path].items():
            for name in names.split():
                texts.setdefault(name, []).append(text)
        found.append((False, texts))
    if not found:
        short = [path.removesuffix(".kind") for path in index]
        hint = nearest(key, [*columns, "mixer", *index, *short])
        raise UserError(
            f"{key}: no column and no value of models; the columns are {', '.join(columns)}.{hint}"
        )
    return found


def _paths(key: str, index: Index) -> list[str]:
    """Return the paths that a key stands for: itself, the kind of its axis, or the outermost path that ends so."""
    if key == "mixer":
        return [path for axis in MIXERS if (path := f"{axis}.kind") in index]
    for path in (key, f"{key}.kind"):
        if path in index:
            return [path]
    ends = (f".{key}", f".{key}.kind")
    below = [path for path in index if path.endswith(ends)]
    return sorted(below, key=lambda path: path.count("."))[:1]


def _pieces(record: Record, column: str) -> list[str]:
    """Return what a cell names: the layers of one model may differ."""
    cell = record.get(column, "")
    if not cell:
        return [] if record["unpublished"] else ["none"]
    return re.split(r" \+ |, (?!\d{3}\b)", cell)


def _is(text: str, value: str, *, in_words: bool) -> bool:
    """Tell whether a text is a value, or in a table has it as its words."""
    a, b = text.lower(), value.lower()
    if a == b or (in_words and SWITCHES.get(b) == a):
        return True
    numbers = _number(text), _number(value)
    if None not in numbers and numbers[0] == numbers[1]:
        return True
    return in_words and f" {b} " in f" {a} "


def _number(text: str) -> float | None:
    found = NUMBER.fullmatch(text)
    return float(found[1].replace(",", "")) * THOUSANDS[found[2]] if found else None


def named_like(records: Sequence[Record], word: str) -> list[Record]:
    """Return the models whose names hold a word."""
    return [record for record in records if word.lower() in record["model"]]


def by_year(records: Sequence[Record], among: Sequence[Record]) -> list[list[str]]:
    """Return a row for each year: how many models of it are in `records`, and how many there are."""
    of_all, here = (Counter(record["year"] for record in rows) for rows in (among, records))
    years = sorted(of_all.items())
    if len(records) == len(among):
        return [["year", "models"], *([year, str(number)] for year, number in years)]
    rows = [[year, str(here[year]), f"of {number}"] for year, number in years]
    return [["year", "models", ""], *rows]
