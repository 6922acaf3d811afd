"""Faults of one line each, kept as data: what is changed where, and which tests must fail then."""

import ast
import tomllib
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
FILE = Path(__file__).with_name("faults.toml")


@dataclass(frozen=True)
class Fault:
    """A change of a file that makes it wrong.

    Attributes:
        old: what stands in the file, exactly once.
        new: what is put in its place.
        tests: what must fail then: files of tests, or tests in them.
        why: what is wrong with it.
    """

    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]
    why: str

    @property
    def room(self) -> str:
        """The room of the package that the file is in."""
        return Path(self.file).parts[1].removesuffix(".py")

    @property
    def tests_of_room(self) -> tuple[str, ...]:
        """Where the tests of that room are; other folders compare the CPU's kernel and special families with others."""
        alone = Path(self.file).parts[1].endswith(".py")
        own = f"tests/test_{self.room}.py" if alone else f"tests/{self.room}"
        if self.file.startswith("archwright/classic/families/"):
            return (own, "tests/hf")
        return (own, "tests/parts") if self.room == "cpu" else (own,)

    def planted(self, source: str) -> str:
        """Return the file's text with the fault in it.

        Raises:
            ValueError: the list is out of step with the file, which has changed.
        """
        if (found := source.count(self.old)) != 1:
            raise ValueError(f"{self.name}: {self.file} has {found} places like `old`, not one")
        changed = source.replace(self.old, self.new)
        if ast.dump(ast.parse(changed)) == ast.dump(ast.parse(source)):
            raise ValueError(f"{self.name}: `new` is the same program as `old`")
        return changed


def read_faults() -> list[Fault]:
    """Return all faults of the list."""
    tables = tomllib.loads(FILE.read_text("utf-8"))["fault"]
    return [
        Fault(
            **{
                **table,
                "tests": (tests,) if isinstance(tests := table["tests"], str) else tuple(tests),
            }
        )
        for table in tables
    ]
