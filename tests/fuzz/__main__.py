"""`python -m tests.fuzz`: change files, read them, and count what becomes of that."""

import argparse
import importlib
import os
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch

from tests.fuzz.cases import BAD, Outcome, Reader
from tests.fuzz.seeds import Seed, Workshop, in_memory
from tests.fuzz.table import table
from tests.fuzz.targets import TARGETS, Target, missing
from tests.fuzz.workers import judged

HEAD = (
    *("target", "cases", "container kept", "same", "other", "refused"),
    *(
        "traceback",
        "slow",
        "big",
        "silent",
        "stuck",
        "unreadable",
        "reached last check",
        "cases per CPU second",
    ),
)

KEPT = 20
"""Cases of one end that are kept of each target, at most."""


@dataclass
class Tally:
    """What became of a target's cases."""

    target: Target
    ends: Counter[str] = field(default_factory=Counter)
    kept: int = 0
    reached: int = 0
    seconds: float = 0.0
    bad: list[Outcome] = field(default_factory=list)

    def add(self, outcome: Outcome) -> None:
        self.ends[outcome.end] += 1
        self.kept += outcome.kept
        self.reached += outcome.reached
        if outcome.end in BAD:
            self.bad.append(outcome)

    def row(self) -> list[str]:
        number = max(1, self.ends.total())
        kinds = ("same", "other", "refused", *BAD)
        return [
            self.target.name,
            f"{self.ends.total():,}",
            f"{self.kept / number:.0%}",
            *(f"{self.ends[kind]:,}" for kind in kinds),
            f"{self.reached / number:.0%}",
            f"{number / self.seconds:.0f}" if self.seconds else "-",
        ]


def main(arguments: Sequence[str] | None = None) -> int:
    """Fuzz, print the table, and return 1 where anything went wrong."""
    options = _options(arguments)
    torch.set_num_threads(1)
    _import_all()
    targets = [t for t in TARGETS if not options.only or t.name in options.only]
    for target in targets:
        if needed := missing(target):
            print(f"{target.name}: left out, without {' and '.join(needed)}", file=sys.stderr)
    targets = [target for target in targets if not missing(target)]
    with tempfile.TemporaryDirectory(prefix="archwright-fuzz-", dir=in_memory()) as scratch:
        tallies = [_tally(target, Path(scratch), options) for target in targets]
    rows = [tally.row() for tally in tallies]
    print(table(HEAD, rows, markdown=options.markdown))
    return 1 if any(tally.bad for tally in tallies) else 0


def _tally(target: Target, scratch: Path, options: argparse.Namespace) -> Tally:
    numbers = _numbers(target, options)
    seeds = list(target.seeds(Workshop(scratch / "seeds", numbers)))
    place = scratch / target.name.replace(" ", "-").replace(",", "")
    place.mkdir()
    tally, started = Tally(target), _cpu_of_workers()
    for outcome in judged(target, seeds, numbers, options.seed, place, options.jobs):
        tally.add(outcome)
        if outcome.end in BAD and tally.ends[outcome.end] <= KEPT:
            _keep(target, seeds, outcome, options)
        if options.case is not None:
            print(f"{outcome.end}\n{outcome.text}", file=sys.stderr)
    tally.seconds = _cpu_of_workers() - started
    _say(tally, options)
    return tally


def _cpu_of_workers() -> float:
    times = os.times()
    return times.children_user + times.children_system


def _numbers(target: Target, options: argparse.Namespace) -> Sequence[int]:
    number = options.number // target.dear if options.light else options.number
    return range(number) if options.case is None else [options.case]


def _say(tally: Tally, options: argparse.Namespace) -> None:
    """Name what went wrong: each kind of it once, and how to see it again."""
    kinds: dict[str, list[Outcome]] = {}
    for outcome in tally.bad:
        kinds.setdefault(f"{outcome.end}: {_gist(outcome)}", []).append(outcome)
    for gist, found in sorted(kinds.items(), key=lambda item: -len(item[1])):
        first = min(outcome.number for outcome in found)
        again = f"python -m tests.fuzz --only {tally.target.name!r} --seed {options.seed}"
        print(f"{tally.target.name}: {len(found)} x {gist}", file=sys.stderr)
        print(f"    {again} --case {first}", file=sys.stderr)
    print(f"{' '.join(tally.row())}", file=sys.stderr)


def _gist(outcome: Outcome) -> str:
    """Return the error and the place of ours that it comes from, in one line."""
    lines = outcome.text.strip().splitlines() or [""]
    if outcome.end == "traceback" or (outcome.end == "big" and "Traceback" in outcome.text):
        ours = [line.strip() for line in lines if "archwright/" in line and "File" in line]
        place = ours[-1].rpartition("archwright/")[2] if ours else ""
        return f"{lines[-1].partition(':')[0][:60]} in {place}"
    if outcome.end == "slow":
        ours = [line.strip() for line in lines if "archwright/" in line]
        return ours[0].rpartition("archwright/")[2] if ours else lines[0][:100]
    if outcome.end == "unreadable":
        return lines[0].partition(":")[0]
    return ""


def _keep(target: Target, seeds: list[Seed], outcome: Outcome, options: argparse.Namespace) -> None:
    """Write a case's folder and what became of it where `--keep` says."""
    if not options.keep:
        return
    name = f"{target.name.replace(' ', '-')}-{options.seed}-{outcome.number}"
    folder = Path(options.keep).resolve() / name
    pid = os.fork()  # what watches readers stays out of this process
    if pid == 0:
        try:
            reader = Reader(target, seeds, folder)
            case = reader.case(outcome.number, options.seed)
            reader.lay(case, folder / "files")
            again = f"python -m tests.fuzz --only {target.name!r} --seed {options.seed}"
            told = (
                f"{again} --case {outcome.number}\n{outcome.end}: {case.path}\n\n{outcome.text}\n"
            )
            (folder / "what.txt").write_text(told, "utf-8", "replace")
        finally:
            os._exit(0)
    os.waitpid(pid, 0)


def _import_all() -> None:
    """Import once what every case would import."""
    verbs = [f"cli.{verb}_verb" for verb in ("check", "show", "report", "train")]
    others = ("hf", "lab.compare", "reporting.page", "reporting.terminal", "training.train")
    for name in (*verbs, *others):
        importlib.import_module(f"archwright.{name}")


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser("python -m tests.fuzz", description=__doc__)
    names = [target.name for target in TARGETS]
    parser.add_argument("--number", type=int, default=2000, help="cases of each target")
    parser.add_argument("--only", nargs="+", choices=names, metavar="TARGET", help=", ".join(names))
    parser.add_argument("--seed", type=int, default=0, help="another one gives other cases")
    parser.add_argument("--case", type=int, help="this case alone, and what became of it")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)), help="processes")
    parser.add_argument("--keep", metavar="DIR", help="keep the folders of cases that went wrong")
    parser.add_argument("--light", action="store_true", help="fewer cases of slow readers")
    parser.add_argument("--markdown", action="store_true", help="print the table for a page")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
