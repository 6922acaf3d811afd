"""Recurrences with a diagonal plus rank-one transition, in chunks or token by token.

A state S [key_dim, value_dim] of each head maps keys to values. A token removes, decays, writes and reads:

    S <- diag(exp(g)) S - b (a^T S) + k v^T
    o = S^T r

The delta rule of `scans` is the case a = exp(g) k, b = beta k, with beta v as the value. Here the removed value is
read before the decay, and a, b and k are independent. Peng et al., 2025, RWKV-7 "Goose", equation 17.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

from archwright.parts.leaves import LeafCosts, leaf

LONGEST_CHUNK = 64
"""Most tokens of a chunk. With log decays of at least -1, exponents then stay within +-32."""


class Vectors(NamedTuple):
    """Vectors of each token, [batch, length, heads, key_dim] except for v [batch, length, heads, value_dim]."""

    r: Tensor
    log_decay: Tensor
    k: Tensor
    v: Tensor
    a: Tensor
    b: Tensor


def _costs(
    r: Tensor, log_decay: Tensor, k: Tensor, v: Tensor, *_: Tensor, chunk_size: int = 64, **__: Any
) -> LeafCosts:
    """Return the costs of `rank_one_scan`, with the arithmetic of `chunked`."""
    dtype = torch.promote_types(v.dtype, torch.float32)
    batch, length, heads, value_dim = v.shape
    key_dim = k.shape[-1]
    size = min(chunk_size, LONGEST_CHUNK, length)
    times, pairs, state = batch * heads * -(-length // size), size * size, key_dim * value_dim
    flops = 9 * pairs * key_dim + 7 * pairs * value_dim + 8 * size * state
    moved = size * (5 * key_dim + 2 * value_dim) + 2 * state
    kept = size * (19 * key_dim + 6 * value_dim) + 4 * pairs + 2 * state
    out = torch.empty(v.shape, dtype=v.dtype, device="meta")
    after = torch.empty(batch, heads, key_dim, value_dim, dtype=dtype, device="meta")
    saved = torch.empty(times * kept, dtype=dtype, device="meta")
    return LeafCosts(times * flops, times * moved * dtype.itemsize, (out, after), (saved,))


@leaf(_costs)
def rank_one_scan(
    r: Float[Tensor, "batch length heads key_dim"],
    log_decay: Float[Tensor, "batch length heads key_dim"],
    k: Float[Tensor, "batch length heads key_dim"],
    v: Float[Tensor, "batch length heads value_dim"],
    a: Float[Tensor, "batch length heads key_dim"],
    b: Float[Tensor, "batch length heads key_dim"],
    *,
    state: Float[Tensor, "batch heads key_dim value_dim"],
    resets: Bool[Tensor, "batch length"] | None = None,
    real: Bool[Tensor, "batch length"] | None = None,
    chunk_size: int = 64,
    kernel: str = "chunked",
) -> tuple[
    Float[Tensor, "batch length heads value_dim"], Float[Tensor, "batch heads key_dim value_dim"]
]:
    """Return the outputs in the dtype of v, and the final state in float32 or wider.

    Args:
        log_decay: Logs of decays, from -1 to 0.
        state: State before the first token.
        resets: True for tokens that start with a state of zeros.
        real: False for padding, which leaves the state as it is.
        chunk_size: Tokens computed together. It changes speed and memory, not the result.
        kernel: Name in `RANK_ONE_SCANS`.
    """
    dtype, out_dtype = torch.promote_types(v.dtype, torch.float32), v.dtype
    r, g, k, v, a, b = (x.to(dtype) for x in (r, log_decay, k, v, a, b))
    if real is not None:  # padding neither decays nor removes, and writes nothing
        padding = ~real[..., None, None]
        g, k, b = (x.masked_fill(padding, 0) for x in (g, k, b))
    function = RANK_ONE_SCANS[kernel]
    with torch.autocast("cpu" if v.is_meta else v.device.type, enabled=False):
        out, state = function(Vectors(r, g, k, v, a, b), state.to(dtype), resets, chunk_size)
    return out.to(out_dtype), state


def recurrent(
    vectors: Vectors, state: Tensor, resets: Tensor | None, chunk_size: int
) -> tuple[Tensor, Tensor]:
    """Compute a scan token by token: the formula, and the reference of all kernels."""
    outs = []
    for t in range(vectors.v.shape[1]):
        r, g, k, v, a, b = (x[:, t, :, :, None] for x in vectors)  # [batch, heads, width, 1]
        if resets is not None:
            state = state.masked_fill(resets[:, t, None, None, None], 0)
        state = g.exp() * state - b @ (a.mT @ state) + k @ v.mT
        outs.append((r.mT @ state)[:, :, 0])
    return torch.stack(outs, 1), state


def chunked(
    vectors: Vectors, state: Tensor, resets: Tensor | None, chunk_size: int
) -> tuple[Tensor, Tensor]:
    """Compute a scan in chunks by matrix products; only states go from chunk to chunk.

    With c the sum of g within a chunk, S_i = exp(c_i) S + sum_j exp(c_i - c_j) (k_j v_j^T - b_j u_j^T) over j <= i,
    where u_i = a_i^T S_(i-1) removes a value. So (I + A) U = exp(c - g) a S + B V, with A_ij = a_i^T D_ij b_j,
    B_ij = a_i^T D_ij k_j and D_ij = diag(exp(c_i - g_i - c_j)) for j < i. Factors exp(c_i - m) and exp(m - c_j), with m
    in the middle of the chunk, replace D.
    """
    length, size = vectors.v.shape[1], min(chunk_size, LONGEST_CHUNK, vectors.v.shape[1])
    r, g, k, v, a, b = (_chunks(x, size) for x in vectors)  # [batch, heads, chunks, size, width]
    seen = torch.ones(size, size, dtype=torch.bool, device=v.device).tril()
    if resets is None:
        c, part = g.cumsum(-2), None
    else:
        part = _chunks(resets.long()[..., None, None], size).cumsum(
            -2
        )  # [batch, 1, chunks, size, 1]
        seen = seen & (part == part.mT)
        # A sum from the last reset on: it does not even round with the tokens before.
        c = seen.to(g.dtype) @ g
    # Decays from the state before the chunk, and to the state after it.
    before, after, to_end = (c - g).exp(), c.exp(), (c[..., -1:, :] - c).exp()
    if part is not None:
        before, after = before * (part == 0), after * (part == 0)
        to_end = to_end * (part == part[..., -1:, :])
    carried = after[..., -1, :, None]
    # The result does not depend on m, and neither does its gradient.
    middle = c[..., size // 2, None, :].detach()
    up, down = (c - middle).exp(), (middle - c).exp()
    # One product for all four kinds of pairs: [..., 2 size, key_dim] -> [..., 2 size, 2 size].
    rows = torch.cat((a * up * (-g).exp(), r * up), -2)
    pairs = rows @ torch.cat((b * down, k * down), -2).mT
    removed, mixed = pairs.split(size, -2)
    strictly = seen & ~torch.eye(size, dtype=torch.bool, device=v.device)
    from_b, from_k = removed.masked_fill(~torch.cat((strictly, strictly), -1), 0).split(size, -1)
    mixed = mixed.masked_fill(~torch.cat((seen, seen), -1), 0)  # of -u and v
    solved = torch.linalg.solve_triangular(
        from_b, torch.cat((a * before, from_k @ v), -1), upper=False, unitriangular=True
    )
    reads, constant = solved.split((a.shape[-1], v.shape[-1]), -1)
    writes = torch.cat((b * to_end, k * to_end), -2).mT  # [..., key_dim, 2 size]
    states, written = [], []
    for i in range(v.shape[2]):
        value = torch.cat((-(reads[:, :, i] @ state) - constant[:, :, i], v[:, :, i]), -2)
        states.append(state)
        written.append(value)
        # [batch, heads, key_dim, value_dim]
        state = carried[:, :, i] * state + writes[:, :, i] @ value
    out = (r * after) @ torch.stack(states, 2) + mixed @ torch.stack(written, 2)
    # [batch, heads, chunks, size, value_dim] -> [batch, length, heads, value_dim]
    return out.movedim(1, 3).flatten(1, 2)[:, :length], state


def _chunks(x: Tensor, size: int) -> Tensor:
    """Return [batch, heads, chunks, size, ...] of [batch, length, heads, ...]; zeros fill the last chunk."""
    x = F.pad(x, [0, 0] * (x.ndim - 2) + [0, -x.shape[1] % size])
    # [batch, chunks, size, heads, ...] -> [batch, heads, chunks, size, ...]
    return torch.movedim(x.unflatten(1, (-1, size)), 3, 1)


RankOneKernel = Callable[[Vectors, Tensor, Tensor | None, int], tuple[Tensor, Tensor]]
"""(inputs in float32 or wider, state, resets, chunk size) -> outputs, final state."""
RANK_ONE_SCANS: dict[str, RankOneKernel] = {"recurrent": recurrent, "chunked": chunked}
"""Kernels by name."""
