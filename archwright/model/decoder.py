"""The decoder: tokens in, logits out."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import cast

import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from archwright.model.cache import Cache
from archwright.model.layer import Layer
from archwright.parts.embeddings import Head, TokenEmbedding
from archwright.parts.kernels import KERNELS, prepare
from archwright.parts.masks import AttentionMask, MaskPattern
from archwright.parts.positions import rotation
from archwright.parts.token_layout import places
from archwright.spec.errors import UserError
from archwright.spec.model_spec import ModelSpec


@dataclass(frozen=True)
class Output:
    """Model outputs."""

    logits: Float[Tensor, "batch length vocab"]
    """Unnormalised log-probabilities of the next token."""


class Decoder(nn.Module):
    """A stack of layers between an embedding and a head; `archwright.build` makes it from a spec.

    Args:
        rates: what AdamW's rate is multiplied by, for roles of parameters that have another than 1.
    """

    def __init__(
        self,
        spec: ModelSpec,
        *,
        embedding: TokenEmbedding,
        position: nn.Module | None,
        embedding_norm: nn.Module,
        layers: list[Layer],
        norm: nn.Module,
        head: Head,
        masks: Mapping[str, MaskPattern],
        rotaries: Mapping[str, nn.Module],
        relatives: Mapping[str, nn.Module],
        lr_scales: Mapping[str, float],
    ) -> None:
        super().__init__()
        self.spec, self.masks, self.lr_scales = spec, dict(masks), dict(lr_scales)
        self.embedding, self.position = embedding, position
        self.embedding_norm = embedding_norm
        self.rotaries, self.relatives = nn.ModuleDict(rotaries), nn.ModuleDict(relatives)
        self.layers = nn.ModuleList(layers)
        self.norm, self.head = norm, head

    def forward(
        self,
        tokens: Int[Tensor, "batch length"],
        *,
        position_ids: Int[Tensor, "*rows length"] | None = None,
        segment_ids: Int[Tensor, "batch length"] | None = None,
        padding_mask: Bool[Tensor, "batch length"] | None = None,
        prefix_lengths: Int[Tensor, " batch"] | None = None,
        cache: Cache | None = None,
    ) -> Output:
        """Return logits for the token after each token.

        Args:
            position_ids: where the tokens stand, [batch, length] or [length]; by default 0, 1, 2, ...
                among the real tokens of each document.
            segment_ids: tokens with different ids do not see each other.
            padding_mask: True where a token is real; padding is seen by no token, on whichever side
                it stands.
            prefix_lengths: how many tokens of each row see each other whole, for prefix masks.
            cache: what was read before, from `new_cache`; the tokens go on from there and are added to it.

        Raises:
            ValueError: shapes that do not fit, a text longer than learned positions, or one that grows
                beyond one of `switch_lengths` behind a cache.
        """
        hidden = self.hidden(
            tokens,
            position_ids=position_ids,
            segment_ids=segment_ids,
            padding_mask=padding_mask,
            prefix_lengths=prefix_lengths,
            cache=cache,
        )
        return Output(logits=self.head(hidden))

    def hidden(
        self,
        tokens: Int[Tensor, "batch length"],
        *,
        position_ids: Int[Tensor, "*rows length"] | None = None,
        segment_ids: Int[Tensor, "batch length"] | None = None,
        padding_mask: Bool[Tensor, "batch length"] | None = None,
        prefix_lengths: Int[Tensor, " batch"] | None = None,
        cache: Cache | None = None,
    ) -> Float[Tensor, "batch length dim"]:
        """Return the vectors the head reads, after the last norm; arguments as those of `forward`."""
        given = (tokens, position_ids, segment_ids, padding_mask, prefix_lengths)
        where = places(*given) if cache is None else cache.places(*given)
        views = {
            name: AttentionMask(mask, where) if cache is None else cache.view(name, where)
            for name, mask in self.masks.items()
        }
        rotations = {name: rotation(rotary, where) for name, rotary in self.rotaries.items()}
        batch = {
            "position_ids": where.position_ids_or_range(),
            "segment_ids": segment_ids,
            "padding_mask": padding_mask,
        }
        x = self.embedding(tokens)
        if self.position is not None:
            x = x + self.position(where).to(x.dtype)
        x = self.embedding_norm(x)
        x = F.dropout(x, self.spec.embedding.dropout, self.training)
        for i, layer in enumerate(cast(Iterable[Layer], self.layers)):
            memory = None if cache is None else cache.layer(i)
            view = views.get(layer.mask)
            if view is not None:
                prepare(getattr(layer.attention, "kernel", None), view)
            others = {} if layer.takes is None else {"batch": batch}
            x = layer(x, view, rotations.get(layer.rotary), memory, **others)
        normed: Tensor = self.norm(x)
        return normed

    @property
    def can_cache(self) -> bool:
        """Whether every attention keeps what it has read; one from outside may not."""
        layers = cast(Iterable[Layer], self.layers)
        return all(layer.attention is None or bool(layer.mask) for layer in layers)

    @property
    def can_generate_indefinitely(self) -> bool:
        """Whether a text may go on for ever: no layer reaches back without limit, and no position ends."""
        bounded = all(mask.lookback is not None for mask in self.masks.values())
        return bounded and not self.spec.position.absolute

    @property
    def switch_lengths(self) -> tuple[int, ...]:
        """Lengths of a text beyond which what was read of it must be read again: all angles are then others
        (LongRoPE's original_length)."""
        lengths = (getattr(rotary, "switch_length", None) for rotary in self.rotaries.values())
        return tuple(sorted({length for length in lengths if length is not None}))

    def new_cache(self) -> Cache:
        """Return an empty cache, to be given to `forward`.

        Raises:
            UserError: a mask that lets tokens see what follows, or an attention without a cache.
        """
        return Cache(self.masks, _masks_of_layers(self), self.switch_lengths)

    def use_kernel(self, name: str) -> "Decoder":
        """Compute attention with one of the kernels: eager (the reference), sdpa, blockwise,
        flex."""
        for layer in self.layers:
            if hasattr(layer.attention, "kernel"):
                layer.attention.kernel = KERNELS[name]
        return self

    def num_parameters(self) -> int:
        """Return the number of parameters; a tied table counts once."""
        return sum(p.numel() for p in self.parameters())

    def __repr__(self) -> str:
        return describe(self.spec, self.num_parameters())


def _masks_of_layers(model: Decoder) -> Iterator[str]:
    """Yield the name of each layer's mask, empty where it has no attention."""
    for i, layer in enumerate(cast(Iterable[Layer], model.layers)):
        if layer.attention is not None and not layer.mask:
            raise UserError(
                f"layers.{i}.attention: {type(layer.attention).__name__} keeps nothing of what it has "
                "read; expected text as a whole, without a cache"
            )
        yield layer.mask


def describe(spec: ModelSpec, num_parameters: int) -> str:
    """Say in one line what a model chose."""
    kinds = {spec.layers.names(spec.num_layers)[i]: None for i in range(spec.num_layers)}
    layers = "; ".join(_describe_layer(spec, kind) for kind in kinds)
    head = "tied" if spec.head.tied else "untied"
    name = f"{spec.name}: " if spec.name else ""
    millions = num_parameters / 1e6
    size = f"{millions:.3g}M" if millions < 1000 else f"{millions / 1000:.3g}B"
    return (
        f"Decoder({name}{size} parameters, dim {spec.dim}, "
        f"{spec.num_layers} layers of {layers}, {head} head of {spec.vocab_size})"
    )


def _describe_layer(spec: ModelSpec, kind: str) -> str:
    layer = spec.layers_by_kind[kind]
    parts = [f"{layer.residual.kind}-norm {layer.norm.kind}", f"{layer.position.kind} positions"]
    attention = layer.attention.model_dump()
    if attention["kind"] in _HEADS:
        heads = _HEADS[attention["kind"]].format(**attention)
        if attention["value_head_dim"] != attention.get("head_dim", attention["value_head_dim"]):
            heads += f", values of {attention['value_head_dim']}"
        parts.append(f"{attention['mask']['kind']} attention in {heads}")
    feedforward = layer.feedforward.model_dump()
    if "hidden_dim" in feedforward:
        parts.append(f"{feedforward['kind']} {feedforward['hidden_dim']}")
    if feedforward["kind"] == "experts":
        words = "{top_k} of {num_experts} experts {expert[kind]} {expert[hidden_dim]}"
        parts.append(words.format(**feedforward))
    return ("" if kind == "default" else f"{kind}: ") + ", ".join(parts)


_HEADS = {
    "softmax": "{num_heads}/{num_kv_heads} heads of {head_dim}",
    "latent": "{num_heads} heads of {nope_head_dim} + {rope_head_dim}, latent {kv_rank}",
}
"""How the heads of an attention are told, by its kind."""
