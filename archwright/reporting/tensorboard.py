"""TensorBoard log of a run, if the extra is installed."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from archwright.spec.errors import UserError

if TYPE_CHECKING:
    from torch.utils.tensorboard.writer import SummaryWriter

PREFIXES = {"train": "train", "eval": "held_out", "baseline": "baseline"}
"""TensorBoard group of each kind of record; events become text."""

COORDINATES = ("kind", "step", "tokens", "seconds", "name", "text")


class TensorBoardLog:
    """Writes records to TensorBoard event files in a folder.

    Raises:
        UserError: The extra is not installed.
    """

    def __init__(self, folder: Path) -> None:
        try:
            from torch.utils.tensorboard.writer import SummaryWriter
        except ImportError as error:
            message = "tensorboard: not installed; run: pip install 'archwright[tensorboard]'"
            raise UserError(message) from error
        self._writer: SummaryWriter = SummaryWriter(str(folder))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Flush and close the files."""
        self._writer.close()

    def write(self, line: Mapping[str, Any]) -> None:
        """Write a record: numbers as scalars, an event as text."""
        step = line["step"]
        if line["kind"] == "event":
            text = f"{line['name']}: {line.get('text', '')}"
            self._writer.add_text("events", text, step)
            return
        for tag, value in scalars(line).items():
            self._writer.add_scalar(tag, value, step)


def scalars(line: Mapping[str, Any]) -> dict[str, float]:
    """Return the numbers of a record by tag, such as `held_out/perplexity`; events have none."""
    if line["kind"] == "event":
        return {}
    group = PREFIXES.get(line["kind"], line["kind"])
    name = f"/{line['name']}" if "name" in line else ""
    return {
        f"{group}{name}/{key}": value
        for key, value in line.items()
        if key not in COORDINATES and isinstance(value, (int, float))
    }
