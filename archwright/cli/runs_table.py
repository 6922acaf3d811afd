"""Output of `archwright list runs`."""

import os
import time

from archwright.cli.architectures_table import print_fitting
from archwright.format import count, decimal, loss, one_line
from archwright.runs import RUNS
from archwright.runs.summaries import RunSummary, summaries

HEAD = [
    *("run", "state", "bits per byte", "loss", "model"),
    *("parameters", "tokens", "text", "last written"),
]


def print_runs() -> None:
    """Print a table of all runs and their last results, newest first."""
    runs = summaries()
    if not runs:
        print(f"no runs in {RUNS}{os.sep} yet; archwright train demo makes one")
        return
    print_fitting([HEAD, *map(_cells, runs)])
    if any(run.loss is not None for run in runs):
        print("Loss in nats per token, and bits per byte, are of held-out text.")
    for run in runs:
        if run.damage:
            print(f"{run.path}: {one_line(run.damage)}")


def _cells(run: RunSummary) -> list[str]:
    return [
        str(run.path),
        run.state,
        "-" if run.bits_per_byte is None else decimal(run.bits_per_byte),
        "-" if run.loss is None else loss(run.loss),
        run.model or "-",
        "-" if run.num_parameters is None else count(run.num_parameters),
        count(run.tokens) if run.tokens else "-",
        run.text or "-",
        time.strftime("%Y-%m-%d %H:%M", time.localtime(run.changed)),
    ]
