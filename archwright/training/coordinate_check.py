"""Coordinate check: compare how parts of a model change in the first steps at several widths."""

import itertools
import math
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from archwright.parts.branch import Branch
from archwright.runs import RunFolder
from archwright.spec.errors import UserError
from archwright.spec.machine import MachineSpec
from archwright.spec.run_rules import enforce_run
from archwright.spec.run_spec import RunSpec
from archwright.training.data import Material, prepare_data
from archwright.training.resolve import make_batches, make_model, resolved
from archwright.training.session import Session

STEPS = (1, 10)
"""Steps after which changes are measured."""
SHARE = 0.1
"""Learning rate of the steps over its peak, as early in a warm-up."""
MACHINE = MachineSpec(device="cpu", precision="fp32", kernel="eager", loss="whole", num_steps=10)


class Growth(NamedTuple):
    """Change of a part's output by the width of the model: geometric means over seeds."""

    part: str
    steps: int
    changes: Mapping[int, float]
    """Root mean square of the change by width."""
    growth: float
    """The change at the largest width over that at the smallest."""
    error: float
    """Standard error of the growth, as a share of it."""

    @property
    def is_flat(self) -> bool:
        """True if the growth, or its inverse, is at most 1.25."""
        return 0.8 <= self.growth <= 1.25


def coordinate_check(
    run: RunSpec,
    widths: Sequence[int],
    seeds: int = 5,
    on_progress: Callable[[float], None] = lambda share: None,
) -> list[Growth]:
    """Train a model at several widths, and return the changes of its parts.

    A part is the embedding, a branch of a layer or the head. Its change is rms(f_t(x) - f_0(x)): f_0 is the part before
    training, f_t after t steps at SHARE of the peak learning rate, and x its input in the first batch before training.
    The fixed x excludes changes of other parts, such as the embedding, which would hide a growth.

    Args:
        widths: values of model.dim. Hidden layers grow in proportion.
        seeds: number of seeds of weights and batches, at least two.
        on_progress: called with the completed share.

    Raises:
        UserError: a width breaks a rule, the text or the model is unsuitable, or a part does not change.

    Source: Yang et al., 2022, Tensor Programs V, appendix D.1.
    """
    runs = [_at_width(run, width) for width in sorted(widths)]
    # The largest model is first, because it may not fit into memory.
    trials = [*itertools.product(reversed(runs), range(run.seed, run.seed + seeds))]
    found: dict[tuple[int, str], list[float]] = {}
    with tempfile.TemporaryDirectory(prefix="archwright-") as folder:
        material = prepare_data(run, RunFolder(Path(folder)))
        for number, (wide, seed) in enumerate(trials, start=1):
            for key, change in _changes(wide.model_copy(update={"seed": seed}), material):
                found.setdefault(key, []).append(change)
            on_progress(number / len(trials))
    growths = []
    for (steps, part), changes in found.items():
        logs = np.log(changes).reshape(-1, seeds)[::-1]  # [width, seed]
        means, ratios = np.exp(logs.mean(1)).tolist(), logs[-1] - logs[0]
        by_width = dict(zip(sorted(widths), means, strict=True))
        error = float(ratios.std(ddof=1)) / seeds**0.5
        growths.append(Growth(part, steps, by_width, math.exp(ratios.mean()), error))
    return growths


def _at_width(run: RunSpec, width: int) -> RunSpec:
    """Return the run with another model.dim, and hidden layers in proportion."""
    dim, words = run.model.dim, [f"model.dim={width}"]
    for kind, layer in run.model.layers_by_kind.items():
        if hidden := layer.feedforward.hidden_layer:
            at = "model." if kind == "default" else f"model.layer_kinds.{kind}."
            at += "feedforward." if hidden is layer.feedforward else "feedforward.expert."
            size = max(8, 8 * round(hidden.width(dim) * width / dim / 8))
            words += [f"{at}hidden_dim={size}", f"{at}ratio=none"]
    found = run.override(*words)
    enforce_run(found)
    return found


def _changes(run: RunSpec, material: Material) -> Iterator[tuple[tuple[int, str], float]]:
    """Yield the number of steps and the name of each part, and its change."""
    model = make_model(run, material, MACHINE).use_kernel(MACHINE.kernel)
    run = resolved(run.model_copy(update={"machine": MACHINE}), model)
    session = Session(run, model, make_batches(run, material))
    calls: dict[str, Callable[[], Tensor]] = {}

    def keep(module: nn.Module, args: Any, given: dict[str, Any], name: str) -> None:
        given.pop("projected", None)  # shared projections are computed by each branch
        calls.setdefault(name, partial(module, *args, **given))

    hooks = [
        module.register_forward_pre_hook(partial(keep, name=name), with_kwargs=True)
        for name, module in model.named_modules()
        if isinstance(module, Branch) or name.rpartition(".")[2] in ("embedding", "head")
    ]
    with torch.no_grad():
        model.eval()(**session.batches.at(0).inputs.map(torch.from_numpy).given())
        for hook in hooks:
            hook.remove()
        before = {name: call().double() for name, call in calls.items()}
    for step in range(1, max(STEPS) + 1):
        session.make_step(step - 1, SHARE)
        model.eval()
        for name, call in calls.items() if step in STEPS else ():
            with torch.no_grad():
                change = (call().double() - before[name]).square().mean().sqrt().item()
            if not 0 < change < math.inf:
                raise UserError(f"{name}: found a change of {change}; expected a part that moves")
            yield (step, name), change
