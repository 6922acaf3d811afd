"""Parameters, counted from the built model, and FLOPs, traced."""

import math

from torch import nn

from archwright.data.batches import TextLengths
from archwright.model.language_model import LanguageModel
from archwright.parts.linear import Linear
from archwright.planning.trace import Trace, trace
from archwright.spec.run_spec import RunSpec

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


def flops_per_token(model: LanguageModel, length: int, target_length: int | None = None) -> float:
    """Return the FLOPs of training on one token in a text of `length` tokens: forward and backward.

    3 * (2 * weights of all matrix products + 2 * num_heads * (key's and value's width) * visible keys
    per query), a multiplication and an addition counting as two. Of experts those count that a token goes through.
    Norms, activations and the softmax are left out.

    Args:
        target_length: tokens that a decoder reads next to a source of `length`, by default as many; FLOPs are for each
            token of the source then, and its share of those.
    """
    return (1 + BACKWARD) * sum(forward_flops(model, length, target_length).values())


def forward_flops(
    model: LanguageModel, length: int, target_length: int | None = None
) -> dict[str, float]:
    """Return the FLOPs of a forward pass on one token by part, layers added up.

    Matrix products have the names of `parameters_by_part`; other products of branches, such as scores, stand under
    `layers.<branch>`, `encoder.layers.<branch>` or `generator.layers.<branch>`. See `flops_per_token`.
    """
    found = trace(model, "forward", length=length, target_length=target_length)
    by_part: dict[str, float] = {}
    for key, number in found.flops.items():
        if key.sort != "arithmetic" and number:
            by_part[key.part] = by_part.get(key.part, 0.0) + number / length
    return by_part


def prefill_flops(model: LanguageModel, length: int) -> float:
    """Return the FLOPs of reading a text or source, with logits of one token alone."""
    return _products(trace(model, "prefill", length=length, precision="bf16"))


def next_token_flops(model: LanguageModel, length: int) -> float:
    """Return the FLOPs of the last token of a text (of two stacks, of the decoder), others cached."""
    return _products(trace(model, "decode", length=length, precision="bf16"))


def _products(found: Trace) -> float:
    return found.total("product", "leaf")


def run_flops_per_token(
    run: RunSpec, model: LanguageModel, lengths: TextLengths | None = None
) -> float:
    """Return the FLOPs of training on one token by the objective of a run.

    Attention to all tokens before takes FLOPs per token that are linear in the length of a text, so that those of many
    texts are those of a text of their mean length. For windows they are concave, and this is an upper bound.

    Args:
        lengths: of the texts in its batches. Default: whole windows, an upper bound if texts are shorter.
    """
    length = run.model.context_length
    if lengths is None:
        return flops_per_token(model, length, run.objective.target_length(length))
    below = max(1, math.floor(lengths.mean))
    low, high = (
        flops_per_token(model, n, max(1, round(lengths.target * n))) for n in (below, below + 1)
    )
    return lengths.share * (low + (lengths.mean - below) * (high - low))
