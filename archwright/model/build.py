"""From a spec to a model: the one place where parts meet."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from archwright.model.decoder import Decoder
from archwright.model.layer import Layer
from archwright.parts.attention import ATTENTIONS, OutsideAttention
from archwright.parts.embeddings import TRANSFORMS, Head, TokenEmbedding
from archwright.parts.feedforward import FEEDFORWARDS
from archwright.parts.init import INITS, Init, initialise, reset_buffers
from archwright.parts.linear import Linear
from archwright.parts.masks import MASKS, MaskPattern
from archwright.parts.norms import NORMS
from archwright.parts.positions import POSITIONS
from archwright.parts.residuals import RESIDUALS
from archwright.spec.attention import (
    Attention,
    LatentAttention,
    MaskedAttention,
    NoAttention,
    SoftmaxAttention,
)
from archwright.spec.embeddings import NoTransform
from archwright.spec.errors import UserError
from archwright.spec.feedforward import Experts, FeedForward, Hidden, NoFeedForward
from archwright.spec.masks import Mask
from archwright.spec.model_spec import LayerSpec, ModelSpec
from archwright.spec.norms import NoNorm, Norm
from archwright.spec.positions import NoPosition, Position
from archwright.spec.residuals import DeepNorm
from archwright.spec.sizes import key_dim, turning_dim

UNSHRUNK = (
    *("query", "key", "query_down", "query_up", "latent", "rope_key", "key_up"),
    *("router", "shared_gate"),
)
"""Maps whose outputs weigh what is added to the stream, or are normed before they become part of it."""


def build(
    spec: ModelSpec,
    *,
    seed: int = 0,
    device: torch.device | str = "cpu",
    vocab_size: int | None = None,
) -> Decoder:
    """Return the model of a spec, with float32 weights drawn from (seed, parameter name).

    Args:
        device: where the weights live; "meta" gives shapes without memory or values.
        vocab_size: the tokenizer's, for a spec whose vocab_size is "auto".

    Raises:
        UserError: rules between axes that the spec breaks, one line each; a choice without a part.
    """
    spec = spec.resolved(vocab_size)
    init: Init = INITS.make(spec.init, spec.num_layers, spec.dim)
    model = _unset(spec, init, device)
    if torch.device(device).type != "meta":
        initialise(model, init, seed)
    return model


def build_layer(
    spec: ModelSpec, index: int = 0, *, seed: int = 0, device: torch.device | str = "cpu"
) -> Layer:
    """Return one layer of a model, with the weights that `build` gives it, to be called by itself: `layer(x)`.

    What it shares with other layers of a model, rotary angles or a table of distances, is its own here, under
    `shared`. Positions that a model adds to its embedding are no part of a layer.

    Raises:
        UserError: rules between axes that the spec breaks, one line each; no layer of this number.
    """
    spec = spec.resolved()
    if not 0 <= index < spec.num_layers:
        raise UserError(f"index: found {index}; expected 0 to {spec.num_layers - 1}, of num_layers")
    init: Init = INITS.make(spec.init, spec.num_layers, spec.dim)
    shared = _Shared()
    with torch.device("meta"):
        layer = _layer(spec.layer(index), spec, shared, index + 1)
    parts: dict[str, dict[str, nn.Module]] = {
        "layers": {str(index): layer},
        "rotaries": shared.rotaries,
        "relatives": shared.relatives,
    }
    # Values are drawn by name, so everything is called as it is in a model.
    model = nn.ModuleDict({name: nn.ModuleDict(modules) for name, modules in parts.items()})
    if torch.device(device).type != "meta":
        _take_memory(model, device)
        initialise(model, init, seed)
    layer.shared = nn.ModuleDict({**shared.rotaries, **shared.relatives})
    return layer


def build_uninitialized(
    spec: ModelSpec,
    *,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
) -> Decoder:
    """Return the model of a spec as `build` does, for weights that are to be copied in: they have memory but
    no values yet."""
    spec = spec.resolved()
    init: Init = INITS.make(spec.init, spec.num_layers, spec.dim)
    model = _unset(spec, init, device, dtype)
    if torch.device(device).type != "meta":
        reset_buffers(model)
    return model


def _unset(
    spec: ModelSpec,
    init: Init,
    device: torch.device | str,
    dtype: torch.dtype = torch.float32,
) -> Decoder:
    with torch.device("meta"):
        model = _assemble(spec, init)
    for parameter in model.parameters():  # buffers stay wide
        parameter.data = parameter.data.to(dtype)
    if torch.device(device).type != "meta":
        _take_memory(model, device)
    return model.use_kernel("blockwise" if torch.device(device).type == "cpu" else "sdpa")


def _take_memory(model: nn.Module, device: torch.device | str) -> None:
    """Give every tensor memory without values; what modules share they go on sharing. `to_empty` would ask the
    meta device, whose Python loads a library of algebra."""
    made: dict[Tensor, Tensor] = {}
    for module in model.modules():
        for name, old in list(module.named_parameters(recurse=False)):
            if old not in made:
                empty = torch.empty(old.shape, dtype=old.dtype, device=device)
                made[old] = nn.Parameter(empty, requires_grad=old.requires_grad)
            setattr(module, name, made[old])
        for name, buffer in list(module.named_buffers(recurse=False)):
            setattr(module, name, torch.empty(buffer.shape, dtype=buffer.dtype, device=device))


@dataclass
class _Shared:
    """What layers share by name: masks and position encodings, one for each distinct choice."""

    masks: dict[str, MaskPattern] = field(default_factory=dict)
    rotaries: dict[str, nn.Module] = field(default_factory=dict)
    relatives: dict[str, nn.Module] = field(default_factory=dict)
    choices: dict[str, Any] = field(default_factory=dict)
    """What each of them was made from."""

    def mask(self, choice: Mask, num_heads: int) -> str:
        """Return the name of a mask, made if it is new; where heads see differently, for their number."""
        given = (choice, num_heads) if getattr(choice, "per_head", False) else (choice,)
        return self._named("mask", self.masks, given, lambda: MASKS.make(*given))

    def rotary(self, choice: Position, head_dim: int) -> str:
        """Return the name of a rotary encoding, made if it is new; nothing for other positions."""
        if choice.absolute or choice.scores or isinstance(choice, NoPosition):
            return ""
        key = (choice, head_dim)
        return self._named("rotary", self.rotaries, key, lambda: _rotary(choice, head_dim))

    def relative(
        self, choice: Position, *sizes: int, two_way: bool
    ) -> tuple[nn.Module | None, bool]:
        """Return what is added to scores, and whether the model owns it; None for other positions."""
        if not choice.scores:
            return None, False

        def new() -> nn.Module:
            module: nn.Module = POSITIONS.make(choice, *sizes, two_way=two_way)
            return module

        if not getattr(choice, "shared", False):
            return new(), False
        name = self._named("relative", self.relatives, (choice, *sizes, two_way), new)
        return self.relatives[name], True

    def _named(self, axis: str, made: dict[str, Any], choice: Any, new: Callable[[], Any]) -> str:
        for name in made:
            if self.choices[name] == choice:
                return name
        name = f"{axis}_{len(made)}"
        self.choices[name], made[name] = choice, new()
        return name


def _rotary(choice: Position, head_dim: int) -> nn.Module:
    """Make a part that computes tables from its spec. Arithmetic on the meta device is written in Python,
    and loads the compiler, which takes longer than building the model."""
    with torch.device("cpu"):
        made: nn.Module = POSITIONS.make(choice, head_dim)
    return made.to("meta")


def _assemble(spec: ModelSpec, init: Init) -> Decoder:
    shared = _Shared()
    assert spec.vocab_size != "auto"
    layers = [_layer(spec.layer(i), spec, shared, i + 1) for i in range(spec.num_layers)]
    position = None
    if spec.position.absolute:
        position = POSITIONS.make(spec.position, spec.dim, spec.context_length)
    embedding = TokenEmbedding(spec.embedding, spec.dim, spec.vocab_size)
    table = embedding.weight if spec.head.tied else None
    ends_normed = not spec.layer(spec.num_layers - 1).residual.final_norm
    return Decoder(
        spec,
        embedding=embedding,
        position=position,
        embedding_norm=_norm(spec.embedding.norm, spec.dim),
        layers=layers,
        norm=nn.Identity() if ends_normed else _norm(spec.norm, spec.dim),
        head=_head(spec, table, init),
        masks=shared.masks,
        rotaries=shared.rotaries,
        relatives=shared.relatives,
        lr_scales=init.lr_scales,
    )


def _head(spec: ModelSpec, table: nn.Parameter | None, init: Init) -> Head:
    assert spec.vocab_size != "auto"
    assert spec.embedding.dim != "auto"
    width, transform = spec.embedding.dim, None
    if not isinstance(choice := spec.head.transform, NoTransform):
        transform = TRANSFORMS.make(choice, spec.dim, width, _norm)
    return Head(
        spec.head,
        spec.dim,
        spec.vocab_size,
        table,
        width=width,
        transform=transform,
        divisor=init.divisor,
    )


def _layer(layer: LayerSpec, spec: ModelSpec, shared: _Shared, number: int) -> Layer:
    attention = feedforward = None
    mask, rotary, takes = "", "", None
    if isinstance(layer.attention, MaskedAttention):
        assert layer.attention.num_heads != "auto"
        mask = shared.mask(layer.attention.mask, layer.attention.num_heads)
        rotary = shared.rotary(layer.position, turning_dim(layer.attention, spec.dim))
        attention = _attention(layer, layer.attention, spec.dim, shared, mask, rotary, number)
    elif not isinstance(layer.attention, NoAttention):
        attention, takes = _outside_attention(layer.attention, spec.dim), layer.attention.takes
    if not isinstance(layer.feedforward, NoFeedForward):
        feedforward = _feedforward(layer.feedforward, spec.dim)
    branches = {"attention": attention, "feedforward": feedforward}
    if isinstance(layer.residual, DeepNorm):
        _shrink(layer.residual, branches)
    residual = RESIDUALS.make(
        layer.residual,
        [name for name, branch in branches.items() if branch is not None],
        lambda: _norm(layer.norm, spec.dim),
    )
    return Layer(residual, attention, feedforward, mask=mask, rotary=rotary, takes=takes)


def _attention(
    layer: LayerSpec,
    attention: MaskedAttention,
    dim: int,
    shared: _Shared,
    mask: str,
    rotary: str,
    number: int,
) -> nn.Module:
    assert attention.num_heads != "auto"
    two_way = shared.masks[mask].lookahead != 0
    sizes = (dim, attention.num_heads, key_dim(attention, dim))
    relative, is_shared = shared.relative(layer.position, *sizes, two_way=two_way)
    module: nn.Module = ATTENTIONS.make(
        attention,
        dim,
        **_norms_inside(attention),
        rotary=shared.rotaries.get(rotary),
        relative=relative,
        shared=is_shared,
        layer_number=number,
    )
    return module


def _outside_attention(attention: Attention, dim: int) -> nn.Module:
    module: nn.Module = ATTENTIONS.make(attention, dim)
    if not isinstance(module, OutsideAttention):
        raise UserError(
            f'attention.kind = "{attention.kind}": {type(module).__name__} has no method flops_per_token(length); '
            "give it one, so that it is not counted as nothing"
        )
    return module


def _feedforward(choice: FeedForward, dim: int) -> nn.Module:
    """Return a branch; one from outside is made of its spec and dim alone, where it asks for no norm."""
    hidden = choice.expert if isinstance(choice, Experts) else choice
    normed = isinstance(hidden, Hidden) and not isinstance(hidden.hidden_norm, NoNorm)
    given = {"new_norm": _norm} if normed else {}
    module: nn.Module = FEEDFORWARDS.make(choice, dim, **given)
    return module


def _norms_inside(attention: MaskedAttention) -> dict[str, nn.Module | None]:
    """Return the norms of an attention by the names it gives them."""
    if isinstance(attention, LatentAttention):
        query_rank, kv_rank = attention.query_rank, attention.kv_rank
        assert kv_rank != "auto"
        return {
            "query_norm": None if query_rank == "none" else _norm(attention.norm, query_rank),
            "latent_norm": _norm(attention.norm, kv_rank),
        }
    num_heads, num_kv_heads = attention.num_heads, attention.num_kv_heads
    head_dim = attention.head_dim
    assert num_heads != "auto"
    assert num_kv_heads != "auto"
    assert head_dim != "auto"
    assert attention.value_head_dim != "auto"
    return {
        "query_norm": _norm_of_heads(attention, num_heads, head_dim),
        "key_norm": _norm_of_heads(attention, num_kv_heads, head_dim),
        "value_norm": _norm(attention.v_norm, attention.value_head_dim),
        "out_norm": _norm(attention.out_norm, num_heads * attention.value_head_dim),
    }


def _norm_of_heads(attention: SoftmaxAttention, num_heads: int, head_dim: int) -> nn.Module:
    """Return the norm of queries or keys, over what the spec says."""
    if attention.qk_norm_over == "projection":
        return _norm(attention.qk_norm, num_heads * head_dim)
    if attention.qk_norm_over == "head":
        return _norm(attention.qk_norm, head_dim)
    module: nn.Module = NORMS.make(attention.qk_norm, head_dim, heads=num_heads)
    return module


def _shrink(residual: DeepNorm, branches: Mapping[str, nn.Module | None]) -> None:
    """Give all maps but those of queries, keys, latents and gates of experts the smaller initial values of
    DeepNorm."""
    assert residual.gain != "auto"
    for branch in branches.values():
        for name, module in branch.named_modules() if branch is not None else ():
            if isinstance(module, Linear) and name not in UNSHRUNK:
                module.init_gain = residual.gain


def _norm(norm: Norm, dim: int) -> nn.Module:
    module: nn.Module = NORMS.make(norm, dim)
    return module
