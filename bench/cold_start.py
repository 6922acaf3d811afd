"""Seconds from typing `archwright train` to the record of its first step, and where they go.

    python bench/cold_start.py [--shapes 3.4M 29.9M] [--repeats 5] [--budget 3m] [--help]

Each measurement is the command itself in a fresh process, with a run folder of its own. Its stages are the times
at which it wrote its files, so nothing is added to what is measured. Once the text, the tokenizer and the machine's
measurements are new, once they are in the cache; Python's own files are warm. Medians; the results are printed and
written to bench/results/ as Markdown.

Before them, what answers at once: seconds from typing a command to its end, beside those of a program that does
nothing but import Python, or pydantic, and beside the time it should take.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from datetime import date
from itertools import pairwise
from pathlib import Path

if __name__ == "__main__":  # as a script, its own folder is on the path
    sys.path.insert(0, str(Path(__file__).parents[1]))
from bench import timing
from bench.contenders import SHAPES, Shape

LIST, SHOW = 0.15, 0.20
"""Seconds in which lists and help, and verbs that read specs, should answer."""
MODEL = Path(__file__).parents[1] / "archwright" / "presets" / "models" / "modern.toml"
ANSWERS = {
    **dict.fromkeys(("--help", "train --help", "compare --help", "list", "list choices"), LIST),
    **dict.fromkeys(("list choices mask", "list families", "list runs"), LIST),
    **dict.fromkeys(("show modern", "show modern norm.kind=layer", "diff textbook modern"), SHOW),
    **dict.fromkeys(("schema run", "check modern.toml"), SHOW),
}
PYDANTIC = """
import os
os.environ["PYDANTIC_DISABLE_PLUGINS"] = "__all__"
from pydantic import BaseModel
class A(BaseModel):
    a: int = 1
A()
"""
FLOORS = {"(Python)": "pass", "(pydantic, with one model)": PYDANTIC}
PATIENCE = 120.0
"""Seconds after which a command that has not trained is given up."""
STAGES = ("command", "text", "settling", "first step")
"""What ends with requested.toml, the tokenizer's folder, environment.json, and the first record of a step."""


@dataclass(frozen=True)
class Start:
    """Seconds of each stage of one command."""

    stages: tuple[float, ...]

    @property
    def total(self) -> float:
        return sum(self.stages)


def main() -> None:
    args = _arguments()
    answers = answer_rows(args.repeats)
    print("\n".join(answers), flush=True)
    cases = [("demo", ["demo"])]
    cases += [(name, words_of(SHAPES[name])) for name in args.shapes]
    rows = []
    for name, words in cases:
        for state, starts in measure(words, args.budget, args.repeats).items():
            rows.append(row(name, state, starts))
            print(rows[-1], flush=True)
    timing.write(page(answers, rows, args), "cold-start", args.out)


def answer_rows(repeats: int) -> list[str]:
    """Return rows of a table: commands, the seconds they should take, and those they take."""
    shown = [(name, "", ["-c", code]) for name, code in FLOORS.items()]
    for words, limit in ANSWERS.items():
        command = words.replace(MODEL.name, str(MODEL)).split()
        shown.append((f"`archwright {words}`", f"{limit:.2f}", ["-m", "archwright", *command]))
    return [
        f"| {name} | {limit} | {seconds_to_answer(arguments, repeats):.3f} |"
        for name, limit, arguments in shown
    ]


def seconds_to_answer(command: list[str], repeats: int) -> float:
    """Return the median of the seconds that Python takes for a command, once it is compiled."""
    found = []
    for _ in range(repeats + 1):
        started = time.perf_counter()
        subprocess.run([sys.executable, *command], stdout=subprocess.DEVNULL, check=True)
        found.append(time.perf_counter() - started)
    return statistics.median(found[1:])


def words_of(shape: Shape) -> list[str]:
    """Return what to type for a shape."""
    return [
        "modern",
        f"model.dim={shape.dim}",
        f"model.num_layers={shape.num_layers}",
        f"model.attention.num_heads={shape.num_heads}",
        f"model.attention.num_kv_heads={shape.num_kv_heads}",
        f"model.feedforward.hidden_dim={shape.hidden_dim}",
        f"model.context_length={shape.length}",
        "model.head.tied=true",
        f"batch_size={shape.batch_size}",
        f"data.tokenizer.vocab_size={shape.vocab_size}",
    ]


def measure(words: list[str], budget: str, repeats: int) -> dict[str, list[Start]]:
    """Return the starts with an empty cache, and those with a full one."""
    found: dict[str, list[Start]] = {"new": [], "in the cache": []}
    for _ in range(repeats):
        with tempfile.TemporaryDirectory(prefix="archwright-bench-") as folder:
            for state, starts in found.items():
                run = Path(folder) / state.replace(" ", "-")
                starts.append(start([*words, f"budget={budget}"], run, Path(folder) / "cache"))
    return found


def start(words: list[str], run: Path, cache: Path) -> Start:
    """Type a command, wait for its first step, and end it.

    Raises:
        RuntimeError: it ended or went on without a step.
    """
    command = [sys.executable, "-m", "archwright", "train", *words, "--out", str(run)]
    environment = os.environ | {"ARCHWRIGHT_CACHE": str(cache)}
    with tempfile.TemporaryFile() as said:
        started = time.time()
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=said, env=environment)
        try:
            stepped = _first_step(run / "metrics.jsonl", process)
        finally:
            process.kill()
            process.wait()
        if stepped is None:
            said.seek(0)
            raise RuntimeError(f"the command ended without a step: {said.read().decode()}")
    files = ("requested.toml", "tokenizer/tokenizer_config.json", "environment.json")
    times = [started, *((run / name).stat().st_mtime for name in files), stepped]
    return Start(tuple(b - a for a, b in pairwise(times)))


def _first_step(metrics: Path, process: subprocess.Popen[bytes]) -> float | None:
    """Return the time of the first step's record; None where the command ended before."""
    started = time.time()
    while time.time() - started < PATIENCE:
        ended = process.poll() is not None
        if metrics.exists() and '"kind": "train"' in metrics.read_text("utf-8"):
            return time.time()
        if ended:
            return None
        time.sleep(0.002)
    raise RuntimeError(f"no step within {PATIENCE:g} s")


def row(name: str, state: str, starts: list[Start]) -> str:
    """Return a row of the table: medians of stages, and median and range of the whole."""
    stages = (statistics.median(times) for times in zip(*(s.stages for s in starts), strict=True))
    totals = sorted(start.total for start in starts)
    cells = " | ".join(f"{seconds:.2f}" for seconds in stages)
    whole = f"{statistics.median(totals):.2f} ({totals[0]:.2f} to {totals[-1]:.2f})"
    return f"| {name} | {state} | {cells} | {whole} |"


HEAD = """# Cold start, {date}

{machine}

Seconds from the start of a command to its end, median of {repeats}; what it should take, and what it takes.

| command | at most | seconds |
|---|---:|---:|
{answers}

Seconds from the start of `archwright train` in a new process to the record of its first step, with a budget of \
{budget}; median of {repeats}, and the range of the whole. "command": Python, the words, the run folder. "text": \
torch, the text, its tokenizer and its tokens. "settling": what the machine decides, the model, and steps that are \
timed. New or in the cache are tokenizer, tokens and what was measured of the machine. The demo's text is that of all.

| model | cache | {stages} | in all |
|---|---|{lines}---:|
"""


def page(answers: list[str], rows: list[str], args: argparse.Namespace) -> str:
    """Return the results as Markdown."""
    head = HEAD.format(
        date=date.today(),
        machine=timing.machine(timing.CORES),
        budget=args.budget,
        repeats=args.repeats,
        answers="\n".join(answers),
        stages=" | ".join(STAGES),
        lines="---:|" * len(STAGES),
    )
    return head + "\n".join(rows) + "\n"


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--shapes", nargs="*", choices=SHAPES, default=list(SHAPES))
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--budget", default="3m")
    parser.add_argument("--out", type=Path, default=timing.RESULTS)
    return parser.parse_args()


if __name__ == "__main__":
    main()
