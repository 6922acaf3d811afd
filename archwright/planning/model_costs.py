"""Summary of a model's costs: cache, training FLOPs and training memory."""

from dataclasses import dataclass

from archwright.model.build import build
from archwright.planning.cost import run_flops_per_token
from archwright.planning.memory import cache_bytes, cache_bytes_per_token, writes
from archwright.planning.stages import PER_WEIGHT, optimizer_bytes
from archwright.spec.model_spec import ModelSpec
from archwright.spec.objectives import Objective
from archwright.spec.run_spec import RunSpec


@dataclass(frozen=True)
class ModelCosts:
    """Costs counted from a model on the meta device."""

    cache_per_token: int | None
    """Cache bytes of one more token in 16 bits, before any window is full; None if decoding is impossible."""
    state_per_sequence: int | None
    """Bytes that decoding keeps for a sequence of any length; None if it keeps no such state."""
    flops_per_token: int
    """Training FLOPs (forward and backward) per token of a sequence of the context length.

    With an encoder, this is the length of the source, and the objective sets the length of the target."""
    training_memory: int
    """Bytes of float32 weights, gradients and optimizer state on one device."""


def model_costs(spec: ModelSpec, objective: Objective) -> ModelCosts:
    """Return the costs of a model with the default optimizer, as `plan` counts them.

    Raises:
        UserError: choices that rules between axes forbid.
    """
    model = build(spec, device="meta")
    weights = PER_WEIGHT * model.num_parameters()
    run = RunSpec(model=model.spec, objective=objective)
    decodes = writes(model, objective)
    return ModelCosts(
        cache_bytes_per_token(model) if decodes else None,
        (cache_bytes(model, 0) or None) if decodes else None,
        round(run_flops_per_token(run, model)),
        2 * weights + optimizer_bytes(run, model),
    )
