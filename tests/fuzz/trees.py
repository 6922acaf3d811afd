"""Changes to nested data, as JSON and TOML hold it: of values, which keep their types, and of types."""

import copy
import json
from collections.abc import Callable, Iterator, Sequence
from random import Random
from typing import Any

INTEGERS = (
    *(0, 1, -1, 2, 3, 7, 64, 255, 256, 65_535, 65_536, 10**6),
    *(2**31 - 1, 2**31, -(2**31), 2**32, 2**53, 2**63 - 1, 2**63, -(2**63), 2**64, 10**30),
)
FLOATS = (0.0, -0.0, 1.0, -1.0, 0.5, 1e-320, 1e-30, 1e12, 1e30, 1e308, -1e308)
ODD_FLOATS = (float("nan"), float("inf"), -float("inf"))
STRINGS = (
    *("", " ", "auto", "none", "default", "nan", "1", "-1", "true", "a.b", "a=b"),
    *(
        "\x1b]0;title\x07",
        "\x1b[2J\x1b[31m",
        "a\nb\r\nc",
        "\x00",
        "\x85\u2028",
        "\u202eabc",
        "\ufeff",
    ),
    *(
        "../../etc/passwd",
        "/etc/passwd",
        "~nobody/x",
        "é" * 50,
        "x" * 5000,
        "\U0001f600",
        "%s%n{0}",
    ),
)
DEEP, LONG = "@deep:", "@long:"
"""Marks that `fill_in` turns into nested lists and into integers of many digits, which no writer writes."""
DEPTHS = (2, 60, 1100, 20_000)
DIGITS = (25, 400, 5000)

Path = tuple[Any, ...]


def changed(tree: Any, dice: Random, words: Sequence[str] = (), *, types: bool = False) -> Any:
    """Return a tree with one to four changes: of values, entries and their order, or also of types."""
    tree = copy.deepcopy(tree)
    for _ in range(dice.choice((1, 1, 1, 2, 4))):
        tree = (_other_type if types else _other_value)(tree, dice, words)
    return tree


def fill_in(text: str) -> str:
    """Put what no writer of JSON or TOML writes in the place of its marks."""
    for depth in DEPTHS:
        text = text.replace(f'"{DEEP}{depth}"', "[" * depth + "]" * depth)
    for digits in DIGITS:
        text = text.replace(f'"{LONG}{digits}"', "9" * digits)
    return text


def other_number(value: float, dice: Random) -> float:
    """Return another number of the same type: an extreme, the negative, or one that is near."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        near = (value + 1, value - 1, -value, value * 2, value // 2, value * 1000)
        return dice.choice(dice.choice((near, INTEGERS)))
    near_by = (-value, value * 2, value / 2, value * (1 + 1e-6), value * 1e6)
    return dice.choice(dice.choice((near_by, FLOATS, ODD_FLOATS)))


def _other_value(tree: Any, dice: Random, words: Sequence[str]) -> Any:
    path = _somewhere(tree, dice)
    value = _at(tree, path)
    if isinstance(value, dict | list) and value:
        return _put(tree, path, dice.choice(_REARRANGED)(value, dice))
    if path and dice.random() < 0.15:
        above = _at(tree, path[:-1])
        return _put(tree, path[:-1], dice.choice(_REARRANGED)(above, dice))
    if isinstance(value, bool | int | float):
        return _put(tree, path, other_number(value, dice))
    if isinstance(value, str):
        found = list(_strings(tree)) or [""]
        return _put(tree, path, dice.choice(dice.choice((found, STRINGS, words or found))))
    return _put(tree, path, dice.choice(({}, [], 0, "")))


def _other_type(tree: Any, dice: Random, words: Sequence[str]) -> Any:
    path = _somewhere(tree, dice)
    value = _at(tree, path)
    others = [
        *(None, True, 0, -1, 0.5, "", "x", [], {}, [value], {"x": value}, {"kind": value}),
        *([[]], [{}], {"": {}}, str(value)[:100], f"{DEEP}{dice.choice(DEPTHS)}"),
        f"{LONG}{dice.choice(DIGITS)}",
    ]
    return _put(tree, path, dice.choice(others))


def _somewhere(tree: Any, dice: Random) -> Path:
    """Return a path into the tree, found level by level, so that large tables do not hide small ones."""
    path: Path = ()
    while isinstance(tree, dict | list) and tree and dice.random() > 0.12:
        key = dice.choice(list(tree) if isinstance(tree, dict) else range(len(tree)))
        path, tree = (*path, key), tree[key]
    return path


def _at(tree: Any, path: Path) -> Any:
    for key in path:
        tree = tree[key]
    return tree


def _put(tree: Any, path: Path, value: Any) -> Any:
    if not path:
        return value
    _at(tree, path[:-1])[path[-1]] = value
    return tree


def _strings(tree: Any) -> Iterator[str]:
    """Yield the strings of a tree, keys among them; few of a long one."""
    if isinstance(tree, str):
        yield tree
    elif isinstance(tree, dict):
        for key, value in list(tree.items())[:50]:
            yield key
            yield from _strings(value)
    elif isinstance(tree, list):
        for value in tree[:50]:
            yield from _strings(value)


def _removed(value: Any, dice: Random) -> Any:
    if isinstance(value, list):
        del value[dice.randrange(len(value))]
        return value
    del value[dice.choice(list(value))]
    return value


def _doubled(value: Any, dice: Random) -> Any:
    """Double an entry: of a list beside itself, of a table under another name."""
    if isinstance(value, list):
        value.insert(dice.randrange(len(value) + 1), copy.deepcopy(dice.choice(value)))
        return value
    key = dice.choice(list(value))
    return value | {dice.choice((*STRINGS[:16], f"{key}x", key.upper())): value[key]}


def _swapped(value: Any, dice: Random) -> Any:
    keys = list(value) if isinstance(value, dict) else list(range(len(value)))
    a, b = dice.choice(keys), dice.choice(keys)
    value[a], value[b] = value[b], value[a]
    return value


def _renamed(value: Any, dice: Random) -> Any:
    if isinstance(value, list):
        return _swapped(value, dice)
    old = dice.choice(list(value))
    new = dice.choice((*STRINGS, old[:-1], f"{old}_"))
    return {new if key == old else key: inner for key, inner in value.items()}


def _repeated(value: Any, dice: Random) -> Any:
    if isinstance(value, list) and len(value) < 1000:
        return value * dice.choice((2, 100))
    return _doubled(value, dice)


def _emptied(value: Any, dice: Random) -> Any:
    return type(value)()


_REARRANGED: tuple[Callable[[Any, Random], Any], ...] = (
    _removed,
    _removed,
    _doubled,
    _swapped,
    _renamed,
    _repeated,
    _emptied,
)


def json_with_a_key_twice(tree: Any, dice: Random) -> str:
    """Return JSON whose outermost table has a key a second time, with another value."""
    if not isinstance(tree, dict) or not tree:
        return json.dumps(tree)
    key = dice.choice(list(tree))
    again = json.dumps({key: _other_value(copy.deepcopy(tree[key]), dice, ())})
    return f"{json.dumps(tree)[:-1]}, {again[1:]}"
