"""One further token of plain decoders: the arithmetic of the model without what serves other architectures."""

import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from archwright.model.cache import Cache
from archwright.model.model import Decoder, Layer
from archwright.parts.context import Context
from archwright.parts.embeddings import Head, TokenEmbedding
from archwright.parts.feedforward import Gated, Plain
from archwright.parts.kernels import KERNELS
from archwright.parts.linear import Linear, linear, multiplies
from archwright.parts.masks import Causal, Window, max_length
from archwright.parts.mixers.attention import SoftmaxAttention
from archwright.parts.norms import NoNorm, RMSNorm
from archwright.parts.positions.rotary import Rotary
from archwright.parts.residuals import OutputNorm, PreNorm, SandwichNorm
from archwright.parts.states import KVCache

Map = Callable[[Tensor], Tensor]

PACKED = 2**31
"""Maximum bytes of weights that are copied into the layout of a CPU's library; larger models keep theirs."""


class Engine:
    """Reads one token of each sequence into a filled cache of the model.

    It calls the operations of the model on rows without an axis of time. Each layer is
    x = x + norm_out(f(norm_in(x))) for softmax attention and a dense feed-forward; see `accepts`. On a CPU, products
    use packed copies of the weights, made at the first token; later changes of the weights are not seen.
    """

    def __init__(self, model: Decoder) -> None:
        self.model, self._layers = model, list[_Layer]()

    def _build(self) -> None:
        """Prepare the layers, with packed copies of the weights where these are faster."""
        model, packs = self.model, _packs(self.model)
        self._layers = [_Layer(layer, packs) for layer in model.stack]
        self._head = copy.copy(model.head)
        if packs:
            self._head.product = _packed(model.head)
        self._embedding_norm, self._norm = _norm(model.embedding_norm), _norm(model.norm)

    @staticmethod
    def accepts(model: Decoder) -> bool:
        """True for decoders of plain layers that nothing observes; the model itself reads all others."""
        parts = [*model.modules()]
        observed = any(m._forward_hooks or m._forward_pre_hooks for m in parts)
        outer = type(model) is Decoder and type(model.embedding) is TokenEmbedding
        if observed or not outer or type(model.head) is not Head or model.project_in is not None:
            return False
        return not model.switch_lengths and all(map(_is_plain, model.stack))

    def logits(self, tokens: Int[Tensor, "rows 1"], cache: Cache) -> Float[Tensor, "rows vocab"]:
        """Return the logits after one further token of each sequence."""
        if not self._layers:
            self._build()
        context = cache.context(tokens)
        x = self.model.embedding(tokens[:, 0])  # [rows, dim]
        if self.model.position is not None:
            x = x + self.model.position(context.layout)[:, 0].to(x.dtype)
        x = self._embedding_norm(x)
        for i, layer in enumerate(self._layers):
            x = layer(x, context, cache.states(i)[layer.mixer])
        logits: Tensor = self._head(self._norm(x))
        return logits


class _Layer:
    """A layer as a list of functions."""

    def __init__(self, layer: Layer, packs: bool) -> None:
        (self.mixer,) = layer.mixers()
        residual = layer.residual
        inner, outer = dict(residual.norms.items()), dict[str, nn.Module]()
        if isinstance(residual, OutputNorm):
            inner, outer = outer, inner
        elif isinstance(residual, SandwichNorm):
            outer = dict(residual.out_norms.items())
        self._steps = [
            (
                _norm(inner.get(name)),
                _Attention(layer.branch(name), packs) if name == self.mixer else None,
                _feedforward(layer.branch(name), packs) if name != self.mixer else None,
                _norm(outer.get(name)),
                residual.multiplier[name],
            )
            for name in layer.branches
        ]

    def __call__(self, x: Tensor, context: Context, state: Any) -> Tensor:
        for norm_in, attention, feedforward, norm_out, multiplier in self._steps:
            h = norm_in(x)
            if attention is not None:
                y = attention(h, context, state)
            else:
                assert feedforward is not None
                y = feedforward(h)
            y = norm_out(y)
            x = x + (y if multiplier == 1 else y * multiplier)
        return x


class _Attention:
    """Softmax attention of one query for each sequence."""

    def __init__(self, mixer: Any, packs: bool) -> None:
        self.heads, self.kv, self.width = mixer.num_heads, mixer.num_kv_heads, mixer.head_dim
        self.maps = _maps(packs, mixer.query, mixer.key, mixer.value)
        self.out, self.scale, self.rotary = _map(packs, mixer.out), mixer.scale, mixer.rotary
        has_norm = type(mixer.query_norm) is not NoNorm
        self.norms = (_norm(mixer.query_norm), _norm(mixer.key_norm)) if has_norm else None
        self.norm_flat = mixer.spec.qk_norm_over == "projection"
        self.norm_first = mixer.spec.qk_norm_position == "before"
        self.pattern, self.max_length = mixer.pattern, max_length(mixer.pattern.value)
        halves = self.rotary is not None and self.rotary.value.spec.pairing == "half"
        self.rolls = halves and self.rotary.value.num_rotary == self.width

    def __call__(self, x: Tensor, context: Context, state: KVCache) -> Tensor:
        q, k, v = self.maps(x)
        rows = x.shape[0]
        if self.norms is not None and self.norm_flat:
            q, k = self.norms[0](q), self.norms[1](k)
        # [rows, 1, heads, width]
        q, k = q.view(rows, 1, self.heads, -1), k.view(rows, 1, self.kv, -1)
        if self.norms is not None and self.norm_first and not self.norm_flat:
            q, k = self.norms[0](q), self.norms[1](k)
        if self.rotary is not None:
            q, k = self._rotated(q, context), self._rotated(k, context)
        if self.norms is not None and not self.norm_first:
            q, k = self.norms[0](q), self.norms[1](k)
        # [rows, kv, group or 1, width]
        q, k, v = (
            t.view(rows, self.kv, -1, t.shape[-1]) for t in (q, k, v.view(rows, self.kv, -1))
        )
        keys, values = state.update_one(context.slots(self.max_length), k, v)
        group = q.shape[2]
        if group == 1 and q.itemsize == 2 and q.device.type == "cpu":  # as in `sdpa`
            q = torch.cat((q, q), 2)
        # One query sees all stored keys, except the free slots of shorter texts.
        mask = None if context.layout.index is None else context.mask(self.pattern, 1).dense
        y = F.scaled_dot_product_attention(q, keys, values, mask, scale=self.scale)
        # [rows, heads * value_dim]
        out: Tensor = self.out(y[:, :, :group].reshape(rows, -1))
        return out

    def _rotated(self, x: Tensor, context: Context) -> Tensor:
        rotation = context.rotation(self.rotary)
        if not self.rolls:
            rotated: Tensor = self.rotary.value.rotate(x, rotation)
            return rotated
        cos, sin = rotation.of(x.dtype, x.shape[2])
        turned: Tensor = (x * cos).add_(x.roll(self.width // 2, -1).mul_(sin))
        return turned


def _feedforward(branch: Any, packs: bool) -> Map:
    maps, down, activation = (
        _maps(packs, *branch.inputs),
        _map(packs, branch.down),
        branch.activation,
    )
    return lambda x: down(activation(*maps(x)))


def _maps(packs: bool, *maps: Linear) -> Callable[[Tensor], Sequence[Tensor]]:
    """Return several maps of x as a function; one product if their weights are packed."""
    if not packs:
        each = [(m.product, m.weight, m.bias) for m in maps]
        return lambda x: [product(x, weight, bias) for product, weight, bias in each]
    product, sizes = _packed(*maps), [len(m.weight) for m in maps]
    return lambda x: product(x).split(sizes, -1)


def _map(packs: bool, m: Linear) -> Map:
    if packs:
        return _packed(m)
    product, weight, bias = m.product, m.weight, m.bias
    return lambda x: product(x, weight, bias)


def _packs(model: Decoder) -> bool:
    """True if the products of a CPU are faster with copies of the weights, for which there is room."""
    parameters, maps = [*model.parameters()], [m for m in model.modules() if isinstance(m, Linear)]
    dtypes = {p.dtype for p in parameters}
    return (
        all(p.device.type == "cpu" for p in parameters)
        and sum(p.nbytes for p in parameters) <= PACKED
        and all(m.product is linear for m in maps)
        and torch.backends.mkldnn.is_available()
        and (
            dtypes == {torch.float32} or (dtypes == {torch.bfloat16} and multiplies(torch.bfloat16))
        )
    )


def _packed(*maps: Linear) -> Callable[..., Tensor]:
    """Return x W^T + b with the rows of all maps, and a copy of W in the layout of oneDNN.

    On an EPYC with bfloat16, products of 1 to 16 rows take half to two thirds of the time, and the copy as long as
    three of them.
    """
    weight, bias = torch.cat([m.weight for m in maps]).detach(), None
    if any(m.bias is not None for m in maps):
        each = [weight.new_zeros(len(m.weight)) if m.bias is None else m.bias for m in maps]
        bias = torch.cat(each).detach()
    packed = torch.ops.mkldnn._reorder_linear_weight(weight, None)
    product = torch.ops.mkldnn._linear_pointwise
    return lambda x, *_: product(x, packed, bias, "none", [], "")


def _norm(norm: nn.Module | None) -> Map:
    """Return a norm as a function, with its weight widened once."""
    if norm is None or type(norm) is NoNorm:
        return lambda x: x
    forward: Map = norm.forward
    if type(norm) is not RMSNorm or len(norm.shape) > 1 or norm.scale_in_input_dtype:
        return forward
    eps, weight = norm.eps, norm.factor(torch.float32)
    if weight is None or norm.weight is None or norm.weight.dtype == torch.float64:
        return forward

    def normed(x: Tensor) -> Tensor:
        x32 = x.float()
        y = x32 * torch.rsqrt(x32.square().mean(-1, keepdim=True) + eps)
        return y.mul_(weight).to(x.dtype)

    return normed


def _is_plain(layer: Layer) -> bool:
    """True if `_Layer` computes the same as the layer."""
    wiring, mixers = layer.residual, layer.mixers()
    extra = (layer.embedding_skip, layer.layer_embedding, layer.layer_scalar)
    if type(layer) is not Layer or any(part is not None for part in extra) or len(mixers) != 1:
        return False
    if type(wiring) not in (PreNorm, SandwichNorm, OutputNorm) or wiring.streams != 1:
        return False
    if [*layer.groups] != [*layer.branches]:  # one branch in each group
        return False
    branches = [layer.branch(name) for name in layer.branches]
    return all(_plain_attention(b) or _plain_feedforward(b) for b in branches)


def _plain_attention(branch: nn.Module) -> bool:
    if type(branch) is not SoftmaxAttention or type(branch.pattern.value) not in (Causal, Window):
        return False
    spec, rotary = branch.spec, branch.rotary
    absent: Sequence[Any] = (branch.relative, branch.sinks, branch.temperature, branch.gate)
    absent = (*absent, branch.value_embedding, branch.reads_state_of)
    turns = rotary is None or (type(rotary.value) is Rotary and not rotary.value.follows_length)
    return (
        turns
        and all(x is None for x in absent)
        and branch.key is not None
        and branch.value is not None
        and not branch.provides
        and all(type(m) is Linear for m in (*branch.inputs, branch.out))
        and type(branch.value_norm) is NoNorm
        and type(branch.out_norm) is NoNorm
        and spec.softcap == spec.qkv_clip == "none"
        and spec.value_scale == 1
        and not (spec.qk_norm_over == "projection" and spec.qk_norm_position == "after")
        and branch.kernel is not KERNELS["eager"]
    )


def _plain_feedforward(branch: nn.Module) -> bool:
    if not isinstance(branch, Plain | Gated) or type(branch) not in (Plain, Gated):
        return False
    maps = (*branch.inputs, branch.down)
    return type(branch.norm) is NoNorm and all(type(m) is Linear for m in maps)
