"""The smallest study that is one: a tiny model, a text of a few words, seconds on one core."""

from pathlib import Path

from tests.tiny import MACHINE, SHAPE

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


OPTIONS = {"budget": "20steps", "seeds": 2, "evaluation_tokens": 2048, "together": "threads"}
