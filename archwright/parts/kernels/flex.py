"""torch's FlexAttention: one fused kernel for any mask and elementwise scores, for CUDA.

On a CPU it computes hidden pairs and has no fused backward. There it only serves as a test.
"""

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import (
    AuxRequest,
    BlockMask,
    create_block_mask,
    flex_attention,
)

from archwright.parts.kernels import costs
from archwright.parts.kernels.scores import ElementwiseBias, ScoreMods
from archwright.parts.kernels.sdpa import prepare_dense, sdpa
from archwright.parts.leaves import leaf
from archwright.parts.masks import AttentionMask

RECOMPILES = 64
"""Minimum graphs of one function: kinds of layers, times masks, times lengths, with and without gradients."""


@leaf(costs.fused)
def flex(
    query: Tensor, key: Tensor, value: Tensor, mask: AttentionMask, scores: ScoreMods
) -> Tensor:
    """Reference attention by FlexAttention.

    SDPA replaces it for dropout, for a bias that depends on the query, and for gradients on a CPU.
    """
    trains = _needs_sdpa(mask) and any(x.requires_grad for x in (query, key, value))
    elementwise = isinstance(scores.bias, ElementwiseBias | None)
    if trains or scores.dropout or not elementwise:
        return sdpa(query, key, value, mask, scores)
    q, k, v = (x.transpose(1, 2) for x in (query, key, value))  # [b, heads, t, d]
    # In a compiled layer, FlexAttention is a part of the layer's graph.
    kernel: Callable[..., Any] = flex_attention
    kernel = kernel if torch.compiler.is_compiling() else _flex(q.device.type)
    out, aux = kernel(
        q,
        k,
        v,
        score_mod=_score_mod(mask, scores),
        block_mask=None if mask.is_full else block_mask(mask),
        scale=scores.scale,
        enable_gqa=q.shape[1] != k.shape[1],
        return_aux=AuxRequest(lse=True),
    )
    if scores.sinks is not None:  # the share exp(log Z) / (exp(log Z) + exp(sink))
        share = torch.sigmoid(aux.lse - scores.sinks.to(aux.lse.dtype)[:, None])
        out = out * share[..., None].to(out.dtype)
    # [b, t, heads, e]
    by_token: Tensor = out.transpose(1, 2)
    return by_token


def _needs_sdpa(mask: AttentionMask) -> bool:
    return mask.layout.device.type == "cpu" and torch.is_grad_enabled()


def prepare_blocks(mask: AttentionMask) -> None:
    """Compute the block mask, or the dense mask if SDPA replaces FlexAttention."""
    if _needs_sdpa(mask):
        prepare_dense(mask)
    elif not mask.is_full:
        block_mask(mask)


def block_mask(mask: AttentionMask) -> BlockMask:
    """Return the full, partial and hidden blocks of a mask."""
    return mask.once("flex block mask", _block_mask)


def _block_mask(mask: AttentionMask) -> BlockMask:
    return create_block_mask(
        lambda b, h, q, k: mask.allows(
            b, h, q, k
        ),  # torch counts the arguments of a plain function
        B=mask.num_rows if mask.num_rows > 1 else None,
        H=mask.num_heads if mask.num_heads > 1 else None,
        Q_LEN=mask.layout.length,
        KV_LEN=mask.keys_at.length,
        device=str(mask.layout.device),
    )


def _score_mod(mask: AttentionMask, scores: ScoreMods) -> Callable[..., Tensor] | None:
    """Return the function that caps one score and adds its bias."""
    cap, bias = scores.softcap, scores.bias
    assert isinstance(bias, ElementwiseBias | None)
    if cap is None and bias is None:
        return None
    queries, keys = mask.layout.position_ids_or_range(), mask.keys_at.position_ids_or_range()
    row = 0 if queries.shape[0] == 1 else 1
    key_row = 0 if keys.shape[0] == 1 else 1

    def score_mod(score: Tensor, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        if cap is not None:
            score = cap * torch.tanh(score / cap)
        if bias is not None:
            score = score + bias.value(h, queries[b * row, q], keys[b * key_row, k])
        return score

    return lambda score, b, h, q, k: score_mod(score, b, h, q, k)


@cache
def _flex(device: str) -> Callable[..., Any]:
    """Return the kernel, compiled on CUDA, which would store all scores uncompiled."""
    kernel: Callable[..., Any] = flex_attention
    if device != "cuda":
        return kernel
    allow_recompiles()
    return torch.compile(kernel)


def allow_recompiles() -> None:
    """Allow a graph for each kind of layer or mask; torch gives up silently after 8 of a function."""
    config = torch._dynamo.config
    config.recompile_limit = max(config.recompile_limit, RECOMPILES)
