"""Linear recurrences over the tokens of a text, in chunks or token by token.

A state S [key_dim, value_dim] of each head maps keys to values. A token multiplies it by a decay, writes, and reads:

    S <- exp(g) S        one g for a head, or one for each key channel
    S <- S + k v^T                     added: linear attention, SSD (Mamba-2), gated linear attention
    S <- S + k (beta (v - S^T k))^T    delta rule: replaces the value of a key (DeltaNet, gated DeltaNet, KDA)
    o = S^T q
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

from archwright.parts.leaves import LeafCosts, leaf
from archwright.spec.errors import UserError

LEAST_LOG_DECAY = -64.0
"""Log of the strongest decay. exp(-64) = 2e-28 is below the rounding of float64, and -inf would give inf - inf."""


class ScanInputs(NamedTuple):
    """What tokens write and read in a scan, and what a mixer's `output` needs in addition."""

    q: Float[Tensor, "batch length key_heads key_dim"]
    k: Float[Tensor, "batch length key_heads key_dim"]
    v: Float[Tensor, "batch length heads value_dim"]
    log_decay: Tensor | None = None
    beta: Float[Tensor, "batch length heads"] | None = None
    gate: Any = None


def _costs(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    log_decay: Tensor | None = None,
    beta: Tensor | None = None,
    *,
    chunk_size: int = 64,
    **_: Any,
) -> LeafCosts:
    """Return the costs of `linear_scan`, with the arithmetic of `chunked` for all kernels."""
    dtype = torch.promote_types(v.dtype, torch.float32)
    batch, length, heads, value_dim = v.shape
    costs = linear_scan_costs(
        length,
        heads,
        q.shape[-1],
        value_dim,
        chunk_size=chunk_size,
        delta=beta is not None,
        per_channel=log_decay is not None and log_decay.ndim == 4,
        itemsize=dtype.itemsize,
    )
    out = torch.empty(v.shape, dtype=v.dtype, device="meta")
    state = torch.empty(batch, heads, q.shape[-1], value_dim, dtype=dtype, device="meta")
    kept = torch.empty(batch * round(costs.kept), dtype=dtype, device="meta")
    return LeafCosts(batch * costs.flops, batch * costs.bytes, (out, state), (kept,))


@leaf(_costs)
def linear_scan(
    q: Float[Tensor, "batch length key_heads key_dim"],
    k: Float[Tensor, "batch length key_heads key_dim"],
    v: Float[Tensor, "batch length heads value_dim"],
    log_decay: Tensor | None = None,
    beta: Float[Tensor, "batch length heads"] | None = None,
    *,
    chunk_size: int = 64,
    state: Float[Tensor, "batch heads key_dim value_dim"] | None = None,
    resets: Bool[Tensor, "batch length"] | None = None,
    real: Bool[Tensor, "batch length"] | None = None,
    kernel: str = "chunked",
) -> tuple[
    Float[Tensor, "batch length heads value_dim"], Float[Tensor, "batch heads key_dim value_dim"]
]:
    """Return the outputs in the dtype of v, and the final state in float32 or wider.

    Args:
        q: Queries, scaled as the model asks; neighbouring heads may share one, and its key.
        log_decay: Log of the decay, at most 0: None (no decay), [heads] (fixed), [batch, length, heads], or
            [batch, length, heads, key_dim].
        beta: Strength of the delta rule; None: values are added.
        chunk_size: Tokens computed at once. It changes speed and memory, not the result.
        state: State before the first token; None: zeros.
        resets: True for tokens that start with a state of zeros.
        real: False for padding, which leaves the state as it is.
        kernel: Name in `SCANS`.

    Raises:
        UserError: no kernel has this name.
    """
    if kernel not in SCANS:
        raise UserError(f'scan: found "{kernel}"; expected one of {", ".join(SCANS)}')
    batch, length, heads, value_dim = v.shape
    dtype = torch.promote_types(v.dtype, torch.float32)
    values, beta = v.to(dtype), None if beta is None else beta.to(dtype)
    # [batch, length, heads, key_dim]
    queries, keys = (x.to(dtype).repeat_interleave(heads // x.shape[2], 2) for x in (q, k))
    if log_decay is not None:
        log_decay = log_decay.to(dtype).clamp(min=LEAST_LOG_DECAY)
        if log_decay.ndim == 1:
            log_decay = log_decay.expand(batch, length, heads)
    if real is not None:  # padding does not decay the state, and writes nothing
        padding = ~real[..., None]  # [batch, length, 1]
        if log_decay is not None:
            alike = padding if log_decay.ndim == 3 else padding[..., None]
            log_decay = log_decay.masked_fill(alike, 0)
        if beta is None:
            values = values.masked_fill(padding[..., None], 0)
        else:
            beta = beta.masked_fill(padding, 0)
    if state is None:
        state = values.new_zeros(batch, heads, k.shape[-1], value_dim)
    inputs = ScanInputs(queries, keys, values, log_decay, beta)
    with torch.autocast("cpu" if v.is_meta else v.device.type, enabled=False):
        out, state = SCANS[kernel](inputs, state.to(dtype), resets, chunk_size)
    return out.to(v.dtype), state


def recurrent(
    scan: ScanInputs, state: Tensor, resets: Tensor | None, chunk_size: int
) -> tuple[Tensor, Tensor]:
    """Compute a scan token by token: the formula, and the reference of all kernels."""
    q, k, v, log_decay, beta, _ = scan
    outs = []
    for t in range(v.shape[1]):
        if log_decay is not None:
            g = log_decay[:, t]
            state = state * (g if g.ndim == 3 else g[..., None]).exp()[..., None]
        if resets is not None:
            state = state.masked_fill(resets[:, t, None, None, None], 0)
        # [batch, heads, key_dim, 1] and [batch, heads, 1, value_dim]
        key, value = k[:, t, :, :, None], v[:, t, :, None]
        if beta is not None:
            value = beta[:, t, :, None, None] * (value - key.mT @ state)
        state = state + key @ value
        outs.append((q[:, t, :, None] @ state)[:, :, 0])
    return torch.stack(outs, 1), state


def chunked(
    scan: ScanInputs, state: Tensor, resets: Tensor | None, chunk_size: int
) -> tuple[Tensor, Tensor]:
    """Compute a scan in chunks by matrix products; only states go from chunk to chunk.

    With c the sum of g within a chunk and D_ij = exp(c_i - c_j), j <= i, the values that a chunk writes are
    U - W S for the delta rule, where (I + tril(A, -1)) [U, W] = [beta v, beta exp(c) k], A = beta k k^T * D, and v
    otherwise. Every exponent is at most 0, so that strong decays cannot overflow.

    Source: Dao and Gu (2024), section 6; Yang et al. (2024), Parallelizing linear transformers with the delta rule.
    """
    length, key_dim = scan.q.shape[1], scan.q.shape[-1]
    per_channel = scan.log_decay is not None and scan.log_decay.ndim == 4
    size = _chunk_length(chunk_size, length, per_channel)
    q, k, v = (_chunks(x, size) for x in scan[:3])
    if scan.log_decay is None:
        g = q.new_zeros(1, 1, q.shape[2], size, 1)
    else:  # [batch, heads, chunks, size, key_dim or 1]
        g = _chunks(scan.log_decay if per_channel else scan.log_decay[..., None], size)
    seen = torch.ones(size, size, dtype=torch.bool, device=q.device).tril()
    if resets is None:
        c = g.cumsum(-2)
        from_state, to_state = c.exp(), (c[..., -1:, :] - c).exp()
    else:
        part = _chunks(resets.long()[..., None], size).cumsum(-1)  # [batch, 1, chunks, size]
        seen = seen & (part[..., :, None] == part[..., None, :])
        # A sum from the last reset on: it does not even round with the tokens before.
        c = seen.to(g.dtype) @ g
        from_state = c.exp() * (part == 0)[..., None]
        to_state = (c[..., -1:, :] - c).clamp(max=0).exp() * (part == part[..., -1:])[..., None]
    # Masked before exp: above the diagonal exponents are positive.
    decay = None if per_channel else (c - c.mT).masked_fill(~seen, -torch.inf).exp()
    products = partial(_products, c=c, seen=seen, decay=decay)
    weights = products(q, k)
    writes, carried = (k * to_state).mT, from_state[..., -1, :, None]
    if scan.beta is None:
        values, reads = v, None
    else:
        beta = _chunks(scan.beta, size)[..., None]
        erased = beta * k
        solved = torch.linalg.solve_triangular(
            products(erased, k),
            torch.cat((beta * v, erased * from_state), -1),
            upper=False,
            unitriangular=True,
        )
        values, reads = solved.split((v.shape[-1], key_dim), -1)
    states, written = [], []
    for i in range(q.shape[2]):
        value = values[:, :, i]
        if reads is not None:
            value = value - reads[:, :, i] @ state
        states.append(state)
        written.append(value)
        # [batch, heads, key_dim, value_dim]
        state = carried[:, :, i] * state + writes[:, :, i] @ value
    out = (q * from_state) @ torch.stack(states, 2) + weights @ torch.stack(written, 2)
    # [batch, heads, chunks, size, value_dim] -> [batch, length, heads, value_dim]
    return out.movedim(1, 3).flatten(1, 2)[:, :length], state


def _chunks(x: Tensor, size: int) -> Tensor:
    """Return [batch, heads, chunks, size, ...] of [batch, length, heads, ...]; zeros fill the last chunk."""
    if x.shape[1] % size:
        x = F.pad(x, [0, 0] * (x.ndim - 2) + [0, -x.shape[1] % size])
    # [batch, chunks, size, heads, ...] -> [batch, heads, chunks, size, ...]
    return torch.movedim(x.unflatten(1, (-1, size)), 3, 1).contiguous()


def _products(a: Tensor, b: Tensor, c: Tensor, seen: Tensor, decay: Tensor | None) -> Tensor:
    """Return a_i^T diag(D_ij) b_j if i sees j, else 0: [batch, heads, chunks, size, size]."""
    if decay is not None:
        return (a @ b.mT) * decay
    return _halved_products(a, b, c, seen.ndim > 2).masked_fill(~seen, 0)


def _halved_products(a: Tensor, b: Tensor, c: Tensor, has_resets: bool) -> Tensor:
    """Return sum_d a_id b_jd exp(c_id - c_jd) for j <= i, else 0, without a tensor of [size, size, key_dim].

    Between the halves of a chunk, c at the end of the first half splits the exponent into two that are at most 0.
    Shapes: a, b and c [..., size, key_dim], size a power of 2.
    """
    if a.shape[-2] == 1:
        return (a * b).sum(-1, keepdim=True)
    half = a.shape[-2] // 2
    middle = c[..., half - 1 : half, :]
    after, before = c[..., half:, :] - middle, middle - c[..., :half, :]
    if has_resets:  # positive only across a reset, of which the result is masked
        after, before = after.clamp(max=0), before.clamp(max=0)
    below = (a[..., half:, :] * after.exp()) @ (b[..., :half, :] * before.exp()).mT
    # Both halves at once: [..., 2, half, key_dim] -> [..., 2, half, half]
    a, b, c = (x.unflatten(-2, (2, half)) for x in (a, b, c))
    first, second = _halved_products(a, b, c, has_resets).unbind(-3)
    above = torch.cat((first, torch.zeros_like(first)), -1)
    return torch.cat((above, torch.cat((below, second), -1)), -2)


class ScanCosts(NamedTuple):
    """Costs of a scan for one text, in a forward pass."""

    flops: float
    bytes: float
    """Bytes of its inputs and outputs, and of one state per chunk, written and read: the traffic of a fused kernel."""
    kept: float
    """Numbers that `chunked` keeps for the backward pass."""


def linear_scan_costs(
    length: int,
    heads: int,
    key_dim: int,
    value_dim: int,
    *,
    chunk_size: int = 64,
    delta: bool = False,
    per_channel: bool = False,
    itemsize: int = 4,
) -> ScanCosts:
    """Return the costs of `chunked`; a multiplication and an addition count as two FLOPs."""
    size = _chunk_length(chunk_size, length, per_channel)
    number, pairs, state = -(-length // size), size * size, key_dim * value_dim
    # Per channel, halves of halves multiply only the blocks below the diagonal, and keep both factors of each.
    product = (pairs - size) * key_dim if per_channel else 2 * pairs * key_dim
    inside = 2 * size * key_dim * (size.bit_length() - 1) if per_channel else pairs
    widths, gate = key_dim + value_dim, key_dim if per_channel else 1
    flops = product + 2 * pairs * value_dim + 4 * size * state
    kept = (
        inside
        + pairs * (2 - per_channel)
        + size * (2 * key_dim + 2 * widths + 2 * gate)
        + 2 * state
    )
    if delta:
        flops += product + pairs * widths + 2 * size * state
        kept += inside + pairs + size * (2 * widths + 1)
    moved = size * (2 * widths + gate + delta) + 2 * state
    times = heads * number
    return ScanCosts(times * flops, float(times * itemsize * moved), times * kept)


def _chunk_length(chunk_size: int, length: int, per_channel: bool) -> int:
    size = min(chunk_size, length)
    # `_decayed_products` halves a chunk down to single tokens.
    return 1 << (size - 1).bit_length() if per_channel else size


ScanKernel = Callable[[ScanInputs, Tensor, Tensor | None, int], tuple[Tensor, Tensor]]
"""(inputs in float32 or wider with equal numbers of heads, state, resets, chunk size) -> outputs, final state."""
SCANS: dict[str, ScanKernel] = {"recurrent": recurrent, "chunked": chunked}
"""Kernels by name."""
