"""`python -m tests.faults`: kill and fail verbs at their file events, run them again, and count what held."""

import argparse
import importlib
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch

from tests.faults.cases import Stage, Verdict
from tests.faults.scenes import SCENES, Scene
from tests.fuzz.seeds import in_memory
from tests.fuzz.table import table

HEAD = (
    *("verb", "file events", "kills", "survived", "errors", "survived"),
    *("workers killed", "survived", "with left-overs", "user's files harmed", "seconds"),
)
WORKERS = 0.025
"""Kills of workers, as a share of all kills; of `compare` alone."""


@dataclass
class Tally:
    """What became of a scene's cases."""

    scene: Scene
    events: int = 0
    verdicts: list[Verdict] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def bad(self) -> list[Verdict]:
        return [verdict for verdict in self.verdicts if verdict.problems or verdict.left]

    def row(self) -> list[object]:
        cells: list[object] = [self.scene.name, self.events]
        for kind in ("kill", "error", "worker"):
            found = [v for v in self.verdicts if v.kind == kind]
            cells += [len(found), sum(not v.problems for v in found)] if found else ["-", "-"]
        harmed = [v for v in self.verdicts if any(p.startswith("harmed") for p in v.problems)]
        left = [v for v in self.verdicts if v.left]
        return [*cells, len(left), len(harmed), f"{self.seconds:.0f}"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Strike, print the table, and return 1 where anything did not hold."""
    options = _options(arguments)
    torch.set_num_threads(1)
    for room in ("hf", "lab.compare", "reporting.page", "reporting.terminal", "training.train"):
        importlib.import_module(f"archwright.{room}")
    scenes = [scene for scene in SCENES if not options.only or scene.name in options.only]
    with tempfile.TemporaryDirectory(prefix="archwright-faults-", dir=in_memory()) as scratch:
        tallies = [_tally(scene, Path(scratch), options) for scene in scenes]
    print(table(HEAD, [tally.row() for tally in tallies], markdown=options.markdown))
    return 1 if any(tally.bad for tally in tallies) else 0


def _tally(scene: Scene, scratch: Path, options: argparse.Namespace) -> Tally:
    started = time.monotonic()
    stage = Stage(scene, scratch / scene.name)
    tally = Tally(scene, stage.num_events)
    for verdict in _verdicts(stage, options):
        tally.verdicts.append(verdict)
        if verdict.problems or verdict.left:
            _keep(stage, verdict, options)
        stage.clear()
    tally.seconds = time.monotonic() - started
    _say(tally, options)
    return tally


def _verdicts(stage: Stage, options: argparse.Namespace) -> Iterator[Verdict]:
    """Play the scene's share of all cases, or the one that was asked for."""
    if options.case:
        kind, _, number = options.case.partition("-")
        yield _played(stage, kind, int(number), options)
        return
    for kind, count in _counts(stage.scene, options).items():
        for number in range(count):
            yield _played(stage, kind, number, options)


def _played(stage: Stage, kind: str, number: int, options: argparse.Namespace) -> Verdict:
    if kind == "worker":
        return stage.worker_killed(number, options.seed)
    count = _counts(stage.scene, options)[kind]
    return stage.struck(number, kind, stage.blow(number, count, kind, options.seed))


def _counts(scene: Scene, options: argparse.Namespace) -> dict[str, int]:
    """Return how many cases of each kind a scene has: all that were asked for, where it is the only one."""
    share = 1.0 if len(options.only or SCENES) == 1 else scene.share
    workers = round(options.kills * WORKERS) if scene.name == "compare" else 0
    kills, errors = round(options.kills * share), round(options.errors * share)
    return {"kill": kills, "error": errors, "worker": workers}


def _say(tally: Tally, options: argparse.Namespace) -> None:
    """Name what did not hold, each kind of it once, and how to see it again."""
    counts = _counts(tally.scene, options)
    again = f"--only {tally.scene.name} --kills {counts['kill']} --errors {counts['error']}"
    kinds: dict[str, list[Verdict]] = {}
    for verdict in tally.bad:
        lines = [*verdict.problems, *(f"left over: {_plain(name)}" for name in verdict.left)]
        for line in lines:
            kinds.setdefault(line, []).append(verdict)
    for line, found in sorted(kinds.items(), key=lambda item: -len(item[1])):
        first = found[0]
        case = f"--seed {options.seed} --case {first.kind}-{first.number}"
        print(f"{tally.scene.name}: {len(found)} x {line}", file=sys.stderr)
        print(f"    {first.blow}: python -m tests.faults {again} {case}", file=sys.stderr)
    print(*tally.row(), file=sys.stderr)


def _plain(name: str) -> str:
    """Return a file's name without numbers of processes and hashes."""
    return "".join("#" if c.isdigit() else c for c in name)


def _keep(stage: Stage, verdict: Verdict, options: argparse.Namespace) -> None:
    """Copy what a case left to where `--keep` says."""
    if not options.keep:
        return
    folder = Path(options.keep) / f"{verdict.scene}-{options.seed}-{verdict.kind}-{verdict.number}"
    shutil.copytree(stage.folder / "case", folder / "files", symlinks=True, dirs_exist_ok=True)
    lines = [verdict.blow, *verdict.problems, *(f"left over: {name}" for name in verdict.left)]
    (folder / "what.txt").write_text("\n".join(lines) + "\n", "utf-8")


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser("python -m tests.faults", description=__doc__)
    names = [scene.name for scene in SCENES]
    parser.add_argument("--kills", type=int, default=200, help="over all verbs")
    parser.add_argument("--errors", type=int, default=100, help="over all verbs")
    parser.add_argument("--only", nargs="+", choices=names, metavar="VERB", help=", ".join(names))
    parser.add_argument("--seed", type=int, default=0, help="another one strikes elsewhere")
    parser.add_argument("--case", metavar="KIND-N", help="this case alone, such as kill-3")
    parser.add_argument("--keep", metavar="DIR", help="keep the folders of cases that did not hold")
    parser.add_argument("--markdown", action="store_true", help="print the table for a page")
    options = parser.parse_args(arguments)
    if options.case and len(options.only or ()) != 1:
        parser.error("--case needs one verb: --only VERB")
    return options


if __name__ == "__main__":
    sys.exit(main())
