"""The attention branch with all its options, one query and one key at a time, with numpy in float64."""

import math
from collections.abc import Callable, Mapping

import numpy as np

from archwright.spec import attention as spec
from archwright.spec import norms, scores

Array = np.ndarray
Weights = Mapping[str, Array]
AddedScore = Callable[[int, int, int, Array, Array, float], float]
"""(head, query, key, query's vector, key's vector, scale) -> what is added to a score."""

LAYER_NUMBER = 3
"""Of the layer that an attention is tried as."""


def attention(
    choice: spec.SoftmaxAttention,
    weights: Weights,
    x: Array,
    seen: Array,
    *,
    theta: float | None = None,
    added: AddedScore | None = None,
) -> Array:
    """Return the branch of x [batch, length, dim] with weights by name.

    Args:
        seen: True where a query (second axis) sees a key (third axis).
        theta: base of rotary frequencies, for pairs (i, i + d/2); none turn without.
        added: what positions add to a score.
    """
    heads, kv, scale = choice.num_heads, choice.num_kv_heads, score_scale(choice)
    assert heads != "auto"
    assert kv != "auto"
    rows = []
    for row, sees in zip(x, seen, strict=True):
        q, k, v = vectors(choice, weights, row, theta)
        mixed = np.zeros((*q.shape[:2], v.shape[-1]))
        for t, h in np.ndindex(len(row), heads):
            g = h // (heads // kv)
            visible = np.flatnonzero(sees[t])
            scores = []
            for i in visible:
                score = scale * float(q[t, h] @ k[i, g])
                if choice.softcap != "none":
                    score = choice.softcap * math.tanh(score / choice.softcap)
                if added is not None:
                    score += added(h, t, i, q[t, h], k[i, g], scale)
                scores.append(score)
            total = sum(map(math.exp, scores))
            if choice.sinks:
                total += math.exp(weights["sinks"][h])
            for score, i in zip(scores, visible, strict=True):
                mixed[t, h] += math.exp(score) / total * v[i, g]
        if choice.gate != "none":
            gate = 1 / (1 + np.exp(-linear(weights, "gate", row)))
            mixed *= gate.reshape(*mixed.shape[:2], -1)
        joined = normed(choice.out_norm, weights, "out_norm", mixed.reshape(len(row), -1))
        rows.append(linear(weights, "out", joined))
    return np.stack(rows)


def vectors(
    choice: spec.SoftmaxAttention, weights: Weights, row: Array, theta: float | None
) -> list[Array]:
    """Return queries, keys and values [length, heads, head_dim] of a row, as they enter scores."""
    q, k, v = (linear(weights, name, row) for name in ("query", "key", "value"))
    if choice.qkv_clip != "none":
        q, k, v = (np.minimum(np.maximum(y, -choice.qkv_clip), choice.qkv_clip) for y in (q, k, v))
    assert choice.head_dim != "auto"
    q, k = (y.reshape(len(row), -1, choice.head_dim) for y in (q, k))
    v = v.reshape(len(row), kv_heads(choice), -1)
    for place in ("before", "after"):
        if choice.qk_norm_position == place:
            q, k = (
                over_heads(choice, weights, f"{name}_norm", y)
                for name, y in (("query", q), ("key", k))
            )
        if place == "before" and theta is not None:
            q, k = turned(q, theta), turned(k, theta)
    v = normed(choice.v_norm, weights, "value_norm", v) * choice.value_scale
    if isinstance(choice.query_temperature, scores.LogQueryTemperature):
        for t in range(len(q)):
            step = math.floor(
                (t + choice.query_temperature.offset) / choice.query_temperature.period
            )
            q[t] = q[t] * (1 + choice.query_temperature.coefficient * math.log(1 + step))
    return [q, k, v]


def kv_heads(choice: spec.SoftmaxAttention) -> int:
    assert choice.num_kv_heads != "auto"
    return choice.num_kv_heads


def score_scale(choice: spec.SoftmaxAttention) -> float:
    assert choice.head_dim != "auto"
    match choice.scale:
        case scores.SqrtScale(dim=dim):
            return 1 / math.sqrt(choice.head_dim if dim == "auto" else dim)
        case scores.InverseScale(numerator=numerator):
            return numerator / choice.head_dim
        case scores.FixedScale(value=value):
            return value
        case scores.InverseLayerScale():
            return 1 / math.sqrt(choice.head_dim) / LAYER_NUMBER
        case scores.NoScale():
            return 1.0
    raise AssertionError(choice.scale)


def linear(weights: Weights, name: str, x: Array) -> Array:
    return x @ weights[f"{name}.weight"].T + weights.get(f"{name}.bias", 0.0)


def over_heads(choice: spec.SoftmaxAttention, weights: Weights, name: str, y: Array) -> Array:
    """Norm queries or keys over each head or the whole projection; weights follow by their shapes."""
    if choice.qk_norm_over == "projection":
        flat = y.reshape(len(y), -1)
        return normed(choice.qk_norm, weights, name, flat).reshape(y.shape)
    shape = y.shape[1:] if choice.qk_norm_over == "per_head" else y.shape[2:]
    if f"{name}.weight" in weights:
        assert weights[f"{name}.weight"].shape == shape
    return normed(choice.qk_norm, weights, name, y)


def normed(choice: norms.Norm, weights: Weights, name: str, y: Array) -> Array:
    if isinstance(choice, norms.NoNorm):
        return y
    assert isinstance(choice, norms.RMSNorm | norms.LayerNorm)
    if isinstance(choice, norms.LayerNorm):
        y = y - y.mean(-1, keepdims=True)
    y = y / np.sqrt((y * y).mean(-1, keepdims=True) + choice.eps)
    return y * weights.get(f"{name}.weight", 1.0) + weights.get(f"{name}.bias", 0.0)


def turned(y: Array, theta: float) -> Array:
    half = y.shape[-1] // 2
    pairs = y[..., :half] + 1j * y[..., half:]
    angles = np.arange(len(y))[:, None] * theta ** (-2 * np.arange(half) / y.shape[-1])
    pairs = pairs * np.exp(1j * angles)[:, None]
    return np.concatenate((pairs.real, pairs.imag), -1)
