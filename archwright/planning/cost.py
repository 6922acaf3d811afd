"""Parameters and FLOPs, counted from the built model."""

import math
from collections import Counter
from collections.abc import Iterator

from torch import nn

from archwright.data.batches import TextLengths
from archwright.model.decoder import Decoder
from archwright.model.language_model import LanguageModel
from archwright.model.layer import Layer
from archwright.parts.branch import Branch
from archwright.parts.linear import Linear
from archwright.parts.mixers import AttentionMixer
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
    model: LanguageModel, length: int, target_length: int | None = None, *, cached: bool = False
) -> dict[str, float]:
    """Return the FLOPs of a forward pass on one token by part, layers added up: of matrix products under the names of
    `parameters_by_part`; of what branches do beside them, such as scores, under `layers.<branch>`,
    `encoder.layers.<branch>` or `generator.layers.<branch>`. See `flops_per_token`.

    Args:
        cached: into a cache, where of predicting streams the first alone is computed.
    """
    streams = streams_of(model, cached=cached)
    found = {
        f"{name}.weight": 2.0 * read * m.active_fraction * m.weight.numel()
        for name, m, read in vectors_read(model, length, target_length, streams)
    }
    by_part: dict[str, float] = {}
    for name, number in (*found.items(), *_branches(model, length, target_length, streams)):
        part = ".".join(w for w in name.removesuffix(".weight").split(".") if not w.isdigit())
        by_part[part] = by_part.get(part, 0.0) + number
    return by_part


def prefill_flops(model: LanguageModel, length: int) -> float:
    """Return the FLOPs of reading a text or source, with logits of one token alone."""
    is_decoder = model.spec.encoder_model is None
    by_part = forward_flops(model, length, None if is_decoder else 1, cached=True)
    head = sum(n for part, n in by_part.items() if part == "head" or part.startswith("head."))
    unread = head * (1 - 1 / length) if is_decoder else 0.0
    return length * (sum(by_part.values()) - unread)


def next_token_flops(model: LanguageModel, length: int) -> float:
    """Return the FLOPs of the last token of a text (of two stacks, of the decoder), others cached."""
    streams = streams_of(model, cached=True)
    products = sum(
        read * m.active_fraction * m.weight.numel()
        for _, m, read in next_vectors_read(model, streams)
    )
    more = global_tokens(model)
    between = sum(
        flops_of_next(layer.branch(name), length + more[layer], length, streams)
        for layer in model.stack
        for name in layer.branches
    )
    return 2.0 * products + between


def flops_of_next(branch: Branch, text: int, source: int, streams: int) -> float:
    """Return the FLOPs of the last of `text` tokens in a branch beside its maps, others cached."""
    if branch.source_maps:
        return (1 + streams) * branch.flops_per_token(source)
    before = stream_flops(branch, text - 1, streams) if text > 1 else 0.0
    of_streams = stream_flops(branch, text, streams) - before
    return branch.flops_of_next_token(text) + of_streams


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


def global_tokens(model: LanguageModel) -> dict[Layer, int]:
    """Return how many tokens go through each layer of a model with each text, beside the text's own."""
    encoder = model.spec.encoder_model
    found = dict.fromkeys(model.all_layers, 0 if encoder is None else encoder.global_tokens)
    return found | dict.fromkeys(model.stack, model.spec.global_tokens)


def global_tokens_read(model: LanguageModel) -> dict[nn.Module, int]:
    """Return the number of global tokens that each module in a branch reads with a text."""
    return {
        module: number
        for layer, number in global_tokens(model).items()
        if number
        for branch in map(layer.branch, layer.branches)
        for module in branch.modules()
        if module not in branch.source_maps
    }


def streams_of(model: LanguageModel, *, cached: bool) -> int:
    """Return how many predicting streams a pass computes: all, or into a cache the first alone."""
    return min(model.spec.predicting_streams, 1) if cached else model.spec.predicting_streams


def stream_flops(branch: Branch, text: int, streams: int) -> float:
    """Return the FLOPs of predicting streams in a branch that reads no source, beside its maps. The vectors of stream i
    see themselves and what the tokens i - 1 places before see."""
    itself = branch.flops_per_pair * text if isinstance(branch, AttentionMixer) else 0.0
    found = 0.0
    for missing in (min(i, text) for i in range(streams)):
        seen = text - missing
        found += seen * branch.flops_per_token(seen) if seen else 0.0
        found += missing * branch.flops_per_token(1) + itself
    return found


def stream_vectors(model: LanguageModel, streams: int) -> dict[nn.Module, int]:
    """Return the vectors that modules read for a token of the decoder, if it has predicting streams."""
    if not streams:
        return {}
    found: dict[nn.Module, int] = dict.fromkeys(model.head.modules(), streams)
    for layer in model.stack:
        for branch in map(layer.branch, layer.branches):
            read = (module for module in branch.modules() if module not in branch.source_maps)
            found |= dict.fromkeys(read, 1 + streams)
    if isinstance(model, Decoder) and model.project_in is not None:
        found[model.project_in] = 1 + streams
    return found


def branch_flops(model: LanguageModel, length: int, target_length: int | None = None) -> float:
    """Return the FLOPs per token of all branches beside their maps, such as scores and their use, forward."""
    streams = streams_of(model, cached=False)
    return sum(number for _, number in _branches(model, length, target_length, streams))


def _branches(
    model: LanguageModel, length: int, target_length: int | None, streams: int
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
            flops = text * branch.flops_per_token(length if branch.source_maps else text)
            if in_decoder and streams:
                of_source = streams * flops if branch.source_maps else 0.0
                flops += of_source or stream_flops(branch, text, streams)
            yield f"{'' if in_decoder else beside}layers.{name}", flops / length


def vectors_read(
    model: LanguageModel, length: int, target_length: int | None, streams: int
) -> Iterator[tuple[str, Linear, float]]:
    """Yield each map and how many vectors it reads for each token of a text, or of a source."""
    share = (target_length or length) / length
    of_source, of_both = {*model.source_maps}, {*model.shared_maps}
    times = _times(model)
    of_row = set() if model.sequence_head is None else {*model.sequence_head.modules()}
    more, vectors = global_tokens_read(model), stream_vectors(model, streams)
    for name, m in model.named_modules():
        if isinstance(m, Linear):
            read = 1.0 if m in of_source else 1.0 + share if m in of_both else share
            read *= vectors.get(m, 1)
            read = 1 / length if m in of_row else read + more.get(m, 0) / length
            yield name, m, read * max(1, times[m])


def next_vectors_read(model: LanguageModel, streams: int) -> Iterator[tuple[str, Linear, int]]:
    """Yield each map that reads the next token of a text, whose others are cached, and how many vectors it reads."""
    before = {*model.source_maps}  # what reads a source, or a row's first token, has done so
    if model.sequence_head is not None:
        before |= {m for m in model.sequence_head.modules() if isinstance(m, Linear)}
    times = _times(model)
    vectors = stream_vectors(model, streams)
    for name, m in model.named_modules():
        if isinstance(m, Linear) and m not in before:
            yield name, m, vectors.get(m, 1) * max(1, times[m])


def _times(model: LanguageModel) -> Counter[nn.Module]:
    """Return how often each module of a layer is gone through: that of a shared layer more than once."""
    return Counter(module for layer in model.all_layers for module in layer.modules())
