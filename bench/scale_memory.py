"""How much memory each process of a run holds at most, beside one process that trains the same run alone.

    python -m bench.scale_memory                of 1, 2 and 4 processes; prints the table of bench/results/*-scale.md
    python -m bench.scale_memory --layers 4     of a smaller model

A run of two steps with a checkpoint after each is trained by so many processes, on the CPU in float32; then it goes on
from its first step, and another run begins with its weights. Memory is what is resident at most: VmHWM, which Linux
keeps of each process, and in brackets the largest RssAnon seen, without files that are mapped, whose pages the system
takes back where it needs them.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import psutil

from archwright.runs import RunFolder
from bench.scale import ROOT, environment, torchrun

LOOK_SECONDS = 0.02
GRIDS = {
    "one process": (1, ()),
    "shard 2": (2, ()),
    "shard 4": (4, ()),
    "replicate 2, shard 2": (4, ("scale.replicate=2",)),
    "tensor 2": (2, ("scale.tensor=2",)),
    "pipeline 2": (2, ("scale.pipeline=2", "grad_accum_steps=2")),
}


class Peak(NamedTuple):
    """The most memory that a process held, in bytes: all that is resident, and that of no file."""

    resident: int
    anonymous: int


def peaks(command: Sequence[str]) -> list[Peak]:
    """Return the peaks of the processes of a command, in the order of their ranks.

    Raises:
        RuntimeError: the command failed.
    """
    found: dict[int, Peak] = {}
    with tempfile.TemporaryFile("w+") as err:
        with subprocess.Popen(
            command, cwd=ROOT, env=environment(), stderr=err, stdout=subprocess.DEVNULL
        ) as process:
            while process.poll() is None:
                for rank, peak in _looked(process.pid):
                    before = found.get(rank, Peak(0, 0))
                    found[rank] = Peak(*map(max, before, peak))
                time.sleep(LOOK_SECONDS)
        if process.returncode:
            err.seek(0)
            raise RuntimeError(err.read())
    return [found[rank] for rank in sorted(found)]


def _looked(pid: int) -> Iterator[tuple[int, Peak]]:
    """Yield the rank and the memory of each process that trains."""
    try:
        process = psutil.Process(pid)
        for one in (process, *process.children(recursive=True)):
            words = one.cmdline()
            if "archwright" not in words or "torch.distributed.run" in words:
                continue
            status = Path(f"/proc/{one.pid}/status").read_text()
            kept = dict(re.findall(r"^(VmHWM|RssAnon):\s+(\d+) kB", status, re.M))
            if len(kept) == 2:
                rank = int(one.environ().get("RANK", 0))
                yield rank, Peak(1024 * int(kept["VmHWM"]), 1024 * int(kept["RssAnon"]))
    except (psutil.Error, OSError):
        return


def measured(grid: str, words: Sequence[str], folder: Path, source: Path) -> dict[str, list[Peak]]:
    """Return the peaks of a run, of one that goes on with it, and of one that begins with the weights of `source`,
    which is made of the run where there is none."""
    number, more = GRIDS[grid]
    start = [sys.executable] if number == 1 else torchrun(number)
    out, other = folder / "run", folder / "from"
    train = [*start, "-m", "archwright", "train"]
    found = {"train": peaks([*train, *words, *more, "--out", str(out), "--quiet"])}
    if not source.exists():
        shutil.copytree(out, source)
    run = RunFolder(out)
    run.truncate_to(1)
    run.model_file.unlink()
    found["resume"] = peaks([*train, "--resume", str(out), "--quiet"])
    begun = [*train, *words, *more, f"init.from={source}", "--out", str(other), "--quiet"]
    return found | {"init.from": peaks(begun)}


def main(words: Sequence[str] | None = None) -> None:
    """Measure, and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--layers", type=int, default=10, help="of 11M parameters each")
    parser.add_argument("--grids", nargs="*", default=[*GRIDS], choices=[*GRIDS])
    options = parser.parse_args(words)
    with tempfile.TemporaryDirectory() as folder:
        os.environ["ARCHWRIGHT_CACHE"] = str(Path(folder) / "cache")
        run = (
            *("modern", f"data.text={ROOT / 'LICENSE'}", "data.tokenizer.kind=bytes"),
            *("model.dim=1024", f"model.num_layers={options.layers}", "model.context_length=64"),
            *("batch_size=4", "budget=2steps", "checkpoint.every=1", "evaluate.max_tokens=256"),
            *("evaluate.final_max_tokens=256", "machine.threads=2", "machine.precision=fp32"),
            *("machine.kernel=sdpa", "machine.compile=none", "machine.fused=none"),
        )
        source = Path(folder) / "source"
        rows = {}
        for grid in options.grids:
            with tempfile.TemporaryDirectory(dir=folder) as place:
                rows[grid] = measured(grid, run, Path(place), source)
            print(grid, rows[grid], file=sys.stderr, flush=True)
    alone = {what: every[0].resident for what, every in rows.get("one process", {}).items()}
    print(
        "| processes | work | first process, MB | the largest of the others, MB | beside one process |"
    )
    print("|---|---|---|---|---|")
    for grid, found in rows.items():
        for what, (first, *others) in found.items():
            most = max((p.resident for p in others), default=0)
            beside = f"{first.resident / alone[what]:.2f}" if what in alone else ""
            beside += f", {most / alone[what]:.2f}" if others and what in alone else ""
            cells = f"{_described(first)} | {_described(max(others)) if others else ''} | {beside}"
            print(f"| {grid} | {what} | {cells} |")


def _described(peak: Peak) -> str:
    return f"{peak.resident / 1e6:,.0f} ({peak.anonymous / 1e6:,.0f})"


if __name__ == "__main__":
    main()
