"""Parameters and FLOPs, counted from the built model."""

from collections import Counter
from collections.abc import Iterator

from torch import nn

from archwright.model.language_model import LanguageModel
from archwright.model.layer import Layer
from archwright.parts.linear import Linear
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
        target_length: tokens that a decoder reads beside a source of `length`, by default as many; FLOPs are for each
            token of the source then, and its share of those.
    """
    return (1 + BACKWARD) * sum(forward_flops(model, length, target_length).values())


def forward_flops(
    model: LanguageModel, length: int, target_length: int | None = None
) -> dict[str, float]:
    """Return the FLOPs of a forward pass on one token by part, layers added up: of matrix products under the names of
    `parameters_by_part`; of what branches do beside them, such as scores, under `layers.<branch>`,
    `encoder.layers.<branch>` or `generator.layers.<branch>`. See `flops_per_token`."""
    found = {f"{name}.weight": 2.0 * n for name, n in _products(model, length, target_length)}
    by_part: dict[str, float] = {}
    for name, number in (*found.items(), *_branches(model, length, target_length)):
        part = ".".join(w for w in name.removesuffix(".weight").split(".") if not w.isdigit())
        by_part[part] = by_part.get(part, 0.0) + number
    return by_part


def next_token_flops(model: LanguageModel, length: int) -> float:
    """Return the FLOPs of a forward pass on the last token of a text of `length` tokens, the others being cached."""
    products = sum(number for _, number in _products(model, length, None))
    before = (length - 1) * branch_flops(model, length - 1) if length > 1 else 0.0
    return 2.0 * products + length * branch_flops(model, length) - before


def run_flops_per_token(run: RunSpec, model: LanguageModel) -> float:
    """Return the FLOPs of training on one token by the objective of a run."""
    length = run.model.context_length
    return flops_per_token(model, length, run.objective.target_length(length))


def global_tokens(model: LanguageModel) -> dict[Layer, int]:
    """Return how many tokens go through each layer of a model with each text, beside the text's own."""
    encoder = model.spec.encoder_model
    found = dict.fromkeys(model.all_layers, 0 if encoder is None else encoder.global_tokens)
    return found | dict.fromkeys(model.stack, model.spec.global_tokens)


def global_tokens_read(model: LanguageModel) -> dict[nn.Module, int]:
    """Return how many tokens each module in a branch reads with each text, beside the text's own; no module where none
    does."""
    return {
        module: number
        for layer, number in global_tokens(model).items()
        if number
        for branch in map(layer.branch, layer.branches)
        for module in branch.modules()
        if module not in branch.source_maps
    }


def branch_flops(model: LanguageModel, length: int, target_length: int | None = None) -> float:
    """Return the FLOPs per token of all branches beside their maps, such as scores and their use, forward."""
    return sum(number for _, number in _branches(model, length, target_length))


def _branches(
    model: LanguageModel, length: int, target_length: int | None
) -> Iterator[tuple[str, float]]:
    """Yield the FLOPs per token of each branch beside its maps."""
    target_length = target_length or length
    decoder, more = {*model.stack}, global_tokens(model)
    beside = "encoder." if model.spec.generator.is_none else "generator."
    for layer in model.all_layers:
        in_decoder = layer in decoder
        text = (target_length if in_decoder else length) + more[layer]
        for name in layer.branches:
            branch = layer.branch(name)
            # Cross-attention reads all of the source, other branches their own text.
            flops = branch.flops_per_token(length if branch.source_maps else text)
            yield f"{'' if in_decoder else beside}layers.{name}", flops * (text / length)


def _products(
    model: LanguageModel, length: int, target_length: int | None
) -> Iterator[tuple[str, float]]:
    """Yield the multiplications for a token of each matrix product."""
    share = (target_length or length) / length
    of_source, of_both = {*model.source_maps}, {*model.shared_maps}
    # A layer that is shared is gone through more than once.
    times = Counter(module for layer in model.all_layers for module in layer.modules())
    of_row = set() if model.sequence_head is None else {*model.sequence_head.modules()}
    more = global_tokens_read(model)
    for name, m in model.named_modules():
        if isinstance(m, Linear):
            read = 1.0 if m in of_source else 1.0 + share if m in of_both else share
            read = 1 / length if m in of_row else read + more.get(m, 0) / length
            yield name, read * m.active_fraction * m.weight.numel() * max(1, times[m])
