"""Modules: circles of imports, a name in many rooms, what one module sets in another, one idea in many places."""

import ast
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

from tests.house.source import PACKAGE, Count, Source, calls

Graph = Mapping[str, set[str]]
SAME = 3
"""Rooms from which on a name that they share says nothing."""


def counts(package: Sequence[Source]) -> list[Count]:
    """Return rows of modules."""
    return [
        Count.of("circles of imports", _circles(_imports(package)), "0"),
        Count.of(f"names of modules that are in {SAME} rooms or more", _same_names(package), "0"),
        Count.of("names of modules set from outside", (p for s in package for p in _set(s)), "0"),
        Count.of("places that parse a budget", _called(package, "parse_budget"), "1"),
        Count.of(
            "places that replace a file or wait for the disk",
            _called(package, "fsync", "replace", of="os"),
            "1",
        ),
        Count.of("definitions of IGNORE", (p for s in package for p in _ignores(s)), "1"),
    ]


def _imports(package: Sequence[Source]) -> Graph:
    """Return which modules each imports by name, sooner or later, but not for types alone."""
    modules = {source.module for source in package}
    graph = defaultdict[str, set[str]](set)
    for source in package:
        for node in _run(source.tree):
            names = [alias.name for alias in node.names]
            if isinstance(node, ast.ImportFrom):
                names = [f"{node.module}.{name}" for name in names] + [node.module or ""]
                names = [n for n in names[:-1] if n in modules] or names[-1:]
            graph[source.module] |= {n for n in names if n in modules and n != source.module}
    return graph


def _run(tree: ast.AST) -> Iterator[ast.Import | ast.ImportFrom]:
    """Yield imports, except those below `if TYPE_CHECKING:`."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            yield node
        elif isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            for other in node.orelse:
                yield from _run(other)
        else:
            yield from _run(node)


def _circles(graph: Graph) -> Iterator[str]:
    """Yield the modules that reach one another, one line for each such group."""
    reached = {name: _reached(graph, name) for name in graph}
    seen = set[str]()
    for name in sorted(graph):
        group = {n for n in reached[name] if name in reached.get(n, ())}
        if group and name not in seen:
            seen |= group
            yield ", ".join(sorted(group))


def _reached(graph: Graph, start: str) -> set[str]:
    found, open_still = set[str](), [start]
    while open_still:
        for name in graph.get(open_still.pop(), set()) - found:
            found.add(name)
            open_still.append(name)
    return found


def _same_names(package: Sequence[Source]) -> Iterator[str]:
    rooms = defaultdict[str, set[str]](set)
    for source in package:
        if source.path.name != "__init__.py":
            rooms[source.path.stem].add(source.room)
    yield from (f"{n}: {', '.join(sorted(r))}" for n, r in sorted(rooms.items()) if len(r) >= SAME)


def _set(source: Source) -> Iterator[str]:
    """Yield assignments to an attribute of a module or class that is imported from the package."""
    for node in ast.walk(source.tree):
        targets = node.targets if isinstance(node, ast.Assign) else []
        targets += [node.target] if isinstance(node, (ast.AugAssign, ast.AnnAssign)) else []
        for target in targets:
            meant = source.meaning(target) if isinstance(target, ast.Attribute) else ""
            if meant.startswith(f"{PACKAGE}."):
                yield source.at(node, ast.unparse(target))


def _called(package: Sequence[Source], *names: str, of: str = "") -> Iterator[str]:
    """Yield calls of functions of these names, those of one module alone where it is given."""
    for source in package:
        for call, name in calls(source.tree):
            if name in names and (not of or source.meaning(call.func) == f"{of}.{name}"):
                yield source.at(call, ast.unparse(call.func))


def _ignores(source: Source) -> Iterator[str]:
    for node in source.tree.body:
        targets = node.targets if isinstance(node, ast.Assign) else []
        if any(isinstance(t, ast.Name) and t.id.startswith("IGNORE") for t in targets):
            yield source.at(node)
