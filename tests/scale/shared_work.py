"""Work that processes share: whole matrices, and initial values, each of which one process alone works on.

As torchrun starts it: `python -m tests.scale.shared_work FILE`, in which the first process says how much work was done
by all together, for each piece of work that there was.
"""

import json
import os
import sys
from collections.abc import Callable, Iterator
from itertools import pairwise
from math import prod
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor.debug import CommDebugMode

from archwright.machine.compiling import uncompiled
from archwright.model import build
from archwright.model.build import initial_draws
from archwright.optim import Optimizers, build_optimizers, muon
from archwright.scale.group import Group
from archwright.scale.layout import Block, Layout
from archwright.scale.matrices import SharedMatrices
from archwright.spec.model_spec import ModelSpec
from archwright.spec.optimizers import Muon
from tests.scale.gradients import joined

MIXTURE = ModelSpec(dim=16, num_layers=2, vocab_size=50, context_length=8).override(
    "feedforward.kind=experts", "feedforward.num_experts=6", "feedforward.top_k=2"
)


class Counted:
    """A function of stacks of matrices, and how many it was given."""

    def __init__(self, work: Callable[..., Tensor]) -> None:
        self.work, self.number = work, 0

    def __call__(self, batch: Tensor, *args: Any) -> Tensor:
        self.number += len(batch)
        return self.work(batch, *args)


def matrices(group: Group, number: int) -> list[float]:
    """Work on so many matrices, which are cut up in several ways."""
    size, rank = group.launch.size, group.launch.rank
    torch.manual_seed(1)
    shape = (2 * size - 1, 3 * size)  # of rows the last process has one alone
    whole = {f"{i}": torch.randn(shape, dtype=torch.float64) for i in range(number)}
    blocks, own = dict[str, Block](), list[Tensor]()
    for i, (name, matrix) in enumerate(whole.items()):
        axis = i % 3  # 2: each process has a copy
        sizes = [0, *(len(part) for part in matrix.movedim(axis % 2, 0).chunk(size))]
        ends = [*torch.tensor(sizes).cumsum(0).tolist()] if axis < 2 else [0, shape[0]] * size
        start, stop = [*pairwise(ends)][rank if axis < 2 else 0]
        offsets, extents = [0, 0], [*shape]
        offsets[axis % 2], extents[axis % 2] = start, stop - start
        blocks[name] = Block(shape, tuple(offsets), tuple(extents))
        own.append(matrix.narrow(axis % 2, start, stop - start))
    work = Counted(lambda batch: torch.stack([m @ m.T @ m for m in batch]))
    world = dist.group.WORLD
    assert world is not None
    found = SharedMatrices(blocks, world).mapped([*whole], own, work)
    for (name, block), tensor in zip(blocks.items(), found, strict=True):
        (row, column), (rows, columns) = block.offsets, block.sizes
        done = (whole[name] @ whole[name].T @ whole[name])[row : row + rows]
        torch.testing.assert_close(tensor, done[:, column : column + columns], rtol=1e-12, atol=0)
    return [*group.sums([work.number]), len(whole)]


def initial_values(group: Group) -> list[float]:
    """Draw the values of a model."""
    model = build(MIXTURE, seed=3)
    expected = dict(model.named_parameters()) | dict(model.named_buffers())
    described = build(MIXTURE, device="meta")
    group.layout = Layout(1, group.launch.size)
    group.cut(build(MIXTURE, device="meta"))
    number, names = 0, set[str]()

    def counted() -> Iterator[tuple[str, Callable[[], Tensor]]]:
        for name, draw in initial_draws(described, 3, device="cpu"):
            yield name, lambda draw=draw: noted(draw)  # type: ignore[misc]

    def noted(draw: Callable[[], Tensor]) -> Tensor:
        nonlocal number
        number += 1
        return draw()

    for name, value in group.drawn(described, counted()):
        own = expected[name][group.shards.block(name).slices]
        torch.testing.assert_close(value, own, rtol=0, atol=0)
        names.add(name)
    assert names == expected.keys()
    return [*group.sums([number]), len(expected)]


def matrices_of(optimizers: Optimizers) -> list[Tensor]:
    return [p for group in optimizers["muon"].param_groups for p in group["params"]]


def directions(group: Group, *layout: int) -> list[float]:
    """Make a step of Muon, of a model whose experts and other matrices are cut up."""
    group.layout = Layout(*layout)  # type: ignore[arg-type]
    model = build(MIXTURE, seed=3)
    shapes = [p.shape for p in matrices_of(build_optimizers(model, Muon()))]
    expected = sum(prod(shape[:-2]) for shape in shapes)
    group.cut(model)
    optimizers = group.take(build_optimizers(model, Muon()))
    for p in matrices_of(optimizers):
        p.grad = torch.ones_like(p)
    polar = muon.METHODS["polar"]
    muon.METHODS["polar"] = work = Counted(polar)
    optimizers["muon"].step()
    muon.METHODS["polar"] = polar
    return [*group.sums([work.number]), expected]


def gathers(group: Group) -> list[float]:
    """Count the gathers of a pass forward and backward: each layer for both, and embedding, head and the rest once."""
    group.layout = Layout(1, group.launch.size)
    model = build(MIXTURE.override("feedforward.kind=swiglu", "head.tied=false"), seed=3)
    group.cut(model)
    tokens, found = torch.randint(50, (2, 8)), list[float]()

    def in_two_calls() -> Tensor:
        logits: Tensor = model.head(model.hidden(tokens))
        return logits

    for compute in (lambda: model(tokens).logits, in_two_calls):
        with uncompiled(model), CommDebugMode() as seen:
            compute().sum().backward()
        counts = {str(op): number for op, number in seen.get_comm_counts().items()}
        found.append(sum(number for op, number in counts.items() if "gather" in op))
    return [*found, 2 * MIXTURE.num_layers + 3]


def main(out: Path) -> None:
    group = joined()
    size = group.launch.size
    found = {
        "one matrix": matrices(group, 1),
        "matrices": matrices(group, 3 * size + 1),
        "initial values": initial_values(group),
        "directions, sharded": directions(group, 1, size),
        "directions, experts shared": directions(group, 1, size, size, 1, True, 1, size),
        "gathers": gathers(group),
    }
    if group.launch.rank == 0:
        out.write_text(json.dumps(found), "utf-8")
    group.leave()


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(Path(sys.argv[1]))
    sys.stdout.flush()
    os._exit(0)
