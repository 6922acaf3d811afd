"""Tab completion by argcomplete: models, runs, dotted keys and their values.

Reads only listings and file names, so that a completion takes a tenth of a second.
"""

import os
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import argcomplete
from argcomplete.completers import FilesCompleter
from argcomplete.lexers import split_line

from archwright import presets
from archwright.cli.list_verb import WHAT
from archwright.cli.listings import index, listing
from archwright.cli.new_verb import KINDS
from archwright.cli.parser import ParserReady
from archwright.spec.installed import preset_files
from archwright.spec.other_names import CHOICES

Node = dict[str, Any]
Completer = Callable[[str, str, Namespace], Iterable[str]]
"""Function of (prefix, verb, parsed words) that returns completions."""

ROOMS = {
    "train": ("runs", "models"),
    "prepare": ("runs", "models"),
    "compare": ("studies", "models"),
}
"""Kinds of presets that complete each verb. Other verbs complete model presets and run folders."""
OF_MODELS = ("show", "diff")
"""Verbs that accept only the keys of models."""
UNLISTED = {"name", "source", "sources", "base", "parts"}
"""Keys of TOML files, excluded from completion."""


def complete(verbs: Iterable[str]) -> None:
    """Write the completions of the shell's line and exit."""
    program = int(os.environ["_ARGCOMPLETE"])
    line, point = os.environ["COMP_LINE"], int(os.environ["COMP_POINT"])
    words = split_line(line, point)[3][program:]
    parser = ArgumentParser("archwright")
    if words and (verb := words[0]) in verbs:
        os.environ["_ARGCOMPLETE"] = str(program + 1)
        try:
            import_module(f"archwright.cli.{verb}_verb").run([])
        except ParserReady as ready:
            parser = ready.args[0]
        for action in parser._actions:
            if completer := COMPLETERS.get(action.dest):
                action.completer = _or_files(completer, verb)  # type: ignore[attr-defined]
    else:
        parser.add_argument("--version", action="store_true")
        parser.add_argument("verb", choices=verbs)
    argcomplete.autocomplete(parser, always_complete_options=False)


def _or_files(completer: Completer, verb: str) -> Callable[..., list[str]]:
    """Wrap a completer for argcomplete, with file names as a fallback."""

    def complete(prefix: str, parsed_args: Namespace, **_: object) -> list[str]:
        matches = [c for c in completer(prefix, verb, parsed_args) if c.startswith(prefix)]
        before, equals, path = prefix.rpartition("=")
        return matches or [f"{before}{equals}{file}" for file in FilesCompleter()(path)]

    return complete


def _names(_prefix: str, verb: str, *_: object) -> Iterator[str]:
    for room in ROOMS.get(verb, ("models",)):
        yield from preset_files(room)
    yield from (path.name for path in Path().glob("*.toml"))
    if verb not in ROOMS:
        yield from _runs()


def _names_and_keys(prefix: str, verb: str, *_: object) -> Iterator[str]:
    yield from _names(prefix, verb)
    yield from _keys(prefix, verb)


def _keys(prefix: str, verb: str, *_: object) -> list[str]:
    """Complete a dotted key or its values, also after a variant's colon."""
    variant, colon, word = prefix.rpartition(":")
    if "=" in variant:
        return []
    schema = listing("schema_run")
    model = schema["properties"]["model"]
    # The prefix `model.` is optional, in runs and in models.
    roots = [{"properties": {"model": model}} if verb in OF_MODELS else schema, model]
    matches = [text for root in roots for text in _below_prefix(schema, root, word)]
    if len(matches) == 1 and matches[0].endswith("."):  # shells would add a blank
        return _keys(f"{variant}{colon}{matches[0]}", verb)
    return [f"{variant}{colon}{text}" for text in matches]


def _below_prefix(schema: Node, root: Node, word: str) -> Iterator[str]:
    key, equals, _ = word.partition("=")
    *tables, _ = path = key.split(".")
    if equals:
        yield from (f"{key}={v}" for node in _below(schema, root, path) for v in _values(node))
        return
    for table in _below(schema, root, tables):
        for name in table.get("properties", {}).keys() - UNLISTED:
            full_key = ".".join([*tables, name])
            is_table = any("properties" in node for node in _below(schema, table, [name]))
            if full_key.startswith(key):
                yield full_key + ("." if is_table else "=")


def _below(schema: Node, node: Node, path: list[str]) -> Iterator[Node]:
    """Yield the JSON schema's nodes at a path below a node."""
    if "$ref" in node:
        node = schema["$defs"][node["$ref"].rpartition("/")[2]]
    if "anyOf" in node:
        for inner in node["anyOf"]:
            yield from _below(schema, inner, path)
    elif not path:
        yield node
    elif path[0] in node.get("properties", {}):
        yield from _below(schema, node["properties"][path[0]], path[1:])


def _values(node: Node) -> Iterable[str]:
    node = node.get("items", node)
    switch = ["true", "false"] if node.get("type") == "boolean" else []
    return map(str, [node["const"]] if "const" in node else node.get("enum", switch))


def _of_list(prefix: str, verb: str, options: Namespace) -> Iterator[str]:
    if options.words[:1] == ["choices"]:
        for section in listing("choices"):
            yield section["name"]
            yield from (kind["name"] for kind in section["kinds"])
        return
    chosen = index()
    key, equals, _ = prefix.partition("=")
    if equals:
        values = {**chosen.get(key, {}), **chosen.get(f"{key}.kind", {})}
        yield from (f"{key}={value}" for value in values)
    else:
        yield from WHAT
        columns = [name for name in listing("models")["rows"][0] if name != "unpublished"]
        yield from (f"{name}=" for name in [*columns, "mixer", *chosen])


def _explained(prefix: str, *_: object) -> Iterator[str]:
    for section in listing("choices"):
        for kind in section["kinds"]:
            yield f"{section['name']}.{kind['name']}" if "." in prefix else kind["name"]
    yield from CHOICES


def _runs(*_: object) -> list[str]:
    return [str(path.parent) for path in Path("runs").glob("*/spec.toml")]


COMPLETERS: dict[str, Completer] = {
    "model": _names,
    "old": _names,
    "new": _names_and_keys,
    "what": _names_and_keys,
    "assignments": _keys,
    "run": _runs,
    "runs": _runs,
    "resume": _runs,
    "kind": lambda *_: KINDS,
    "hardware": lambda *_: [presets.THIS, *preset_files("hardware")],
    "words": _of_list,
    "word": _explained,
}
"""Completers by argparse destination."""
