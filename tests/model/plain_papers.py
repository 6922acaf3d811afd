"""Decoders as their papers write them, in NumPy and float64, a text at a time. Shapes: x [length, dim],
heads [num_heads, length, head_dim], scores [num_heads, length, length].

Every detail is a value, so that a test can change one and see that it counts."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Weights = Mapping[str, Array]
Function = Callable[[Array], Array]
Norm = Callable[..., Array]
Sees = Callable[[int, int, int, int], bool]
"""Whether, in a layer, a query sees a key, in a head: (layer, query, key, head)."""


def layer_norm(x: Array, weight: Array, bias: Array | float = 0.0, eps: float = 1e-5) -> Array:
    """Ba et al., 2016, equation 4."""
    centred = x - x.mean(-1, keepdims=True)
    return centred / np.sqrt((centred**2).mean(-1, keepdims=True) + eps) * weight + bias


def rms_norm(x: Array, weight: Array, bias: Array | float = 0.0, eps: float = 1e-5) -> Array:
    """Zhang and Sennrich, 2019, equation 4."""
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + eps) * weight + bias


def dynamic_tanh(x: Array, weight: Array, bias: Array | float, eps: float, alpha: Array) -> Array:
    """Zhu et al., 2025, equation 3."""
    y: Array = weight * np.tanh(alpha * x) + bias
    return y


def linear(w: Weights, name: str, x: Array) -> Array:
    """y = W x + b, with the b that there is."""
    y: Array = x @ w[f"{name}.weight"].T + w.get(f"{name}.bias", np.zeros(1))
    return y


def sigmoid(x: Array) -> Array:
    y: Array = 1 / (1 + np.exp(-x))
    return y


def relu(x: Array) -> Array:
    return np.maximum(x, 0)


def silu(x: Array) -> Array:
    return x * sigmoid(x)


def gelu(x: Array) -> Array:
    """Hendrycks and Gimpel, 2016: x Phi(x)."""
    return x * 0.5 * (1 + np.vectorize(math.erf)(x / math.sqrt(2)))


def gelu_tanh(x: Array) -> Array:
    """Hendrycks and Gimpel, 2016, section 2: the approximation that GPT-2 computes."""
    y: Array = 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
    return y


def plain(f: Function) -> Callable[[Weights, str, Array], Array]:
    """Vaswani et al., 2017, equation 2, with a function f."""
    return lambda w, at, x: linear(w, f"{at}.down", f(linear(w, f"{at}.up", x)))


def gated(f: Function) -> Callable[[Weights, str, Array], Array]:
    """Shazeer, 2020, equation 6: (f(x W) * x V) W2."""

    def forward(w: Weights, at: str, x: Array) -> Array:
        return linear(w, f"{at}.down", f(linear(w, f"{at}.gate", x)) * linear(w, f"{at}.up", x))

    return forward


def gegelu(limit: float, plus: float = 1.0) -> Callable[[Weights, str, Array], Array]:
    """Phi-3 small's published code: a sigmoid(1.702 a) (b + 1), a cut above, b on both sides."""

    def forward(w: Weights, at: str, x: Array) -> Array:
        a = np.minimum(linear(w, f"{at}.gate", x), limit)
        b = np.clip(linear(w, f"{at}.up", x), -limit, limit)
        return linear(w, f"{at}.down", a * sigmoid(1.702 * a) * (b + plus))

    return forward


def sinusoids(positions: Array, dim: int, *, by_turns: bool) -> Array:
    """Vaswani et al., 2017, section 3.5, by turns; Dai et al., 2019, published code: sines, then cosines."""
    found = np.zeros((len(positions), dim))
    for row, position in enumerate(positions):
        for pair in range(dim // 2):
            angle = position / 10_000 ** (2 * pair / dim)
            at = (2 * pair, 2 * pair + 1) if by_turns else (pair, pair + dim // 2)
            found[row, at] = math.sin(angle), math.cos(angle)
    return found


def rope(theta: float) -> Callable[[Array], Array]:
    """Su et al., 2021, equation 13, on pairs (i, i + d/2), each as one complex number."""

    def turn(heads: Array) -> Array:
        half = heads.shape[-1] // 2
        angles = np.outer(range(heads.shape[1]), theta ** (-np.arange(half) / half))
        turned = (heads[..., :half] + 1j * heads[..., half:]) * np.exp(1j * angles)
        return np.concatenate((turned.real, turned.imag), -1)

    return turn


Bias = Callable[[Weights, str, Array, float], Array]
"""What is added to scores: of the weights, the layer's name, the queries and their scale."""


def t5_bias(max_distance: int = 128, num_buckets: int = 32) -> Bias:
    """Raffel et al., 2019, section 2.1: a number per head for each bucket of distances."""

    def bucket(distance: int) -> int:
        exact = num_buckets // 2
        if distance < exact:
            return distance
        share = math.log(distance / exact) / math.log(max_distance / exact)
        return min(num_buckets - 1, exact + int(share * (num_buckets - exact)))

    def bias(w: Weights, at: str, q: Array, scale: float) -> Array:
        (table,) = (w[name] for name in w if name.startswith("relatives."))
        length = q.shape[1]
        rows = [[table[bucket(max(0, i - j))] for j in range(length)] for i in range(length)]
        return np.moveaxis(np.array(rows), -1, 0)

    return bias


def transformer_xl(
    *, u: float = 1.0, v: float = 1.0, sign: int = 1, by_turns: bool = False
) -> Bias:
    """Dai et al., 2019, section 3.3, terms b to d: q_i W r_(i-j) + u k_j + v W r_(i-j), scaled as q_i k_j."""

    def bias(w: Weights, at: str, q: Array, scale: float) -> Array:
        num_heads, length, width = q.shape
        own = {n: w[f"{at}.attention.position.{n}"] for n in ("content_bias", "distance_bias")}
        of_content, of_place = (own[n].reshape(num_heads, width) for n in own)
        k = w["keys"]
        found = np.zeros((num_heads, length, length))
        distances = np.arange(1 - length, length)
        vectors = sinusoids(sign * distances, w["embedding.weight"].shape[1], by_turns=by_turns)
        r = linear(w, f"{at}.attention.position.distance", vectors)
        r = r.reshape(-1, num_heads, width)
        for i in range(length):
            place = r[i - np.arange(length) + length - 1]  # [keys, heads, head_dim]
            found[:, i] = np.einsum("hd,jhd->hj", q[:, i] + v * of_place, place)
            found[:, i] += u * np.einsum("hd,hjd->hj", of_content, k)
        return scale * found

    return bias


def embedding_skip(w: Weights, at: str, x: Array, embedding: Array) -> Array:
    """Nanochat's published code: resid_lambdas[i] x + x0_lambdas[i] x0."""
    y: Array = w[f"{at}.embedding_skip.first"] * x + w[f"{at}.embedding_skip.second"] * embedding
    return y


Values = Callable[[Weights, str, Array, Array, Array], Array]
"""What values become, of the weights, the layer's name, the values [num_kv_heads, length, width], the rows that the
layer's table has for the tokens, shaped alike, and what attention reads."""


def scaled_values(w: Weights, at: str, v: Array, rows: Array, x: Array) -> Array:
    """Modded-nanogpt's published code: lambdas[0] v + lambdas[1] ve."""
    own, looked_up = (w[f"{at}.attention.value_mix.sum.{name}"] for name in ("first", "second"))
    y: Array = own * v + looked_up * rows
    return y


def gated_values(channels: int, factor: float = 2.0) -> Values:
    """Nanochat's published code: v + 2 sigmoid(ve_gate(x[..., :32])) ve, with a gate for each head."""

    def values(w: Weights, at: str, v: Array, rows: Array, x: Array) -> Array:
        gate = factor * sigmoid(linear(w, f"{at}.attention.value_mix.gate", x[:, :channels]))
        return v + gate.T[..., None] * rows

    return values


def causal(layer: int, i: int, j: int, head: int) -> bool:
    """Vaswani et al., 2017, section 3.2.3."""
    return j <= i


def banded(width: int, first: int = 1) -> Sees:
    """Brown et al., 2020, section 2.1: dense and locally banded layers take turns."""
    return lambda layer, i, j, head: j <= i and (layer % 2 != first or i - j < width)


def block_sparse(
    size: int, local: int, stride: int, *, first: int = 0, step: int = 1, ahead: int = 1
) -> Sees:
    """Abdin et al., 2024, Phi-3, section 2 and published code: the last `local` blocks, and every `stride`-th,
    which are others in each head; every other layer is dense."""

    def sees(layer: int, i: int, j: int, head: int) -> bool:
        near = i // size - j // size < local
        return j <= i and (
            layer % 2 != first or near or (j // size + ahead + step * head) % stride == 0
        )

    return sees


@dataclass(frozen=True)
class Paper:
    """A decoder; what is not said is that of GPT-2."""

    heads: int = 4
    kv_heads: int = 4
    by_groups: bool = True
    """Neighbouring heads share a key, as published; else heads take the keys by turns."""
    norm: Norm = layer_norm
    eps: float = 1e-5
    wiring: str = "pre"
    embedding_scale: float = 1.0
    added: Callable[[Weights, int], Array] | None = None
    """Positions that are added to the embedding, of so many tokens."""
    turn: Callable[[Array], Array] | None = None
    bias: Bias | None = None
    sees: Sees = causal
    scale: Callable[[int], float] = lambda width: width**-0.5
    """What q k is multiplied by, of the width of a head."""
    feedforward: Callable[[Weights, str, Array], Array] = plain(gelu_tanh)
    logit_scale: float = 1.0
    from_embedding: Callable[[Weights, str, Array, Array], Array] | None = None
    """What a layer begins with, of the weights, the layer's name, the stream, and the one before the first layer."""
    values: Values | None = None

    def logits(self, w: Weights, tokens: Array) -> Array:
        """Return the logits after each token of a text."""
        x = self.embedding_scale * w["embedding.weight"][tokens]
        if self.added is not None:
            x = x + self.added(w, len(tokens))
        embedding, w = x, {**w, "tokens": tokens}
        num_layers = 1 + max(int(n.split(".")[1]) for n in w if n.startswith("layers."))
        for layer in range(num_layers):
            if self.from_embedding is not None:
                x = self.from_embedding(w, f"layers.{layer}", x, embedding)
            x = self._layer(w, layer, x)
        if self.wiring != "post":
            x = self._normed(w, "norm", x)
        return self.logit_scale * linear({"head.weight": w["head.weight"]}, "head", x)

    def _layer(self, w: Weights, layer: int, x: Array) -> Array:
        at = f"layers.{layer}"
        shared = f"{at}.residual.norms.shared.weight" in w
        names = ("shared", "shared") if shared else ("attention", "feedforward")
        first, second = (f"{at}.residual.norms.{name}" for name in names)
        if self.wiring == "parallel":
            h = self._normed(w, first, x)
            return x + self._attention(w, layer, h) + self.feedforward(w, f"{at}.feedforward", h)
        if self.wiring == "post":
            x = self._normed(w, first, x + self._attention(w, layer, x))
            return self._normed(w, second, x + self.feedforward(w, f"{at}.feedforward", x))
        x = x + self._attention(w, layer, self._normed(w, first, x))
        return x + self.feedforward(w, f"{at}.feedforward", self._normed(w, second, x))

    def _normed(self, w: Weights, at: str, x: Array) -> Array:
        learned = {"alpha": w[f"{at}.alpha"]} if f"{at}.alpha" in w else {}
        weight, bias = w.get(f"{at}.weight", 1.0), w.get(f"{at}.bias", 0.0)
        return self.norm(x, weight, bias, self.eps, **learned)

    def _attention(self, w: Weights, layer: int, x: Array) -> Array:
        at = f"layers.{layer}"
        q = self._heads(w, f"{at}.attention.query", x, self.heads)
        head = np.arange(self.heads)
        reads = head * self.kv_heads // self.heads if self.by_groups else head % self.kv_heads
        k = self._heads(w, f"{at}.attention.key", x, self.kv_heads)[reads]
        v = self._heads(w, f"{at}.attention.value", x, self.kv_heads)[reads]
        if self.values is not None and (table := f"{at}.attention.value_embedding.weight") in w:
            v = self._heads(w, f"{at}.attention.value", x, self.kv_heads)
            rows = w[table][w["tokens"]].reshape(len(x), self.kv_heads, -1)
            v = self.values(w, at, v, np.moveaxis(rows, 1, 0), x)[reads]
        if self.turn is not None:
            q, k = self.turn(q), self.turn(k)
        scale = self.scale(q.shape[-1])
        scores = scale * np.einsum("hid,hjd->hij", q, k)
        if self.bias is not None:
            scores = scores + self.bias({**w, "keys": k}, at, q, scale)
        for (h, i, j), _ in np.ndenumerate(scores):
            if not self.sees(layer, i, j, h):
                scores[h, i, j] = -np.inf
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        mixed = np.einsum("hij,hjd->ihd", weights / weights.sum(-1, keepdims=True), v)
        return linear(w, f"{at}.attention.out", mixed.reshape(len(x), -1))

    def _heads(self, w: Weights, name: str, x: Array, number: int) -> Array:
        return np.moveaxis(linear(w, name, x).reshape(len(x), number, -1), 1, 0)
