"""The Python function `archwright.plan`."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from archwright.planning import plans
from archwright.planning.plans import Plan
from archwright.planning.workload import workload
from archwright.spec.hardware import Hardware
from archwright.spec.model_spec import ModelSpec
from archwright.spec.read import load_run
from archwright.spec.run_spec import RunSpec


def plan(
    model: RunSpec | ModelSpec | str | Path,
    *assignments: str | Mapping[str, Any],
    hardware: str | Hardware = "h100",
    devices: int | None = None,
    precision: str = "bf16",
    tokens: str = "20xparams",
    batch: str | None = None,
    context: int | None = None,
    mfu: str = "0.3-0.5",
    price: float | None = None,
    split: str = "auto",
    micro_batch: int | None = None,
    **values: Any,
) -> Plan:
    """Estimate the costs of a model before training, as the command `archwright plan`.

        costs = archwright.plan("llama-3-8b", hardware="h100", devices=8, tokens="15T")
        print(costs.parameters, costs.flops_per_token, costs.training_memory.total)
        costs.record()  # all numbers as plain data, with the evidence of each

    Args:
        model: A model's name, file or spec, or a run.
        assignments: Dotted overrides: texts, or dicts such as `{"model.dim": 64}`.
        hardware: Name or file of a device.
        devices: Number of devices. Default: a typical machine of the hardware.
        precision: Precision of matrix products.
        tokens: Training tokens, such as "15T", "300B" or "20xparams".
        batch: Tokens per step, such as "4M". Default: 4M, or one sequence if that is longer.
        context: Tokens per sequence. Default: the model's.
        mfu: Share of peak compute, such as "0.4" or "0.3-0.5".
        price: Price of a device per hour.
        split: Parallelism. Default: the fastest that fits.
        micro_batch: Sequences at once. Default: all that fit.
        values: Overrides of keys without dots: `dim=64`.

    Raises:
        UserError: Invalid options, or mistakes in the model, one per line.
    """
    work = workload(
        hardware=hardware,
        devices=devices,
        precision=precision,
        tokens=tokens,
        batch=batch,
        context=context,
        mfu=mfu,
        price=price,
        split=split,
        micro_batch=micro_batch,
    )
    return plans.plan(load_run(model).override(*assignments, **values), work)
