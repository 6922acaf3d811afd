"""Check archwright on a GPU within ten minutes: `python -m bench.gpu_check [STAGE ...] [--resume] [--help]`.

Each stage of `bench/gpu_stages.py` is a process with a time limit, so that a fault or a lack of memory costs one
stage. Every number is appended at once to results.jsonl in bench/results/gpu-DEVICE-COMMIT, next to a log of each
stage. Stages that do not fit into the time are skipped, and `--resume` runs them later. `--device cpu --tiny` tries
all stages without a GPU; its numbers mean nothing. So far, all stages have only run in that way.
"""

import argparse
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
SECONDS = 690.0
"""Time of all stages; a slot of ten minutes is usual, and GPUs are often lent for some more."""
LIMITS = {
    "machine": 30,
    "correct": 90,
    "syncs": 40,
    "compile": 100,
    "attention": 80,
    "loss": 50,
    "train-124M": 140,
    "train-1B": 140,
    "decode": 60,
    "commands": 120,
}
"""Stages in order, and the time limit of each in seconds."""
LEAST = 20.0
"""Seconds below which no stage begins."""


def main() -> None:
    args = _arguments()
    device = _device() if args.device == "cuda" else re.sub(r"\W+", "-", platform.machine())
    if not device:
        sys.exit("no GPU found by nvidia-smi; --device cpu --tiny tries all stages without one")
    commit = _output("git", "describe", "--always", "--dirty") or "unknown"
    out = args.out or ROOT / "bench" / "results" / f"gpu-{device}-{commit}"
    out.mkdir(parents=True, exist_ok=True)
    results = out / "results.jsonl"
    if not args.resume:
        results.unlink(missing_ok=True)
    done = {row["stage"] for row in read(results) if (row["key"], row["value"]) == ("end", "ok")}
    until = time.monotonic() + args.seconds
    for stage in args.stages or LIMITS:
        left = until - time.monotonic()
        if stage in done:
            continue
        started = time.monotonic()
        end = f"skipped: {left:.0f} s were left" if left < LEAST else _run(stage, args, left, out)
        row = {"stage": stage, "key": "end", "value": end, "unit": ""}
        row |= {"seconds": round(time.monotonic() - started, 1), "commit": commit, "device": device}
        with results.open("a", encoding="utf-8") as file:
            file.write("\n" + json.dumps(row) + "\n")  # a killed stage may leave half a line
        print(f"{stage}: {end} ({row['seconds']} s)", flush=True)
    print(table(read(results)))
    print(f"numbers and logs: {out}")


def read(results: Path) -> list[dict[str, Any]]:
    """Return the rows of a file; a stage that was killed may leave half of one."""
    rows = []
    for line in results.read_text(encoding="utf-8").splitlines() if results.is_file() else ():
        try:
            rows.append(json.loads(line))
        except json.JSONDecodeError:
            continue
    return rows


def table(rows: list[dict[str, Any]]) -> str:
    """Return the numbers as a Markdown table."""
    lines = ["| stage | what | value |", "|---|---|---:|"]
    for row in rows:
        value = f"{row['value']:,.4g}" if isinstance(row["value"], float) else row["value"]
        lines.append(f"| {row['stage']} | {row['key']} | {value} {row['unit']} |")
    return "\n".join(lines)


def _run(stage: str, args: argparse.Namespace, left: float, out: Path) -> str:
    """Run a stage; return "ok" or the reason of its end."""
    command = [sys.executable, "-m", "bench.gpu_stages", stage, "--device", args.device]
    command += ["--out", str(out / "results.jsonl"), *["--tiny"] * args.tiny]
    cache = str(Path(tempfile.gettempdir()) / "archwright-gpu-check")
    environment = {"TORCHINDUCTOR_CACHE_DIR": cache, "PYTHONPATH": str(ROOT)} | os.environ
    log = out / f"{stage}.log"
    with log.open("w", encoding="utf-8") as file:
        try:
            limit = min(left, LIMITS[stage])
            ended = subprocess.run(
                command, cwd=ROOT, env=environment, stdout=file, stderr=file, timeout=limit
            )
        except subprocess.TimeoutExpired:
            return f"stopped after {limit:.0f} s"
    last = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()[-1:]
    return "ok" if not ended.returncode else f"failed: {' '.join(last) or ended.returncode}"


def _device() -> str:
    """Return the name of the first GPU as a part of a file name; empty without one."""
    name = _output("nvidia-smi", "--query-gpu=name", "--format=csv,noheader").splitlines()
    return re.sub(r"\W+", "-", name[0].lower()) if name else ""


def _output(*command: str) -> str:
    try:
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True).stdout.strip()
    except OSError:
        return ""


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("stages", nargs="*", metavar="STAGE", help=f"default: {' '.join(LIMITS)}")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--tiny", action="store_true", help="tiny shapes, to try the stages")
    parser.add_argument("--resume", action="store_true", help="skip stages that have ended well")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="time of all stages")
    parser.add_argument("--out", type=Path, help="default: bench/results/gpu-DEVICE-COMMIT")
    args = parser.parse_args()
    if unknown := [stage for stage in args.stages if stage not in LIMITS]:
        parser.error(f"stage: found {', '.join(unknown)}; expected some of {', '.join(LIMITS)}")
    return args


if __name__ == "__main__":
    main()
