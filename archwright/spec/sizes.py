"""Widths of a model's parts as numbers, where a spec leaves them open."""

import math
from typing import TYPE_CHECKING, Any

from archwright.spec.attention import LatentAttention, MaskedAttention
from archwright.spec.choice import AutoWidth
from archwright.spec.feedforward import Hidden
from archwright.spec.init import GPT2

if TYPE_CHECKING:
    from archwright.spec.model_spec import ModelSpec

AUTO_HEAD_DIM = 64
"""Least width of a head where neither num_heads nor head_dim is given."""


def attention_factor(scaling: dict[str, Any]) -> float:
    """Return what YaRN (Peng et al., 2023, eq. 22) and LongRoPE multiply cosines and sines by."""
    log = math.log(scaling.get("factor", 1.0))
    if scaling["kind"] == "longrope":
        return math.sqrt(1 + log / math.log(max(2, scaling["original_length"])))
    return 0.1 * log + 1


def embedding_dim(model: "ModelSpec") -> int:
    """Return the width of the table of embeddings as a number."""
    return model.dim if model.embedding.dim == "auto" else model.embedding.dim


def embedding_std(model: "ModelSpec") -> float:
    """Return the standard deviation of embeddings as a number."""
    if isinstance(model.init, GPT2):
        return model.init.std
    return embedding_dim(model) ** -0.5 if model.head.tied else 1.0


def heads(attention: MaskedAttention, dim: int) -> dict[str, int]:
    """Return the number of heads and their widths as numbers, by the names of their fields."""
    if isinstance(attention, LatentAttention):
        return _latent_heads(attention, dim)
    num_heads = _num_heads(attention.num_heads, attention.head_dim, dim)
    head_dim = _given(attention.head_dim, max(1, dim // num_heads))
    return {
        "num_heads": num_heads,
        "num_kv_heads": _given(attention.num_kv_heads, num_heads),
        "head_dim": head_dim,
        "value_head_dim": _given(attention.value_head_dim, head_dim),
    }


def _latent_heads(attention: LatentAttention, dim: int) -> dict[str, int]:
    """Widths that are left open have the proportions of DeepSeek-V2, section 2.1.4."""
    num_heads = _num_heads(attention.num_heads, attention.nope_head_dim, dim)
    nope = _given(attention.nope_head_dim, max(1, dim // num_heads))
    return {
        "num_heads": num_heads,
        "kv_rank": _given(attention.kv_rank, 4 * nope),
        "nope_head_dim": nope,
        "rope_head_dim": _given(attention.rope_head_dim, max(2, nope // 4 * 2)),
        "value_head_dim": _given(attention.value_head_dim, nope),
    }


def _num_heads(number: AutoWidth, width: AutoWidth, dim: int) -> int:
    if number != "auto":
        return number
    if width != "auto":
        return max(1, dim // width)
    most = max(1, dim // AUTO_HEAD_DIM)
    return next(n for n in range(most, 0, -1) if dim % n == 0)


def _given(value: AutoWidth, auto: int) -> int:
    return auto if value == "auto" else value


def key_dim(attention: MaskedAttention, dim: int) -> int:
    """Return the width of a head's query and key."""
    sizes = heads(attention, dim)
    if isinstance(attention, LatentAttention):
        return sizes["nope_head_dim"] + sizes["rope_head_dim"]
    return sizes["head_dim"]


def turning_dim(attention: MaskedAttention, dim: int) -> int:
    """Return how wide the part of a head is that rotary positions act on."""
    name = "rope_head_dim" if isinstance(attention, LatentAttention) else "head_dim"
    return heads(attention, dim)[name]


def hidden_dim(feedforward: Hidden, dim: int) -> int:
    """Return the hidden width as a number."""
    if feedforward.hidden_dim != "auto":
        return feedforward.hidden_dim
    if feedforward.ratio != "none":
        return max(8, 8 * round(feedforward.ratio * dim / 8))
    return round_up(round(feedforward.usual_ratio * dim), 64)


def round_up(value: int, multiple: int) -> int:
    """Return the smallest multiple of `multiple` that is at least `value`."""
    return -(-value // multiple) * multiple
