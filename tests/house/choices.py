"""Choices that are named outside their homes, and what else asks a value for its class instead of for what it does.

The homes of a choice are its axis in `spec/`, the axis's parts, `optim/` for optimizers and schedules,
`data/tasks/` for tasks, `hf/`, `presets/`, `classic/` and `spec/rules.py`; in `spec/model_spec.py`,
`spec/run_spec.py` and `spec/data.py` it may be a field's type or default.
"""

import ast
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from tests.house.source import PACKAGE, Count, Source, calls

ANYWHERE = ("hf", "presets", "classic")
RULES = f"{PACKAGE}.spec.rules"
GROUND = f"{PACKAGE}.spec.choice"
"""The base of all choices, of which "none" is one on most axes."""
DEFAULTS = tuple(f"{PACKAGE}.spec.{file}" for file in ("model_spec", "run_spec", "data"))
PARTS: Mapping[str, tuple[str, ...]] = {
    "attention": ("attention", "mixers"),
    "cross_attention": ("cross_attention", "mixers"),
    "feedforward": ("feedforward", "routing", "experts", "activations", "channel_mix"),
    "masks": ("masks", "attention_mask"),
    "latent": ("mixers",),
    "recurrences": ("mixers",),
    "scores": ("mixers",),
    "selective": ("mixers",),
    "value_embeddings": ("mixers",),
}
"""Files or folders in parts/ of axes that are not called as their file in spec/ is."""
TRAINED = ("optimizers", "schedules")
"""Files in spec/ whose parts are in optim/."""
HOLDING = (
    *("parts", "model", "losses", "optim", "planning", "generation", "training"),
    *("cpu", "machine", "inspection", "testing", "scale", "checkpoint"),
)
"""Rooms that hold modules and parts in their hands."""


def counts(package: Sequence[Source]) -> list[Count]:
    """Return rows of choices, their kinds, and of asking."""
    known = Choices(package)
    named = [place for source in package for place in known.named_outside(source)]
    files = {place.partition(":")[0] for place in named}

    def each(what: str, found: Callable[[Source], Iterable[str]], aim: str = "0") -> Count:
        return Count.of(what, (place for source in package for place in found(source)), aim)

    instances = [s.at(n) for s in package for n, name in calls(s.tree) if name == "isinstance"]
    return [
        Count.of("files that name a choice outside its homes", sorted(files), "0"),
        Count.of("choices named there", named, "0"),
        Count.of("isinstance", instances),
        each("isinstance on a choice outside its homes", known.asked_outside),
        each("isinstance on an axis's part outside its homes", known.parts_asked),
        each("comparisons with a kind's name outside its homes", known.kinds_compared),
        Count.of(
            "getattr and hasattr where parts are held",
            (p for s in package if s.room in HOLDING for p in _attributes_asked(s)),
            "0",
        ),
        each('asserts that a value is not "auto"', _narrowed),
        each("Any", _any, aim=""),
        Count.of(
            "files outside model/ that name Decoder",
            (s.at(1) for s in package if s.room != "model" and _names_decoder(s)),
        ),
    ]


@dataclass(frozen=True)
class Choices:
    """The choices of a package, by the dotted names of their classes."""

    package: Sequence[Source]

    @cached_property
    def bases(self) -> dict[str, list[str]]:
        """Classes in `spec/` with those that they derive from."""
        return {
            f"{source.module}.{node.name}": [source.meaning(base) for base in node.bases]
            for source, node in self._classes()
        }

    @cached_property
    def axes(self) -> set[str]:
        """Classes that are an axis, of which no value is made."""
        return {
            f"{source.module}.{node.name}"
            for source, node in self._classes()
            if any(_declares(line, "axis") is not None for line in node.body)
        }

    @cached_property
    def kinds(self) -> dict[str, str]:
        """Classes that are a choice, with the name of their kind."""
        found = {}
        for source, node in self._classes():
            kind = next(filter(None, (_declares(line, "kind") for line in node.body)), None)
            if isinstance(kind, ast.Constant) and self.axis(name := f"{source.module}.{node.name}"):
                found[name] = str(kind.value)
        return found

    @cached_property
    def concrete(self) -> set[str]:
        """Choices and their unions; not classes between an axis and its choices, which say what these have."""
        unions = {
            f"{source.module}.{name}"
            for source in self._spec
            for name, value in _assignments(source)
            if isinstance(value, ast.BinOp)
            and {source.meaning(n) for n in ast.walk(value)} & self.kinds.keys()
        }
        return self.kinds.keys() | unions

    def axis(self, name: str) -> str:
        """Return the axis that a class derives from, or nothing."""
        if name in self.axes:
            return name
        return next(filter(None, map(self.axis, self.bases.get(name, []))), "")

    def is_home(self, source: Source, choice: str) -> bool:
        """Tell whether a choice may be named in a file."""
        if source.room in ANYWHERE or source.module == RULES:
            return True
        if source.module == GROUND:
            return self.kinds.get(choice) == "none"
        file = choice.split(".")[2]
        if source.room == "spec":
            return any(name.startswith(f"{source.module}.") for name in (*self.axes, *self.kinds))
        if source.room == "parts":
            return _part_of(source.module) in PARTS.get(file, (file,))
        if source.module == f"{PACKAGE}.data.objectives":
            return file == "objectives"
        if source.module.startswith(f"{PACKAGE}.data.tasks"):
            return file == "tasks"
        return source.room == "optim" and file in TRAINED

    def named_outside(self, source: Source) -> Iterator[str]:
        """Yield the places where a file names a choice though it is no home of it."""
        fields = _fields(source) if source.module in DEFAULTS else set()
        for node in _expressions(source.tree):
            name = source.meaning(node)
            if name in self.concrete and node not in fields and not self._may(source, name):
                yield source.at(node, name.rpartition(".")[2])

    def asked_outside(self, source: Source) -> Iterator[str]:
        """Yield the places where a file asks for the class of a choice though it is no home of it."""
        for call, name in calls(source.tree):
            if name == "isinstance" and len(call.args) == 2:
                classes = {source.meaning(node) for node in ast.walk(call.args[1])}
                outside = [c for c in classes & self.concrete if not self._may(source, c)]
                if outside:
                    yield source.at(call, ast.unparse(call))

    def parts_asked(self, source: Source) -> Iterator[str]:
        """Yield the places where a file asks for the class of an axis's part, which is defined elsewhere in parts/."""
        home = _part_of(source.module) if source.room == "parts" else ""
        for call, name in calls(source.tree):
            if name == "isinstance" and len(call.args) == 2:
                meant = map(source.meaning, _expressions(call.args[1]))
                homes = {
                    _part_of(n) for n in meant if (_part_of(n), n.split(".")[-1]) in self._parts
                }
                if homes & AXES - {home}:
                    yield source.at(call, ast.unparse(call))

    def kinds_compared(self, source: Source) -> Iterator[str]:
        """Yield comparisons of a `kind` with the name of one, outside of the homes of all such kinds."""
        homes = {kind for name, kind in self.kinds.items() if self._may(source, name)}
        kinds = {*self.kinds.values()} - homes
        for node in ast.walk(source.tree):
            if isinstance(node, ast.Compare):
                sides = [node.left, *node.comparators]
                texts = {n.value for s in sides for n in ast.walk(s) if isinstance(n, ast.Constant)}
                if any(map(_is_kind, sides)) and kinds & texts:
                    yield source.at(node, ast.unparse(node))

    def _may(self, source: Source, choice: str) -> bool:
        """Tell whether a file is a home; those of `DEFAULTS` are one of their own axes alone."""
        if source.module in DEFAULTS:
            return self.axis(choice).startswith(f"{source.module}.")
        return self.is_home(source, choice)

    @cached_property
    def _parts(self) -> set[tuple[str, str]]:
        """Classes in `parts/`, each as its file or folder there and its name: folders hand them on."""
        parts = [source for source in self.package if source.room == "parts"]
        return {
            (_part_of(source.module), node.name)
            for source in parts
            for node in source.tree.body
            if isinstance(node, ast.ClassDef)
        }

    def _classes(self) -> Iterator[tuple[Source, ast.ClassDef]]:
        for source in self._spec:
            for node in source.tree.body:
                if isinstance(node, ast.ClassDef):
                    yield source, node

    @property
    def _spec(self) -> list[Source]:
        special = f"{PACKAGE}.classic.spec."
        return [s for s in self.package if s.room == "spec" or s.module.startswith(special)]


def _part_of(module: str) -> str:
    """Return the file or folder in parts/ that a name is of: `norms` of `archwright.parts.norms.RMSNorm`."""
    return module.split(".")[2] if module.startswith(f"{PACKAGE}.parts.") else ""


AXES = frozenset(
    (
        "norms",
        "positions",
        "residuals",
        "embeddings",
        "init",
        *(f for files in PARTS.values() for f in files),
    )
)
"""Files and folders in parts/ that compute the choices of an axis; others serve them all."""


def _attributes_asked(source: Source) -> Iterator[str]:
    """Yield the places where a value that is no module or class is asked whether it has an attribute, or for one by its
    own name; what every object has is no question, and an attribute whose name is a variable's value is known to be
    there."""
    for call, name in calls(source.tree):
        if name in ("getattr", "hasattr") and not source.meaning(call.args[0]):
            asked = call.args[1]
            named = asked.value if isinstance(asked, ast.Constant) else ""
            asks = name == "hasattr" or len(call.args) > 2 or named
            if asks and not str(named).startswith("__"):
                yield source.at(call, ast.unparse(call))


def _narrowed(source: Source) -> Iterator[str]:
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Assert) and any(
            isinstance(n, ast.Constant) and n.value == "auto" for n in ast.walk(node.test)
        ):
            yield source.at(node, ast.unparse(node))


def _any(source: Source) -> Iterator[str]:
    for node in _expressions(source.tree):
        if source.meaning(node) == "typing.Any":
            yield source.at(node)


def _names_decoder(source: Source) -> bool:
    return any(source.meaning(n).endswith(".Decoder") for n in _expressions(source.tree))


def _expressions(tree: ast.AST) -> Iterator[ast.Name | ast.Attribute]:
    for node in ast.walk(tree):
        if isinstance(node, (ast.Name, ast.Attribute)):
            yield node


def _fields(source: Source) -> set[ast.AST]:
    """Return all nodes of the fields of classes: types and defaults."""
    return {
        node
        for owner in ast.walk(source.tree)
        if isinstance(owner, ast.ClassDef)
        for line in owner.body
        if isinstance(line, ast.AnnAssign)
        for node in ast.walk(line)
    }


def _declares(line: ast.stmt, name: str) -> ast.expr | None:
    """Return the value of a class's field of this name."""
    if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name):
        return line.value if line.target.id == name else None
    return None


def _assignments(source: Source) -> Iterator[tuple[str, ast.expr]]:
    for node in source.tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            yield node.targets[0].id, node.value


def _is_kind(node: ast.AST) -> bool:
    """Tell whether an expression is the name of a choice's kind: `x.kind`, `kind`, `x["kind"]` or `x.get("kind")`."""
    if isinstance(node, ast.Call) and node.args:
        node = node.args[0]
    if isinstance(node, ast.Subscript):
        node = node.slice
    if isinstance(node, ast.Constant):
        return node.value == "kind"
    return (node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")) == "kind"
