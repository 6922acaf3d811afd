"""Gradients of a first step of training, whole: of one process, or as those of a group have them together.

As a module that torchrun starts: `python -m tests.scale.gradients QUESTION`, which the first process answers in a file.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from archwright.scale.group import Group
from archwright.scale.launch import launched
from archwright.scale.layout import Layout
from archwright.scale.processes import Processes
from archwright.training.session import Session
from bench.scale import ROOT, Case, environment, started, torchrun

Grid = (
    tuple[int, int, int, bool]
    | tuple[int, int, int, bool, int]
    | tuple[int, int, int, bool, int, int]
    | tuple[int, int, int, bool, int, int, int, str]
)
"""scale.replicate, scale.shard, scale.tensor, scale.sequence, and scale.context, scale.expert, scale.pipeline and
scale.pipeline_schedule."""


@contextmanager
def first_gradients(session: Session, processes: Processes) -> Iterator[list[Tensor]]:
    """Yield a list for the gradients of the next step, whole and before they are clipped, in the order of the
    optimizers' parameters."""
    seen: list[Tensor] = []
    norm = processes.norm

    def watched(own: Tensor) -> Tensor:
        if not seen:
            groups = [g for o in session.optimizers.values() for g in o.param_groups]
            for p in (p for group in groups for p in group["params"]):
                found = torch.zeros_like(p) if p.grad is None else p.grad
                if isinstance(processes, Group):
                    found = processes.shards.gathered(processes.shards.name_of(p), found)
                seen.append(found.clone().contiguous())
        return norm(own)

    processes.norm = watched  # type: ignore[method-assign]
    try:
        yield seen
    finally:
        del processes.norm


def gradients(case: Case, processes: Processes) -> list[Tensor]:
    """Return the gradients of the first step."""
    with started(case, processes=processes) as session, first_gradients(session, processes) as seen:
        session.step()
    return seen


def of_one(case: Case) -> list[Tensor]:
    """Return those of a process alone."""
    return gradients(case, Processes())


def of_group(
    number: int, cases: Mapping[str, Case], grids: Sequence[Grid], out: Path
) -> dict[str, Tensor]:
    """Return those of so many processes, by row, grid and place."""
    question = json.dumps({"cases": cases, "grids": grids, "out": str(out)})
    subprocess.run(
        [*torchrun(number), "-m", "tests.scale.gradients", question],
        cwd=ROOT,
        check=True,
        env=environment(),
    )
    return load_file(out)


def assert_those_of_one(
    name: str, case: Case, together: Mapping[str, Tensor], grids: Sequence[Grid]
) -> list[Tensor]:
    """Hold the gradients of a row that groups have against those of a process alone, and return these."""
    alone = of_one(case)
    for grid in grids:
        for i, expected in enumerate(alone):
            found = together[f"{name}/{json.dumps(grid)}/{i}"]
            # Biases of keys, which change nothing, have gradients of rounding alone.
            atol = 2e-5 * float(expected.abs().max()) + 2e-8
            torch.testing.assert_close(found, expected, rtol=0, atol=atol, msg=f"{grid}, {i}")
    return alone


def joined() -> Group:
    """Return the group of the processes that torchrun started, which have met."""
    launch = launched()
    assert launch is not None, "torchrun starts this"
    group = Group(launch)
    if launch.rank == 0:
        group.begin({"do": "train", "device": "cpu", "layout": [1, launch.size]})
    else:
        group.wait_to_begin()
    return group


def answer(question: str) -> None:
    """Find the gradients that are asked for, together with the other processes."""
    asked, group = json.loads(question), joined()
    launch = group.launch
    found: dict[str, Tensor] = {}
    for name, values in asked["cases"].items():
        for replicate, shard, *more in asked["grids"]:
            group.layout = Layout(replicate, shard, launch.local_size, *more)  # type: ignore[arg-type]
            own = gradients(Case.read(values), group)
            grid = json.dumps([replicate, shard, *more])
            found |= {f"{name}/{grid}/{i}": g for i, g in enumerate(own)}
    if launch.rank == 0:
        save_file(found, asked["out"])
    group.leave()


def answer_and_end(answer: Callable[[str], None]) -> None:
    """Answer the question on the command line, as a process that torchrun starts."""
    torch.set_num_threads(1)
    answer(sys.argv[1])
    sys.stdout.flush()
    os._exit(0)  # as archwright's command ends where several processes train


if __name__ == "__main__":
    answer_and_end(answer)
