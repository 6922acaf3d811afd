"""From a spec to a model: the one place where parts meet."""

from collections.abc import Callable, Container, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import archwright.cpu.blockwise  # noqa: F401  # registers the kernel
from archwright.model.across_layers import check
from archwright.model.encoder_decoder import Encoder, EncoderDecoder
from archwright.model.model import Decoder, Layer
from archwright.model.replaced_tokens import Generator, ReplacedTokenDetector
from archwright.parts.branch import Branch
from archwright.parts.embeddings import SEQUENCE_HEADS, TRANSFORMS, Head, TokenEmbedding
from archwright.parts.feedforward import FEEDFORWARDS
from archwright.parts.init import INITS, Init, draws, initialise, reset_buffers
from archwright.parts.layer_ends import LayerEmbedding, LayerScalar
from archwright.parts.linear import Linear
from archwright.parts.mixers import ATTENTIONS, CROSS_ATTENTIONS, RECURRENCES
from archwright.parts.norms import NORMS
from archwright.parts.positions import POSITIONS
from archwright.parts.residuals import RESIDUALS
from archwright.parts.sharing import LayerInfo, Sharing
from archwright.parts.weighted_sum import WeightedSum
from archwright.spec.choice import Choice
from archwright.spec.errors import UserError
from archwright.spec.feedforward import FeedForward
from archwright.spec.mixers import Mixer
from archwright.spec.model_spec import LayerSpec, ModelSpec
from archwright.spec.norms import Norm
from archwright.spec.read import load

BRANCHES = {
    "attention": ATTENTIONS,
    "recurrence": RECURRENCES,
    "cross_attention": CROSS_ATTENTIONS,
    "feedforward": FEEDFORWARDS,
}
"""Registry of each branch of a layer."""
SHARED_SIZES = ("num_heads", "num_kv_heads", "hidden_dim", "shared_hidden_dim")
"""Sizes of a branch that tensor-parallel ranks share."""


def build(
    spec: ModelSpec | str | Path,
    *,
    seed: int = 0,
    device: torch.device | str = "cpu",
    vocab_size: int | None = None,
) -> Decoder:
    """Return the model of a spec, with float32 weights drawn from (seed, parameter name).

    Args:
        device: Device of the weights; "meta" gives shapes without memory or values.
        vocab_size: Vocabulary of the tokenizer, for a spec with vocab_size "auto".

    Raises:
        UserError: The spec breaks rules between axes (a line for each), or a choice has no part.
    """
    spec = load(spec).resolved(vocab_size)
    init: Init = INITS.make(spec.init, spec.num_layers, spec.dim)
    model = _unset(spec, init, device)
    if torch.device(device).type != "meta":
        initialise(model, init, seed)
    return model


def initial_values(
    model: Decoder,
    seed: int,
    *,
    device: torch.device | str,
    names: Container[str] | None = None,
) -> Iterator[tuple[str, Tensor]]:
    """Yield name and initial value of each parameter and buffer of a meta model, one at a time.

    Args:
        device: Device of the model that `build` would return.
        names: Names to yield. Default: all.
    """
    for name, draw in initial_draws(model, seed, device=device):
        if names is None or name in names:
            yield name, draw()


def initial_draws(
    model: Decoder, seed: int, *, device: torch.device | str
) -> Iterator[tuple[str, Callable[[], Tensor]]]:
    """Yield name and drawing function of each parameter and buffer."""
    spec = model.spec
    init: Init = INITS.make(spec.init, spec.num_layers, spec.dim)
    return draws(model, init, seed, device=torch.device(device))


def build_layer(
    spec: ModelSpec, index: int = 0, *, seed: int = 0, device: torch.device | str = "cpu"
) -> Layer:
    """Return one layer of a model with the weights of `build`, called as `layer(x)`.

    Modules that layers of a model share, such as rotary angles, are in `layer.shared`. Positions that a model adds to
    its embedding are not part of a layer.

    Raises:
        UserError: The spec breaks rules between axes (a line for each), or the index has no layer.
    """
    spec = spec.resolved()
    if not 0 <= index < spec.num_layers:
        raise UserError(f"index: found {index}; expected 0 to {spec.num_layers - 1}, of num_layers")
    init: Init = INITS.make(spec.init, spec.num_layers, spec.dim)
    sharing = Sharing()
    with torch.device("meta"):
        encoder = spec.encoder_model
        first = spec.layer_indices.index(spec.layer_indices[index])
        layer = _layer(spec, first, sharing, None if encoder is None else encoder.output_dim)
    parts: dict[str, dict[str, nn.Module]] = {
        "layers": {str(spec.layer_indices[index]): layer},
        "rotaries": sharing.rotaries,
        "relatives": sharing.relatives,
    }
    # Values are drawn by name, so everything is called as it is in a model.
    model = nn.ModuleDict({name: nn.ModuleDict(modules) for name, modules in parts.items()})
    if torch.device(device).type != "meta":
        _take_memory(model, device)
        initialise(model, init, seed)
    layer.shared = nn.ModuleDict({**sharing.rotaries, **sharing.relatives})
    return layer


def build_uninitialized(
    spec: ModelSpec,
    *,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
) -> Decoder:
    """Return the model of a spec with uninitialised memory, to copy weights into."""
    spec = spec.resolved()
    init: Init = INITS.make(spec.init, spec.num_layers, spec.dim)
    model = _unset(spec, init, device, dtype)
    if torch.device(device).type != "meta":
        reset_buffers(model)
    return model


def detector_of(model: ReplacedTokenDetector) -> Decoder:
    """Return a copy of a replaced-token detector without its generator."""
    first = next(model.parameters())
    alone = build_uninitialized(model.spec.detector, device=first.device, dtype=first.dtype)
    weights = model.state_dict()
    alone.load_state_dict({name: weights[name] for name in alone.state_dict()})
    return alone.train(model.training)


def _unset(
    spec: ModelSpec,
    init: Init,
    device: torch.device | str,
    dtype: torch.dtype = torch.float32,
) -> Decoder:
    with torch.device("meta"):
        model = _assemble(spec, init)
    for stack in model.stacks:
        check(stack)
    for parameter in model.parameters():  # buffers stay in float32, which angles need
        parameter.data = parameter.data.to(dtype)
    if torch.device(device).type != "meta":
        _take_memory(model, device)
    return model.use_kernel("blockwise" if torch.device(device).type == "cpu" else "sdpa")


def _take_memory(model: nn.Module, device: torch.device | str) -> None:
    """Allocate every tensor, without values; shared tensors stay shared.

    `to_empty` would use the meta device, which imports a library of algebra.
    """
    made: dict[Tensor, Tensor] = {}
    for module in model.modules():
        for name, old in list(module.named_parameters(recurse=False)):
            if old not in made:
                empty = torch.empty(old.shape, dtype=old.dtype, device=device)
                made[old] = nn.Parameter(empty, requires_grad=old.requires_grad)
            setattr(module, name, made[old])
        for name, buffer in list(module.named_buffers(recurse=False)):
            setattr(module, name, torch.empty(buffer.shape, dtype=buffer.dtype, device=device))


def _assemble(spec: ModelSpec, init: Init) -> Decoder:
    assert spec.vocab_size != "auto"
    embedding = TokenEmbedding(spec.embedding, spec.dim, spec.vocab_size)
    head = _head(spec, embedding, init)
    encoder, sharing = spec.encoder_model, Sharing()
    memory_dim = None if encoder is None else encoder.output_dim
    decoder = _stack(spec, sharing, memory_dim)
    decoder |= {"embedding": embedding, "head": head, "sequence_head": None}
    if not spec.sequence_head.is_none:
        decoder["sequence_head"] = SEQUENCE_HEADS.make(spec.sequence_head, spec.output_dim)
    decoder |= {"masks": sharing.patterns, "lr_scales": init.lr_scales}
    if (beside := spec.generator_model) is not None:
        parts = _stack(beside, Sharing()) | {"head": _head(beside, embedding, init)}
        del parts["position"], parts["embedding_norm"]  # which are those of the other
        return ReplacedTokenDetector(spec, generator=Generator(beside, **parts), **decoder)
    if encoder is None:
        return Decoder(spec, **decoder)
    own = None
    if not spec.encoder.shares_embedding:
        own = TokenEmbedding(encoder.embedding, encoder.dim, int(encoder.vocab_size))
    reader = Encoder(encoder, embedding=own, **_stack(encoder, Sharing()))
    return EncoderDecoder(spec, encoder=reader, **decoder)


def _head(spec: ModelSpec, embedding: TokenEmbedding, init: Init) -> Head:
    """Return the head of a stack, which may share the table."""
    table = embedding.weight if spec.head.tied else None
    width, transform = spec.head_width, None
    if not spec.head.transform.is_none:
        transform = TRANSFORMS.make(spec.head.transform, spec.output_dim, width)
    return Head(
        spec.head,
        spec.output_dim,
        int(spec.vocab_size),
        table,
        width=width,
        transform=transform,
        divisor=init.divisor,
    )


def _stack(spec: ModelSpec, sharing: Sharing, memory_dim: int | None = None) -> dict[str, Any]:
    """Return the arguments of `Stack.assemble`."""
    # Of layers that share their parameters, the first one.
    first = [spec.layer_indices.index(number) for number in range(max(spec.layer_indices) + 1)]
    layers = [_layer(spec, i, sharing, memory_dim) for i in first]
    position, sum_width = None, spec.embedding.sum_width(spec.dim)
    if spec.position.absolute:
        position = POSITIONS.make(spec.position, sum_width, spec.context_length)
    project_in = None
    if sum_width != spec.dim:
        project_in = Linear(sum_width, spec.dim, bias=spec.embedding.project_bias)
    ends_normed = not spec.layer(spec.num_layers - 1).residual.final_norm
    return {
        "position": position,
        "embedding_norm": _norm(spec.embedding.norm, sum_width),
        "project_in": project_in,
        "layers": layers,
        "norm": nn.Identity() if ends_normed else _norm(spec.norm, spec.output_dim),
        "rotaries": sharing.rotaries,
        "relatives": sharing.relatives,
    }


def layer_of_rank(
    spec: ModelSpec, index: int, sharing: Sharing, ranks: int, memory_dim: int | None = None
) -> Layer:
    """Return a layer of a resolved spec with the heads and columns of one of several tensor-parallel ranks."""
    layer = spec.layer(index)
    shares = {name: _share(branch, ranks) for name, branch in layer.branches.items()}
    with torch.device("meta"):
        return _layer(spec, index, sharing, memory_dim, layer.model_copy(update=shares))


def _share(choice: Choice, ranks: int) -> Choice:
    """Return the spec of a branch with the sizes of a rank; fewer heads than ranks are on several of them."""
    update: dict[str, Any] = {}
    for name, value in choice:
        if name in SHARED_SIZES and isinstance(value, int):
            update[name] = -(-value // ranks)
        elif isinstance(value, FeedForward):
            update[name] = _share(value, ranks)
    return choice.model_copy(update=update)


def _layer(
    spec: ModelSpec,
    index: int,
    sharing: Sharing,
    memory_dim: int | None = None,
    layer: LayerSpec | None = None,
) -> Layer:
    """Return a layer of a resolved spec."""
    layer, dim = layer or spec.layer(index), spec.dim
    info = LayerInfo(
        index + 1,
        layer.position,
        sharing,
        int(spec.vocab_size),
        memory_dim,
        spec.layer_order,
        layer.norm,
        spec.kv_sources,
    )
    branches: dict[str, Branch] = {}
    for name, choice in layer.branches.items():
        place = (info,) if isinstance(choice, Mixer) else ()
        branches[name] = BRANCHES[name].make(choice, dim, *place)
    for branch in branches.values():
        for module in branch.modules():
            if isinstance(module, Linear) and module.deepnorm:
                module.init_gain = layer.residual.init_gain
    residual = RESIDUALS.make(layer.residual, dim, info, layer.groups)
    takes = {name: choice.takes for name, choice in layer.mixers.items()}
    # The stream alone at first, as in nanochat.
    embedding_skip = WeightedSum(1.0, 0.0) if layer.residual.embedding_skip else None
    ends = layer.residual
    embedding = None
    if ends.layer_embedding != "none":
        embedding = LayerEmbedding(ends.layer_embedding, dim, info)
    scalar = LayerScalar() if ends.layer_scalar else None
    return Layer(residual, branches, layer.groups, takes, embedding_skip, embedding, scalar)


def _norm(norm: Norm, dim: int) -> nn.Module:
    module: nn.Module = NORMS.make(norm, dim)
    return module
