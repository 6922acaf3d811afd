"""Parameters and FLOPs, counted from the built model."""

from torch import nn

from archwright.model.language_model import LanguageModel
from archwright.parts.branch import Branch
from archwright.parts.linear import Linear

BACKWARD = 2
"""Cost of a backward pass in forward passes: one product for the input's gradient, one for the weight's."""


def parameters_by_part(model: nn.Module) -> dict[str, int]:
    """Return the number of parameters of each part, layers added up; a tied table counts once, as embedding.

    Keys are dotted names without layer indices: `embedding`, `layers.attention.query`, `head`.
    """
    counts: dict[str, int] = {}
    for name, parameter in model.named_parameters():
        words = [word for word in name.split(".")[:-1] if not word.isdigit()]
        part = ".".join(words) or name
        counts[part] = counts.get(part, 0) + parameter.numel()
    return counts


def active_parameters(model: nn.Module) -> int:
    """Return the number of parameters that one token meets: all but those of experts it is not sent to."""
    unused = (
        (1 - m.active_fraction) * sum(p.numel() for p in m.parameters(recurse=False))
        for m in model.modules()
        if isinstance(m, Linear)
    )
    return sum(p.numel() for p in model.parameters()) - round(sum(unused))


def flops_per_token(model: LanguageModel, length: int) -> float:
    """Return the FLOPs of training on one token in a text of `length` tokens: forward and backward.

    3 * (2 * weights of all matrix products + 2 * num_heads * (key's and value's width) * visible keys
    per query), a multiplication and an addition counting as two. Of experts those count that a token goes through.
    Norms, activations and the softmax are left out.
    """
    products = sum(
        m.active_fraction * m.weight.numel() for m in model.modules() if isinstance(m, Linear)
    )
    return (1 + BACKWARD) * (2.0 * products + branch_flops(model, length))


def branch_flops(model: LanguageModel, length: int) -> float:
    """Return the FLOPs per token of all branches beside their maps, such as scores and their use, forward."""
    branches = (module for module in model.modules() if isinstance(module, Branch))
    return sum((branch.flops_per_token(length) for branch in branches), 0.0)
