"""What all benches share: blocks that take turns, ratios with their intervals, and the page they write."""

import os
import platform
import re
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import date
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import numpy as np
import psutil
import torch

from archwright.cpu import prepare_process
from archwright.machine.rules import FLOAT32, cpu_name, decision, processor

CORES = psutil.cpu_count(logical=False) or 1
PACKAGES = ("torch", "transformers", "litgpt", "x-transformers", "llama-cpp-python")
RESULTS = Path(__file__).parent / "results"


def prepare(threads: int, *, tuned: bool = True) -> bool:
    """Give the process the settings that all contenders share; tell whether the allocator took its own."""
    taken = tuned and prepare_process()
    torch.set_num_threads(threads)
    torch.set_float32_matmul_precision(decision(FLOAT32, processor("cpu"))[0])
    return taken


def clock() -> float:
    """Return seconds: of the one thread's CPU time, which others disturb little, or of the wall."""
    return time.thread_time() if torch.get_num_threads() == 1 else time.perf_counter()


def take_turns(
    contenders: Mapping[str, Callable[[], float]], blocks: int, until: float = float("inf")
) -> dict[str, list[float]]:
    """Call everyone once a block, to and fro; return what the calls gave.

    Whatever else the machine does falls on all alike. Past the time `until` no block begins, but three.
    """
    given: dict[str, list[float]] = {name: [] for name in contenders}
    for block in range(blocks):
        if block >= 3 and time.monotonic() > until:
            break
        for name in list(contenders)[:: 1 if block % 2 == 0 else -1]:
            given[name].append(contenders[name]())
    return given


def take_turns_beside(
    ours: Callable[[], float],
    others: Mapping[str, Callable[[], float]],
    blocks: int,
    until: float = float("inf"),
) -> dict[str, list[tuple[float, float]]]:
    """Call all others once a block, to and fro, each right beside a call of ours; return what both gave.

    Past the time `until` no block begins, but three.
    """
    given: dict[str, list[tuple[float, float]]] = {name: [] for name in others}
    for block in range(blocks):
        if block >= 3 and time.monotonic() > until:
            break
        names = list(others)[:: 1 if block % 2 == 0 else -1]
        for before, *after in (names[i : i + 2] for i in range(0, len(names), 2)):
            theirs, own = others[before](), ours()
            given[before].append((theirs, own))
            for name in after:
                given[name].append((others[name](), own))
    return given


def ratio(theirs: Sequence[float], ours: Sequence[float]) -> str:
    """Return how much longer theirs take: the median over pairs of blocks, with its bootstrap interval."""
    ratios = np.array(theirs) / np.array(ours)
    drawn = np.random.default_rng(0).choice(ratios, (10_000, len(ratios)))
    low, high = np.quantile(np.median(drawn, axis=1), [0.025, 0.975])
    return f"{np.median(ratios):.2f} ({low:.2f} to {high:.2f})"


def product_rate(dtype: torch.dtype, seconds: float = 0.1, size: int = 1024) -> float:
    """Return the FLOP/s at which products of square matrices run for so long."""
    a, b = (torch.randn(size, size).to(dtype) for _ in range(2))
    a @ b
    done, start = 0, clock()
    while clock() - start < seconds:
        a @ b
        done += 1
    return 2 * size**3 * done / (clock() - start)


def machine(threads: int) -> str:
    """Return a line that says where a bench ran, and with what."""
    packages = ", ".join(f"{name} {found}" for name in PACKAGES if (found := _version(name)))
    memory = psutil.virtual_memory().total / 2**30
    return (
        f"{cpu_name()}, {threads} thread{'s' * (threads != 1)}, {memory:.0f} GiB; "
        f"Python {platform.python_version()}, {packages}; load at the end {os.getloadavg()[0]:.1f}."
    )


def write(text: str, what: str, folder: Path = RESULTS) -> None:
    """Print a page, and keep it as DATE-MACHINE-WHAT.md."""
    print(text)
    name = re.sub(r"\W+", "-", re.sub(r"\(\w+\)|processor|\d+-core|@.*", "", cpu_name().lower()))
    path = folder / f"{date.today()}-{name.strip('-')}-{what}.md"
    folder.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    print(f"written to {path}")


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return ""
