"""The smallest study that is one: a tiny model, a text of a few words, seconds on one core."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.tiny import MACHINE, SHAPE, surroundings, write_text

COMMON = (
    *SHAPE,
    *(word for word in MACHINE if "threads" not in word),
    "machine.loss=whole",
    "evaluate.max_tokens=512",
    "evaluate.every=10",
    "optimizer.lr=0.01",
)


def words(text: Path | str, *variants: str) -> list[str]:
    """Return the words of a study of `modern` and variants on a text."""
    return ["modern", *variants, f"data.text={text}", *COMMON]


OPTIONS = {"budget": "20steps", "seeds": 2, "evaluation_tokens": 2048, "parallelism": "processes"}


@contextmanager
def working_in(folder: Path) -> Iterator[Path]:
    """Work in a folder that has a text and a cache of its own."""
    write_text(folder / "text.txt", 2000)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("ARCHWRIGHT_CACHE", str(folder / "cache"))
        patch.setenv("PYTHONPATH", surroundings()["PYTHONPATH"])
        yield folder
