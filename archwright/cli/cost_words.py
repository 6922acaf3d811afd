"""Costs in words: recorded for published models, counted for others."""

from collections.abc import Mapping

from archwright import format as fmt
from archwright.cli.listings import published_costs
from archwright.spec.model_spec import ModelSpec
from archwright.spec.objectives import Objective
from archwright.spec.read import load

COSTS = {
    "cache per token": ("cache_per_token", fmt.size, "in 16 bits"),
    "state": (
        "state_per_sequence",
        fmt.size,
        "of a sequence of any length, recurrences in 32 bits",
    ),
    "FLOPs per token": ("flops_per_token", fmt.flops, "in training on sequences of the context"),
    "training memory": ("training_memory", fmt.size, "weights, gradients and AdamW's moments"),
}
"""Column, formatter and explanation of each cost."""

Costs = Mapping[str, int | None]
"""Costs by column of `list --wide`; None if the model has no such cost."""


def costs_of(spec: ModelSpec, objective: Objective, *, count: bool) -> Costs | None:
    """Return a model's recorded costs, or count them.

    Returns None for an unpublished or changed model if `count` is False.

    Raises:
        UserError: broken rules between axes.
    """
    published = published_costs()
    if spec.name in published and spec == load(spec.name):
        return published[spec.name]
    if not count:
        return None
    from dataclasses import asdict

    from archwright.planning.model_costs import model_costs

    return asdict(model_costs(spec, objective))


def cost_words(costs: Costs) -> dict[str, str]:
    """Return formatted costs by name."""
    return {
        name: "none" if (number := costs.get(column)) is None else written(number)
        for name, (column, written, _) in COSTS.items()
    }


def cost_differences(
    old: tuple[ModelSpec, Objective], new: tuple[ModelSpec, Objective], *, count: bool
) -> list[tuple[str, str, str]]:
    """Return differing costs as (name, old, new); empty if costs are unknown."""
    costs = costs_of(*old, count=count), costs_of(*new, count=count)
    if costs[0] is None or costs[1] is None:
        return []
    one, other = cost_words(costs[0]), cost_words(costs[1])
    return [(name, one[name], other[name]) for name in one if one[name] != other[name]]
