"""Losses of steps of processes that gather weights in float32 and in bfloat16, and what they gather.

As a module that torchrun starts: `python -m tests.scale.narrow QUESTION`, which the first process answers in a file.
"""

import json
from collections import Counter
from pathlib import Path
from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from archwright.scale.group import Group
from archwright.scale.layout import Layout
from bench.scale import Case, started
from tests.scale.gradients import answer_and_end, joined


class Gathered(TorchDispatchMode):
    """Counts the bytes that processes gather together, by dtype."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.bytes: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace == "c10d" and "allgather" in func.name():
            for x in tree_leaves(args[0]):
                if isinstance(x, Tensor):
                    self.bytes[str(x.dtype).removeprefix("torch.")] += x.nbytes
        return func(*args, **(kwargs or {}))


def answer(case: Case, param_dtype: str, steps: int, group: Group) -> dict[str, Any]:
    """Return losses, bytes of the first step, and of what dtype the process keeps weights, gradients and moments."""
    layout = Layout(1, group.launch.size, group.launch.local_size)
    group.layout = layout._replace(param_dtype=param_dtype)  # type: ignore[arg-type]
    with started(case, processes=group) as session:
        with Gathered() as seen:
            losses = [session.step().loss]
        losses += [session.step().loss for _ in range(steps - 1)]
        kept = [p for o in session.optimizers.values() for g in o.param_groups for p in g["params"]]
        states = [
            x for o in session.optimizers.values() for x in tree_leaves(o.state_dict()["state"])
        ]
        tensors = [*kept, *(p.grad for p in kept), *states]
        dtypes = {str(x.dtype) for x in tensors if isinstance(x, Tensor)}
    return {"losses": losses, "bytes": seen.bytes, "kept": sorted(dtypes)}


def main(question: str) -> None:
    asked, group = json.loads(question), joined()
    found = {
        f"{name}/{dtype}": answer(Case.read(case), dtype, asked["steps"], group)
        for name, case in asked["cases"].items()
        for dtype in ("float32", "bfloat16")
    }
    if group.launch.rank == 0:
        Path(asked["out"]).write_text(json.dumps(found), "utf-8")
    group.leave()


if __name__ == "__main__":
    answer_and_end(main)
