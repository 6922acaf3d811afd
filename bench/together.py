"""Eight small runs at once: one after another on all cores, a process for each core, and in stacks.

    python bench/together.py [--batches 4 16] [--stacks 2 4 8] [--precision bf16] [--help]

Every way trains the same eight runs of one shape and of seeds of their own, with full steps: batch, forward,
loss, backward, clipping, fused AdamW, as the lab does. The ways take turns, so that whatever else the machine
does falls on all alike; each is timed by wall time, as what counts is how much a machine trains in all.
The results are printed and written to bench/results/ as Markdown.
"""

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date
from functools import partial
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
import torch

if __name__ in ("__main__", "__mp_main__"):  # as a script, its own folder is on the path
    sys.path.insert(0, str(Path(__file__).parents[1]))
from bench import timing

RUNS = 8
MODEL = (
    "model.dim=64",
    "model.num_layers=4",
    "model.context_length=128",
    "model.attention.num_heads=2",
    "model.attention.num_kv_heads=1",
    "model.vocab_size=512",
    "data.tokenizer.kind=bytes",
    "machine.kernel=blockwise",
    "machine.loss=whole",
    "machine.compile=none",
)
TOKENS = 1_000_000
ONE_BY_ONE = "one after another, {cores} threads each"
ALONE = "{cores} at once, a thread each"
STACKED = "{cores} stacks of {stack} at once, a thread each"


@dataclass(frozen=True)
class Job:
    """What a process does: train so many runs, stacked or one after another, on so many threads."""

    text: str
    seeds: tuple[int, ...]
    stack: int
    threads: int
    assignments: tuple[str, ...]


def main() -> None:
    args = _arguments()
    cores = args.cores
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        os.environ["ARCHWRIGHT_CACHE"] = str(Path(folder) / "cache")
        text = Path(folder) / "text.txt"
        dice = np.random.default_rng(0)
        text.write_bytes((dice.zipf(1.3, TOKENS) % 96 + 32).astype(np.uint8).tobytes())
        for batch in args.batches:
            asked = (*MODEL, f"batch_size={batch}", f"machine.precision={args.precision}")
            ways = {ONE_BY_ONE.format(cores=cores): [_job(text, RUNS, 1, cores, asked)]}
            ways[ALONE.format(cores=cores)] = _shared(text, 1, cores, asked)
            for stack in args.stacks:
                if stack * cores <= RUNS:
                    name = STACKED.format(cores=cores, stack=stack)
                    ways[name] = _shared(text, stack, cores, asked)
            rows += _measure(batch, ways, args)
    timing.write(_page(rows, args), f"together-{args.precision}", args.out)


def _job(text: Path, runs: int, stack: int, threads: int, asked: tuple[str, ...]) -> Job:
    return Job(str(text), tuple(range(runs)), stack, threads, asked)


def _shared(text: Path, stack: int, cores: int, asked: tuple[str, ...]) -> list[Job]:
    """Return a job for each core, which share the runs."""
    return [Job(str(text), tuple(range(i, RUNS, cores)), stack, 1, asked) for i in range(cores)]


def _measure(batch: int, ways: dict[str, list[Job]], args: argparse.Namespace) -> list[str]:
    """Let all ways train the eight runs in turns, and return a table row for each."""
    crews = {name: [_Trainer(job) for job in jobs] for name, jobs in ways.items()}
    try:
        for crew in crews.values():
            _block(crew, 2)
        steps = max(1, round(args.seconds / _block(crews[next(iter(ways))], 1)))
        blocks = {name: partial(_block, crew, steps) for name, crew in crews.items()}
        times = timing.take_turns(blocks, args.blocks)
    finally:
        for crew in crews.values():
            for trainer in crew:
                trainer.end()
    base = times[next(iter(ways))]
    tokens = RUNS * batch * 128
    return [
        f"| {batch} x 128 | {name} | {tokens * steps / statistics.median(took):,.0f} "
        f"| {'' if took is base else timing.ratio(base, took)} |"
        for name, took in times.items()
    ]


def _block(crew: "list[_Trainer]", steps: int) -> float:
    """Return the wall time of so many steps of all eight runs."""
    start = time.perf_counter()
    for trainer in crew:
        trainer.begin(steps)
    for trainer in crew:
        trainer.wait()
    return time.perf_counter() - start


class _Trainer:
    """A process that trains when it is told to."""

    def __init__(self, job: Job) -> None:
        context = get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_train, args=(job, theirs), daemon=True)
        self._process.start()
        self.wait()

    def begin(self, steps: int) -> None:
        self._pipe.send(steps)

    def wait(self) -> None:
        self._pipe.recv()

    def end(self) -> None:
        self._pipe.send(0)
        self._process.join()


def _train(job: Job, pipe: Connection) -> None:
    from archwright.machine.allocator import tune_allocator

    tune_allocator()
    torch.set_num_threads(job.threads)
    step = _stepper(job)
    pipe.send("ready")
    while steps := pipe.recv():
        for _ in range(steps):
            step()
        pipe.send("done")


def _stepper(job: Job) -> Callable[[], None]:
    """Return what makes one step of each of a job's runs."""
    from archwright.ensemble.session import Together
    from archwright.runs import RunFolder
    from archwright.spec.read import load_run
    from archwright.training.data import prepare_data
    from archwright.training.progress import Silent
    from archwright.training.resolve import resolve

    common = (f"data.text={job.text}", "budget=1Msteps", f"machine.threads={job.threads}")
    run = load_run("modern").override(*common, *job.assignments)
    with tempfile.TemporaryDirectory() as folder:
        material = prepare_data(run, RunFolder(folder))
    runs = [run.override(f"seed={seed}") for seed in job.seeds]
    sessions = [resolve(each, material, Silent())[0] for each in runs]
    if job.stack == 1:
        return lambda: [session.step() for session in sessions] and None
    stacks = [Together(sessions[i : i + job.stack]) for i in range(0, len(sessions), job.stack)]

    def step() -> None:
        for stack in stacks:
            seen = stack.gradients(stack.sessions[0].standing.step)
            for session, of_run in zip(stack.sessions, seen, strict=True):
                session.apply_gradients(of_run)

    return step


HEAD = """# Eight small runs at once, {date}

{machine}

Eight runs of a model of 0.2M parameters (4 layers, width 64, a vocabulary of 512), each of a seed of its \
own; {precision}. {blocks} interleaved blocks of about {seconds:g} s, wall time, medians of tokens/s in all. \
"Times" is the median ratio of neighbouring blocks to runs one after another, with its bootstrapped 95 % interval.

| batch | how | tokens/s in all | times |
|---|---|---:|---|
"""


def _page(rows: list[str], args: argparse.Namespace) -> str:
    head = HEAD.format(
        date=date.today(),
        machine=timing.machine(args.cores),
        precision=args.precision,
        blocks=args.blocks,
        seconds=args.seconds,
    )
    return head + "\n".join(rows) + "\n"


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--batches", type=int, nargs="+", default=[4, 16], help="rows of a batch")
    parser.add_argument("--stacks", type=int, nargs="+", default=[2, 4], help="runs of a stack")
    parser.add_argument("--precision", choices=["bf16", "fp32"], default="bf16")
    parser.add_argument("--blocks", type=int, default=9)
    parser.add_argument("--seconds", type=float, default=2.0, help="of one block")
    parser.add_argument("--cores", type=int, default=timing.CORES)
    parser.add_argument("--out", type=Path, default=timing.RESULTS)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
