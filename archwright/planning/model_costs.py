"""What stands of a model's costs on one line: cache, FLOPs and memory of training."""

from dataclasses import dataclass

from archwright.model.build import build
from archwright.planning.cost import run_flops_per_token
from archwright.planning.memory import cache_bytes_per_token, writes
from archwright.planning.stages import PER_WEIGHT, optimizer_bytes
from archwright.spec.model_spec import ModelSpec
from archwright.spec.objectives import Objective
from archwright.spec.run_spec import RunSpec


@dataclass(frozen=True)
class ModelCosts:
    """Costs that are counted from a model built without memory."""

    cache_per_token: int | None
    """Bytes that another token takes in 16 bits, before any window ends; None: the model does not go on with a text
    behind a cache."""
    flops_per_token: int
    """Of training on a token in a text of the context, forward and backward; with an encoder, on a token of a source
    as long, with the target that the objective makes."""
    training_memory: int
    """Bytes of weights, gradients and AdamW's moments in 32 bits, on one device."""


def model_costs(spec: ModelSpec, objective: Objective) -> ModelCosts:
    """Return what a model costs, as `plan` counts it, with the default optimizer.

    Raises:
        UserError: what rules between axes forbid, one line each.
    """
    model = build(spec, device="meta")
    weights = PER_WEIGHT * model.num_parameters()
    run = RunSpec(model=model.spec, objective=objective)
    return ModelCosts(
        cache_bytes_per_token(model) if writes(model, objective) else None,
        round(run_flops_per_token(run, model)),
        2 * weights + optimizer_bytes(run, model),
    )
