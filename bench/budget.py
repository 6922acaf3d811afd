"""Seconds from Enter to the prompt of runs and studies with a budget in time, beside busy processes that come and go.

    python bench/budget.py [--budgets 3m 90s] [--busy 0 1 2] [--repeats 10] [WORDS ...]
    python bench/budget.py --studies

Each run is the command `archwright train demo` itself, in a fresh process with a run folder of its own; the cache is
filled first. Beside it, each of the busy processes works or rests for 20 seconds at a time, as a coin falls. Printed
are the seconds of each run and the share that ended within a tenth of the budget; all of it is written to
bench/results/ as Markdown. `--studies` does the same with ten studies by `archwright compare`, alone on the machine.
"""

import argparse
import multiprocessing
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

if __name__ == "__main__":  # as a script, its own folder is on the path
    sys.path.insert(0, str(Path(__file__).parents[1]))
from archwright.spec.budget import Budget
from bench import timing

CHANGE = 20.0
"""Seconds for which a neighbour is busy or not."""
STUDIES = (
    ("5m", "textbook modern"),
    ("5m", "textbook modern data.text=CODE"),
    ("2m", "modern :norm.kind=layer"),
    ("3m", "modern :feedforward.kind=gelu :position.kind=none"),
    ("3m", "norm-kind"),
    ("4m", "modern :norm.kind=layer"),
    ("4m", "positions"),
    ("3m", "modern :residual.kind=post --seeds 5"),
    ("3m", "weight-decay data.text=CODE"),
    ("2m", "textbook textbook:position.kind=rope"),
)
"""Budgets and what they are spent on; CODE is a file of Python."""
WITHIN = 0.1
"""Share of the budget by which a run may end early or late."""


def main() -> None:
    args = _arguments()
    rows = []
    if args.studies:
        timing.write(studies_page(list(studies())), "study-budgets", args.out)
        return
    with tempfile.TemporaryDirectory(prefix="archwright-bench-") as folder:
        measure(args.words, "1s", Path(folder) / "first")
        for budget in args.budgets:
            for busy in args.busy:
                found = []
                for i in range(args.repeats):
                    with neighbours(busy, seed=i):
                        found.append(
                            measure(args.words, budget, Path(folder) / f"{budget}-{busy}-{i}")
                        )
                    print(f"budget {budget}, {busy} busy: {found[-1]:.1f} s", flush=True)
                rows.append(row(budget, busy, found))
                print(rows[-1], flush=True)
    timing.write(page(rows, args), "budget", args.out)


def studies() -> Iterator[str]:
    """Yield a line of the table for each study."""
    with tempfile.TemporaryDirectory(prefix="archwright-bench-") as folder:
        code = Path(folder) / "code.txt"
        package = Path(__file__).parents[1] / "archwright"
        code.write_text("".join(p.read_text("utf-8") for p in sorted(package.rglob("*.py"))))
        for i, (budget, words) in enumerate(STUDIES):
            out = Path(folder) / str(i)
            given = words.replace("CODE", str(code)).split()
            command = [sys.executable, "-m", "archwright", "compare", *given, "--budget", budget]
            command += ["--quiet", "--out", str(out / "study"), "--runs", str(out / "runs")]
            start = time.perf_counter()
            done = subprocess.run(command, capture_output=True, text=True)
            took, seconds = time.perf_counter() - start, Budget(budget).amount
            if done.returncode:  # others are measured all the same
                print(f"`{words}` was not made: {done.stderr.strip()}", file=sys.stderr, flush=True)
                continue
            verdict = done.stdout.strip().splitlines()[0] if done.stdout.strip() else ""
            line = f"| `{words}` | {seconds:.0f} | {took:.1f} | {took / seconds - 1:+.1%} |"
            print(line, verdict, flush=True)
            yield line


def studies_page(rows: list[str]) -> str:
    """Return the results of studies as Markdown."""
    head = ["| `archwright compare` | budget, s | to the prompt, s | |", "|---|--:|--:|--:|"]
    said = timing.machine(os.cpu_count() or 1)
    return "\n".join(["# Budgets of studies in time", "", said, "", *head, *rows, ""])


def measure(words: list[str], budget: str, out: Path) -> float:
    """Return the seconds from starting a command to its end."""
    command = [sys.executable, "-m", "archwright", "train", *words, f"budget={budget}"]
    start = time.perf_counter()
    subprocess.run([*command, "--quiet", "--out", str(out)], check=True)
    return time.perf_counter() - start


@contextmanager
def neighbours(number: int, seed: int) -> Iterator[None]:
    """Let so many processes be busy now and then while the block lasts."""
    processes = [
        multiprocessing.Process(target=_be_busy, args=(f"{seed} {i}",), daemon=True)
        for i in range(number)
    ]
    for process in processes:
        process.start()
    try:
        yield
    finally:
        for process in processes:
            process.terminate()
            process.join()


def _be_busy(seed: str) -> None:
    dice = random.Random(seed)
    while True:
        until, busy = time.monotonic() + CHANGE, dice.random() < 0.5
        while time.monotonic() < until:
            if not busy:
                time.sleep(0.1)


def row(budget: str, busy: int, found: list[float]) -> str:
    """Return a line of the table."""
    seconds = Budget(budget).amount
    kept = sum(abs(each - seconds) <= WITHIN * seconds for each in found)
    times = ", ".join(f"{each:.1f}" for each in sorted(found))
    return f"| {budget} | {busy} | {times} | {kept} of {len(found)} |"


def page(rows: list[str], args: argparse.Namespace) -> str:
    """Return the results as Markdown."""
    head = [
        "| budget | busy neighbours | seconds to the prompt | within a tenth |",
        "|---|---|---|---|",
    ]
    said = f"`archwright train {' '.join(args.words)}` on {os.cpu_count()} cores."
    return "\n".join(["# Budgets in time", "", said, "", *head, *rows, ""])


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("words", nargs="*", default=["demo"])
    parser.add_argument("--budgets", nargs="+", default=["3m", "90s"])
    parser.add_argument("--busy", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--studies", action="store_true", help="ten studies in place of runs")
    parser.add_argument("--out", type=Path, default=timing.RESULTS)
    return parser.parse_args()


if __name__ == "__main__":
    main()
