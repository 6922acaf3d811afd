"""Dotted keys and their values, a table at a time, from the JSON schema of a file."""

from collections.abc import Iterable, Iterator
from typing import Any

from archwright.cli.listings import listing

Node = dict[str, Any]

FILES = ("model", "run", "study")
"""Files that have a schema."""
UNLISTED = {"name", "source", "sources", "base", "parts"}
"""Keys of a file that are no values to change on the command line."""
OF_MODEL = "model."


def keys_and_values(file: str, text: str) -> Iterator[str]:
    """Yield the keys one table below `text`, with the dot or the equals sign that follows them; or, behind an equals
    sign, the values that can be named. Keys of a model may have `model.` before them, or leave it out."""
    if file == "model" and text.startswith(OF_MODEL):
        yield from (OF_MODEL + more for more in keys_and_values(file, text.removeprefix(OF_MODEL)))
        return
    key, equals, _ = text.partition("=")
    *above, _ = path = key.split(".")
    schema: Node = listing(f"schema_{file}")
    for tables in _roots(schema):
        if equals:
            yield from (f"{key}={value}" for value in _values(_below(schema, tables, path)))
            continue
        for table in _below(schema, tables, above):
            for name, inner in table.get("properties", {}).items():
                if name not in UNLISTED:
                    whole, nodes = ".".join([*above, name]), [*_alternatives(schema, inner)]
                    yield whole + ("." if any("properties" in node for node in nodes) else "=")


def _roots(schema: Node) -> Iterator[list[Node]]:
    """Yield the tables that a key can begin in: the file's own, and a run's model."""
    yield [schema]
    if "model" in schema["properties"]:
        yield _below(schema, [schema], ["model"])


def _below(schema: Node, tables: list[Node], path: Iterable[str]) -> list[Node]:
    """Return all that can stand at a path below some tables."""
    for name in path:
        inner = [
            table["properties"][name] for table in tables if name in table.get("properties", {})
        ]
        tables = [found for node in inner for found in _alternatives(schema, node)]
    return tables


def _alternatives(schema: Node, node: Node) -> Iterator[Node]:
    """Yield all that a node of the schema allows, references followed."""
    if "$ref" in node:
        yield from _alternatives(schema, schema["$defs"][node["$ref"].rpartition("/")[2]])
    elif "anyOf" in node:
        for inner in node["anyOf"]:
            yield from _alternatives(schema, inner)
    else:
        yield node


def _values(nodes: Iterable[Node]) -> Iterator[str]:
    """Yield the values that nodes name: kinds, words, those of lists among them, and true and false."""
    for node in nodes:
        named = node.get("items", node)
        found = [named["const"]] if "const" in named else named.get("enum", ())
        yield from (str(value) for value in found)
        if node.get("type") == "boolean" and not found:
            yield from ("true", "false")
