"""`python -m tests.faults.scale`: kill processes of runs that torchrun started, and see whether anything is lost.

Each case is one run, in a folder of its own: torchrun starts it, one or all of its processes die or have a full disk,
it is started again, by torchrun itself (--max-restarts) or by the same command, and so on until it is done. What it
leaves is then compared with an undisturbed run: bit for bit where it always had the same processes and grid, to 1e-6
where it went on with others. Where Ray is installed, workers of a study on a Ray cluster are killed too.
"""

import argparse
import contextlib
import errno
import importlib.util
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from archwright import checkpoint
from archwright.runs import RunFolder
from bench.scale import environment, torchrun
from tests.faults.ranks import ENDING, PHASES, SEALING, TORCHRUN, TRAINING, WRITING, Moment, Plan
from tests.faults.scenes import TIMES, is_lock
from tests.fuzz.seeds import in_memory
from tests.fuzz.table import table
from tests.tiny import ROOT, tiny_words, write_text

STEPS, EVERY = 36, 3
RUN = (
    *(f"budget={STEPS}steps", f"checkpoint.every={EVERY}", "evaluate.every=20", "seed=3"),
    *("evaluate.max_tokens=200", "evaluate.final_max_tokens=300", "model.attention.num_kv_heads=2"),
    # Adam makes a whole step of a gradient that is almost 0, whose direction is rounding; eps makes it a small one.
    *("optimizer.eps=1e-4", "checkpoint.keep=2"),
)
CLOSE = 1e-6
"""How far losses and weights may be apart where other processes went on; losses are about 5."""
LIMIT = 300.0
"""Seconds that a command may take at most."""
GONE = 10.0
"""Seconds after which no process may be left of one that has ended."""
KILLS, RESTARTS = 5, 2
"""Kills of a case, and how often torchrun starts the processes again."""
RAY = 0.025
"""Kills of Ray's workers, as a share of all kills."""


class Grid(NamedTuple):
    """So many processes, and how they share a run."""

    number: int
    words: tuple[str, ...] = ()


GRIDS = {
    "1": Grid(1),
    "2 shards": Grid(2),
    "2 copies": Grid(2, ("scale.replicate=2",)),
    "2 of a tensor group": Grid(2, ("scale.tensor=2",)),
    "4: 2 shards of 2 copies": Grid(4, ("scale.replicate=2", "scale.shard=2")),
    "4: 2 shards, tensor groups of 2": Grid(4, ("scale.shard=2", "scale.tensor=2")),
}
ROUTES = (
    ("1",),
    ("2 shards",),
    ("4: 2 shards, tensor groups of 2",),
    ("2 shards", "1"),
    ("2 copies",),
    ("2 of a tensor group",),
    ("4: 2 shards of 2 copies", "2 shards"),
    ("1", "2 shards"),
    ("4: 2 shards of 2 copies",),
    ("2 of a tensor group", "4: 2 shards, tensor groups of 2"),
)
"""Grids on which a run is begun, and on which it ends."""


@dataclass
class Verdict:
    """What happened in a case, and what was wrong."""

    number: int
    route: str
    kills: list[dict[str, Any]] = field(default_factory=list)
    """What the process was doing that a blow fell on, and who died: "one", "all", and "torchrun" too."""
    full: int = 0
    """Disks that were full."""
    problems: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)
    """Files that an undisturbed run does not leave."""
    orphans: list[str] = field(default_factory=list)
    """Processes that were there when their command had ended."""
    apart: float = 0.0
    """The largest difference of a loss or weight from the undisturbed run."""
    seconds: float = 0.0

    @property
    def is_good(self) -> bool:
        return not (self.problems or self.left or self.orphans)


class Ended(NamedTuple):
    """How a command ended."""

    code: int
    output: str
    notes: list[dict[str, Any]]
    """What processes were doing when blows fell on them, in order."""
    orphans: list[str]


class Stage:
    """A folder in which cases are played: a text, a cache, and what undisturbed runs have left."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.folder, self.seed = folder, seed
        folder.mkdir(parents=True, exist_ok=True)
        self.text = write_text(folder / "text.txt", 200)
        self._events: dict[str, dict[str, int]] = {}

    def plain(self, name: str) -> Path:
        """Return the undisturbed run of a grid, which is made where it is asked for first."""
        place = self.folder / "plain" / name.replace(":", "").replace(" ", "-")
        if name not in self._events:
            shutil.rmtree(place, ignore_errors=True)
            place.mkdir(parents=True)
            ended = self._launched(place, GRIDS[name], (), {}, 0)
            assert ended.code == 0, f"{name}, undisturbed: {ended.output}"
            found: dict[str, int] = {}
            for file in sorted((place / "notes-0").glob("events-*.json")):
                found |= json.loads(file.read_text())
            self._events[name] = found
        return place / "run"

    def case(self, number: int) -> Verdict:
        """Play a case, and judge."""
        started = time.monotonic()
        route = ROUTES[number % len(ROUTES)]
        names, found = [route[0], route[-1]], Verdict(number, " -> ".join(route))
        plain = self.plain(names[1])
        self.plain(names[0])
        place = self.folder / "case"
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir()
        for name, moments, restarts in self._launches(number, names):
            if _is_trained(place / "run"):  # before it saw that torchrun alone was gone
                moments = tuple(moment for moment in moments if moment.phase == ENDING)
            ended = self._launched(place, GRIDS[name], moments, self._events[name], restarts)
            self._add(found, ended, moments, restarts)
        self._compare(found, place / "run", plain, is_exact=names[0] == names[1])
        found.seconds = round(time.monotonic() - started, 1)
        return found

    def _launches(
        self, number: int, names: Sequence[str]
    ) -> Iterator[tuple[str, tuple[Moment, ...], int]]:
        """Yield what is started one after the other: on which grid, what falls on it, and how often torchrun starts
        its processes again. The first starts end in failure, the last one does not."""
        dice = random.Random(f"{self.seed}/{number}")
        phases = [TRAINING, WRITING, WRITING, SEALING]
        dice.shuffle(phases)
        phases.append(ENDING if number % 2 else TRAINING)
        first, last = (GRIDS[name].number for name in names)
        if (number // len(ROUTES) + number) % 2 == 0:
            full = self._moment(WRITING, first, dice)._replace(victims=(), error=errno.ENOSPC)
            yield names[0], (full,), 0
        moments = [self._moment(phase, first, dice) for phase in phases[: RESTARTS + 1]]
        everyone = (TORCHRUN, *range(first))
        if chosen := dice.choice([(), everyone, (TORCHRUN,)]):
            moments[-1] = moments[-1]._replace(victims=chosen)
        yield names[0], tuple(moments), RESTARTS
        moments = [self._moment(phase, last, dice) for phase in phases[RESTARTS + 1 :]]
        yield names[1], tuple(moments), len(moments)

    @staticmethod
    def _moment(phase: str, number: int, dice: random.Random) -> Moment:
        rank = dice.randrange(number) if phase in (TRAINING, WRITING) else 0
        nth = {TRAINING: dice.randint(2, 5), WRITING: dice.randint(1, 2)}.get(phase, 1)
        victims = dice.choice([(rank,), (dice.randrange(number),), (*range(number),)])
        return Moment(phase, rank, nth, dice.random(), victims)

    def _launched(
        self,
        place: Path,
        grid: Grid,
        moments: tuple[Moment, ...],
        events: dict[str, int],
        restarts: int,
    ) -> Ended:
        """Start the command of a run, and wait for its end."""
        notes = place / f"notes-{len([*place.glob('notes-*')])}"
        notes.mkdir()
        run = place / "run"
        (notes / "plan.json").write_text(json.dumps(Plan(str(run), str(notes), moments, events)))
        words = [*tiny_words(self.text, *RUN), *grid.words, "--quiet", "--out", str(run)]
        command = [
            *(*torchrun(grid.number), f"--max-restarts={restarts}", "-m", "tests.faults.ranks"),
            *(str(notes / "plan.json"), *words),
        ]
        variables = environment() | {"ARCHWRIGHT_CACHE": str(self.folder / "cache")}
        with (notes / "output").open("wb") as output:
            process = subprocess.Popen(
                command, cwd=ROOT, env=variables, stdout=subprocess.DEVNULL, stderr=output
            )
            try:
                code = process.wait(LIMIT)
            except subprocess.TimeoutExpired:
                code = 99
                process.kill()
            except BaseException:
                process.kill()
                _orphans(place, 0)
                raise
        orphans = _orphans(place, GONE)
        found = [
            json.loads(file.read_text()) if (file := notes / f"fell-{start}.json").exists() else {}
            for start in range(len(moments))
        ]
        return Ended(code, (notes / "output").read_text("utf-8", "replace"), found, orphans)

    @staticmethod
    def _add(found: Verdict, ended: Ended, moments: tuple[Moment, ...], restarts: int) -> None:
        """Count what fell in a start of a command, and look at how it ended."""
        found.orphans += ended.orphans
        for moment, note in zip(moments, ended.notes, strict=True):
            if not note:
                found.problems.append(f"nothing fell: {moment}: exit code {ended.code}")
            elif moment.error:
                found.full += 1
            else:
                victims = {*moment.victims}
                ranks = victims - {TORCHRUN}
                who = "one" if len(ranks) == 1 else "all" if ranks else "none"
                found.kills.append(
                    {"phase": note["phase"], "who": who, "torchrun": TORCHRUN in victims}
                )
        is_killed = bool(moments) and TORCHRUN in moments[-1].victims
        if is_killed:
            is_right = ended.code == -signal.SIGKILL
        elif len(moments) > restarts:
            is_right = ended.code not in (0, 99)
        else:
            is_right = ended.code == 0
        if not is_right:
            found.problems.append(f"torchrun's exit code {ended.code}: {ended.output[-600:]}")
        if any(moment.error for moment in moments):
            lines = [line for line in ended.output.splitlines() if line.startswith("archwright: ")]
            if len(lines) != 1 or "No space left on device" not in lines[0]:
                found.problems.append(f"a full disk is reported in {len(lines)} lines: {lines[:3]}")

    @staticmethod
    def _compare(found: Verdict, run: Path, plain: Path, *, is_exact: bool) -> None:
        """Compare what was left with what an undisturbed run leaves."""
        ours, theirs = RunFolder(run), RunFolder(plain)
        if not ours.finished:
            found.problems.append("not finished")
            return
        found.left += sorted(_names(run) - _names(plain))
        found.problems += [f"missing: {name}" for name in sorted(_names(plain) - _names(run))]
        records = [_records(folder) for folder in (ours, theirs)]
        found.apart = max(_weights_apart(run, plain), _losses_apart(*records))
        if not found.apart <= (0 if is_exact else CLOSE):
            found.problems.append(f"weights or losses are {found.apart:.1e} apart")
        if is_exact:
            if records[0] != records[1]:
                found.problems.append("other records")
            for file in sorted(plain.rglob("*.safetensors")):
                name = file.relative_to(plain)
                if (run / name).exists() and _content(run / name) != _content(file):
                    found.problems.append(f"other content: {name}")


def _is_trained(run: Path) -> bool:
    """Tell whether all steps are made, so that the end alone is left."""
    folder = RunFolder(run)
    return folder.started and STEPS in checkpoint.complete(folder.checkpoints_folder)


def _content(file: Path) -> bytes:
    """Return what must be the same in a file of tensors; numpy's and Python's generators, of which nothing is drawn,
    begin elsewhere in each process."""
    if file.name == "state.safetensors":
        state: bytes = checkpoint.read_model(file)["generators/torch"].numpy().tobytes()
        return state
    return file.read_bytes()


def _names(run: Path) -> set[str]:
    """Return the names of a run's files; of parts of a checkpoint, that of what they are parts of."""
    paths = (path for path in run.rglob("*") if not is_lock(path))
    found = (path.relative_to(run) for path in paths)
    return {
        str(name.with_name(f"{name.name.split('-0')[0]}.safetensors"))
        if "-of-" in name.name
        else str(name)
        for name in found
    }


def _weights_apart(run: Path, plain: Path) -> float:
    """Return the largest difference of a weight."""
    ours, theirs = (checkpoint.read_model(path / "model.safetensors") for path in (run, plain))
    if ours.keys() != theirs.keys():
        return float("inf")
    return max(float((value - theirs[name]).abs().max()) for name, value in ours.items())


def _records(folder: RunFolder) -> list[dict[str, Any]]:
    """Return the records of a run without times, and without events, which tell of starts."""
    kept = (record for record in folder.metrics() if record["kind"] != "event")
    return [{k: v for k, v in record.items() if k not in TIMES} for record in kept]


def _losses_apart(ours: list[dict[str, Any]], theirs: list[dict[str, Any]]) -> float:
    """Return the largest difference of a loss; infinity where one is missing or there twice."""
    places = [[(r["kind"], r["step"], r.get("name")) for r in found] for found in (ours, theirs)]
    if places[0] != places[1]:
        return float("inf")
    return max(
        abs(record[key] - other[key])
        for record, other in zip(ours, theirs, strict=True)
        for key in ("loss", "nats_per_token")
        if key in record
    )


def _orphans(place: Path, patience: float) -> list[str]:
    """Return the processes that have a folder among their words and do not end in time; they are killed."""
    end = time.monotonic() + patience
    while (
        found := [p for p in psutil.process_iter() if _has(p, place)]
    ) and time.monotonic() < end:
        time.sleep(0.05)
    lines = []
    for process in found:
        with contextlib.suppress(psutil.Error):
            lines.append(f"RANK={process.environ().get('RANK', 'none')} of {process.pid}")
            process.kill()
    return lines


def _has(process: psutil.Process, place: Path) -> bool:
    try:
        words = process.cmdline() if process.pid != os.getpid() else []
        return process.status() != psutil.STATUS_ZOMBIE and any(
            word.startswith(f"{place}/") for word in words
        )
    except psutil.Error:
        return False


def ray_case(folder: Path, number: int, seed: int) -> Verdict:
    """Kill the worker of a Ray cluster that trains a run of a study, and compare with a study without Ray."""
    from tests.lab.small import few, numbers, trained_now
    from tests.tiny import surroundings

    started, found = time.monotonic(), Verdict(number, "a study on Ray")
    dice = random.Random(f"{seed}/ray/{number}")
    folder.mkdir(parents=True, exist_ok=True)
    variables = surroundings(ARCHWRIGHT_CACHE=str(folder / "cache"), RAY_USAGE_STATS_ENABLED="0")
    if not (folder / "here").exists():
        write_text(folder / "text.txt", 2000)
        here, silent = few("here", budget="100steps"), subprocess.DEVNULL
        subprocess.run(here, cwd=folder, env=variables, stdout=silent, check=True)
    for path in folder.glob("far*"):
        shutil.rmtree(path)
    command = few("far", "--on", "ray", "--workers", "2", budget="100steps")
    seen: dict[int, psutil.Process] = {}
    with subprocess.Popen(
        command,
        cwd=folder,
        env=variables,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            while process.poll() is None and not found.kills:
                time.sleep(0.01)
                runs = trained_now(folder / "far-runs")
                holder = runs[0].holder() if runs else None
                if not holder:
                    continue
                time.sleep(dice.uniform(0, 0.2))
                with contextlib.suppress(psutil.Error):
                    below = psutil.Process(process.pid).children(recursive=True)
                    seen |= {child.pid: child for child in below}
                    agent = psutil.Process(holder.pid).parent()
                    if agent and "ray::" in " ".join(agent.cmdline()):
                        agent.kill()
                        found.kills.append({"phase": TRAINING, "who": "one", "torchrun": False})
            _, output = process.communicate(timeout=LIMIT)
        except BaseException:
            for child in psutil.Process(process.pid).children(recursive=True):
                child.kill()
            process.kill()
            raise
    if not found.kills:
        found.problems.append("no worker was killed")
    if process.returncode:
        found.problems.append(f"exit code {process.returncode}: {output[-600:]}")
    elif numbers(folder / "far") != numbers(folder / "here"):
        found.problems.append("other numbers")
    left = psutil.wait_procs([*seen.values()], timeout=2 * GONE)[1]
    found.orphans += [p.name() for p in left if p.is_running()]
    for child in left:
        child.kill()
    found.seconds = round(time.monotonic() - started, 1)
    return found


HEAD = (
    *("processes", "kills", "in training", "while a part is written", "while sealed", "at the end"),
    *("of one", "of all", "of torchrun", "missed", "full disks", "runs", "as undisturbed"),
    *("largest difference", "files left", "processes left", "seconds"),
)


def rows(verdicts: Sequence[Verdict]) -> list[list[object]]:
    """Return a row for each route, and one for all."""
    routes = [*dict.fromkeys(v.route for v in verdicts)]
    groups = [(route, [v for v in verdicts if v.route == route]) for route in routes]
    return [_row(name, group) for name, group in (*groups, ("all", [*verdicts]))]


def _row(name: str, group: Sequence[Verdict]) -> list[object]:
    kills = [kill for verdict in group for kill in verdict.kills]
    missed = sum(p.startswith("nothing fell") for v in group for p in v.problems)
    return [
        *(name, len(kills)),
        *(sum(kill["phase"] == phase for kill in kills) for phase in PHASES),
        *(sum(kill["who"] == who for kill in kills) for who in ("one", "all")),
        sum(kill["torchrun"] for kill in kills),
        *(missed, sum(v.full for v in group), len(group), sum(not v.problems for v in group)),
        f"{max((v.apart for v in group), default=0):.1e}",
        *(sum(len(v.left) for v in group), sum(len(v.orphans) for v in group)),
        f"{sum(v.seconds for v in group):.0f}",
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    """Kill, print the table, and return 1 where anything did not hold."""
    options = _options(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    end = time.monotonic() + options.seconds
    num_ray = round(options.kills * RAY) if importlib.util.find_spec("ray") else 0
    num_cases = -(-(options.kills - num_ray) // KILLS)
    numbers = options.only or range(num_cases + num_ray)
    verdicts = _read(options.log)
    known = {verdict.number for verdict in verdicts}
    with tempfile.TemporaryDirectory(prefix="archwright-faults-", dir=in_memory()) as scratch:
        stage = Stage(Path(scratch) / "runs", options.seed)
        for number in numbers:
            if number in known or time.monotonic() > end:
                continue
            if number < num_cases:
                verdict = stage.case(number)
            else:
                verdict = ray_case(Path(scratch) / "ray", number, options.seed)
            verdicts.append(verdict)
            _write(verdict, stage, options)
    print(table(HEAD, rows(verdicts), markdown=options.markdown))
    return 0 if all(verdict.is_good for verdict in verdicts) else 1


def _read(log: Path | None) -> list[Verdict]:
    if log is None or not log.exists():
        return []
    return [Verdict(**json.loads(line)) for line in log.read_text().splitlines()]


def _write(verdict: Verdict, stage: Stage, options: argparse.Namespace) -> None:
    """Add a case to the log; name what did not hold, keep its folder, and say how to see it again."""
    if options.log:
        with options.log.open("a") as file:
            file.write(json.dumps(asdict(verdict)) + "\n")
    for line in (*verdict.problems, *verdict.left, *verdict.orphans):
        print(f"{verdict.route}: {line}", file=sys.stderr)
    if verdict.is_good:
        return
    again = f"--kills {options.kills} --seed {options.seed} --only {verdict.number}"
    print(f"    python -m tests.faults.scale {again}", file=sys.stderr, flush=True)
    if options.keep and (stage.folder / "case").exists():
        kept = options.keep / f"{options.seed}-{verdict.number}"
        shutil.copytree(stage.folder / "case", kept, dirs_exist_ok=True)


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser("python -m tests.faults.scale", description=__doc__)
    parser.add_argument("--kills", type=int, default=200, help="over all numbers of processes")
    parser.add_argument("--only", nargs="+", type=int, metavar="N", help="these cases alone")
    parser.add_argument("--seed", type=int, default=0, help="another one strikes elsewhere")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="keep folders that did not hold")
    parser.add_argument(
        "--log", type=Path, metavar="FILE", help="write down what was found; a case in it is done"
    )
    parser.add_argument(
        "--seconds", type=float, default=float("inf"), help="begin no case after so many"
    )
    parser.add_argument("--markdown", action="store_true", help="print the table for a page")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
