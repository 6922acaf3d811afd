"""Progress of a study: a live table on a terminal, a line for each run elsewhere."""

import json
import os
from collections.abc import Mapping

from archwright import progress as shown
from archwright.format import duration, printable
from archwright.lab.design.plan import Cell
from archwright.lab.results import RunResult
from archwright.lab.running.runner import Display, Runner
from archwright.runs import RunFolder


def progress(quiet: bool) -> Display:
    """Return the display for this terminal."""
    if quiet:
        return Display()
    return Table() if shown.is_watched() else Lines()


class Lines(shown.Lines, Display):
    """A line for each run."""

    def __init__(self) -> None:
        self._left = ""

    def update(self, runner: Runner, running: Mapping[Cell, RunFolder]) -> None:
        self._left = left(runner, running)

    def ended(self, run: RunResult) -> None:
        self.say(f"{described(run)}  {self._left}".rstrip())


class Table(shown.Live, Display):
    """Table of the lowest losses, with a row per variant and a column per seed."""

    def __init__(self) -> None:
        from rich.live import Live

        super().__init__(Live(console=shown.console(), auto_refresh=False))

    def update(self, runner: Runner, running: Mapping[Cell, RunFolder]) -> None:
        from rich.table import Table as RichTable
        from rich.text import Text

        table = RichTable(
            title=left(runner, running), title_justify="left", box=None, pad_edge=False
        )
        table.add_column("lowest loss")
        for seed in runner.columns:
            table.add_column(f"seed {seed}", justify="right")
        for name in runner.plan.arms:
            cells = [_cell(runner, running, name, seed) for seed in runner.columns]
            table.add_row(Text(printable(name)), *cells)
        self.live.update(table, refresh=True)


def described(run: RunResult) -> str:
    """Return the result of a run as a short text."""
    what = f"{run.variant}  seed {run.seed}" + (f"  lr {run.lr:g}" if run.lr else "")
    if run.failed:
        return f"{what}  failed: {run.failed}"
    diverged = "  diverged" if run.diverged else ""
    return f"{what}  loss {run.loss:.4f}  {duration(run.seconds)}{diverged}"


def left(runner: Runner, running: Mapping[Cell, RunFolder]) -> str:
    """Return the progress of a study, with the remaining time."""
    started = sum(
        _done(runner, cell, folder) * runner.cell_seconds(cell) for cell, folder in running.items()
    )
    seconds = max(0.0, runner.remaining() - started / runner.plan.workers)
    return runner.words(duration(round(seconds, 1)))


def _done(runner: Runner, cell: Cell, folder: RunFolder) -> float:
    return last_step(folder) / runner.plan.steps_of(cell.variant, cell.share)


def last_step(folder: RunFolder) -> int:
    """Return the step that a run in training has reached."""
    try:
        with folder.metrics_file.open("rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - 2048))
            lines = file.read().splitlines()
    except OSError:
        return 0
    for line in reversed(lines):
        try:
            return int(json.loads(line)["step"])
        except (ValueError, KeyError, TypeError):
            continue
    return 0


def _cell(runner: Runner, running: Mapping[Cell, RunFolder], name: str, seed: int) -> str:
    losses = [r.loss for c, r in runner.results.items() if (c.variant, c.seed) == (name, seed)]
    best = f"{min(losses):.3f}" if losses else ""
    shares = [
        f"{100 * _done(runner, c, folder):.0f} %"
        for c, folder in running.items()
        if (c.variant, c.seed) == (name, seed)
    ]
    return " ".join([*shares, best]) or ("-" if seed in runner.left_out else "·")
