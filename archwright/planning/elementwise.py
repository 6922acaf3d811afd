"""What a model computes number by number, beside products and attention: norms, sums, activations, gates, rotations,
the loss, and the optimizer's update. Bytes follow from what is read and written; FLOPs are estimated."""

from collections.abc import Iterator

from torch import nn

from archwright.model.language_model import LanguageModel
from archwright.model.stack import Stack
from archwright.optim.groups import build_optimizers
from archwright.optim.muon import Muon
from archwright.planning.activations import layers_of
from archwright.planning.cost import global_tokens, vectors_read
from archwright.planning.counts import part_of
from archwright.planning.stages import PER_WEIGHT, optimizer_bytes
from archwright.spec.run_spec import RunSpec

PER_NORMED = 6
"""FLOPs of a norm for each number that it reads."""
PER_ELEMENT = 2
"""FLOPs of activations, gates and rotations for each number that is read or written."""
PER_LOGIT = (4, 3)
"""FLOPs of the loss for each logit, forward and backward: its exponential, and the difference from its target."""
PER_WEIGHT_MOVED = 12
"""FLOPs of AdamW's step for each weight: two means, their quotient, and the decay."""


def of_layers(
    model: LanguageModel,
    texts: int,
    length: int,
    target_length: int,
    streams: int,
    *,
    decodes: bool,
) -> Iterator[tuple[str, float, float]]:
    """Yield the FLOPs of a forward pass and the numbers that it moves, by operator: norms with the sums of the stream,
    and what branches say that they read and write one by one.

    A norm reads a vector and writes one; a sum reads the stream and what is added, and writes the stream.
    """
    decoder, more = {*model.stack}, global_tokens(model)
    beside = "encoder: " if model.spec.generator.is_none else "generator: "
    for layer, spec in layers_of(model):
        in_decoder = layer in decoder
        if decodes and not in_decoder:
            continue  # the source was read before
        text = 1 if decodes else (target_length if in_decoder else length) + more[layer]
        vectors = texts * text * (1 + streams if in_decoder else 1)
        wiring, dim = layer.residual.costs(layer.groups), spec.dim
        branches = {name: layer.branch(name) for name in layer.branches}
        normed = (wiring.normed + wiring.behind) * dim + sum(
            each.normed_per_token for each in branches.values()
        )
        flops = PER_NORMED * normed + len(branches) * dim
        yield "norms and sums", vectors * flops, vectors * (2 * normed + wiring.summed * dim)
        for name, branch in branches.items():
            numbers = vectors * branch.elementwise_per_token
            part = f"{'' if in_decoder else beside}{part_of(f'layers.{name}')} elementwise"
            yield part, PER_ELEMENT * numbers, numbers
    for stack in model.modules():
        if not isinstance(stack, Stack):
            continue
        in_decoder = not decoder.isdisjoint(stack.stack)
        if decodes and not in_decoder:
            continue
        text, more_vectors = (target_length, streams) if in_decoder else (length, 0)
        vectors = texts * (1 if decodes else text)
        normed = 0.0
        if not isinstance(stack.norm, nn.Identity):
            normed += max(1, more_vectors) * stack.spec.output_dim
        if not isinstance(stack.embedding_norm, nn.Identity):
            normed += (1 + more_vectors) * stack.spec.embedding.sum_width(stack.spec.dim)
        yield "norms and sums", PER_NORMED * vectors * normed, 2 * vectors * normed


def num_logits(
    model: LanguageModel, texts: int, length: int, target_length: int, streams: int
) -> float:
    """Return how many logits a pass of training gives."""
    read = vectors_read(model, length, target_length, streams)
    return sum(texts * length * number * m.d_out for _, m, number in read if m.is_lm_head)


def update_costs(model: LanguageModel, run: RunSpec | None) -> tuple[float, float]:
    """Return the FLOPs and bytes of an optimizer's step: weights, gradients and its state are read, weights and the
    state are written, in 32 bits. Of what Muon makes orthogonal, the products are counted, too, as if each stayed where
    it is computed.

    Args:
        run: whose optimizer it is; None: the default one.
    """
    run = RunSpec(model=model.spec) if run is None else run
    number = model.num_parameters()
    flops = float(PER_WEIGHT_MOVED * number)
    for optimizer in build_optimizers(model, run.optimizer).values():
        if isinstance(optimizer, Muon):
            for group in optimizer.param_groups:
                flops += sum(group["steps"] * _step_of_muon(p) for p in group["params"])
    return flops, 3 * PER_WEIGHT * number + 2 * optimizer_bytes(run, model)


def _step_of_muon(p: nn.Parameter) -> float:
    """Return the FLOPs of (b G + c G^2) X, G = X X^T: 2 m^2 n + m^3 multiplications."""
    m, n = sorted(p.shape[-2:])
    matrices = p.numel() / (m * n)
    return matrices * 2.0 * (2 * m * m * n + m**3)
