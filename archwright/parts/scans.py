"""Linear recurrences over the tokens of a text, in chunks or token by token.

A state S [key_dim, value_dim] of each head maps keys to values. A token multiplies it by a decay, writes, and reads:

    S <- exp(g) S        one g for a head, or one for each key channel
    S <- S + k v^T                     added: linear attention, SSD (Mamba-2), gated linear attention
    S <- S + k (beta (v - S^T k))^T    delta rule: replaces the value of a key (DeltaNet, gated DeltaNet, KDA)
    o = S^T q
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from archwright.parts.leaves import LeafCosts, leaf
from archwright.spec.errors import UserError

LEAST_LOG_DECAY = -64.0
"""Log of the strongest decay. exp(-64) = 2e-28 is below the rounding of float64, and -inf would give inf - inf."""
LOG2_E = math.log2(math.e)
LEAST_SOLVED = 8
"""Size of blocks inverted by substitution, which is slower than products for larger ones."""


class ScanInputs(NamedTuple):
    """What tokens write and read in a scan, and what a mixer's `output` needs in addition."""

    q: Float[Tensor, "batch length key_heads key_dim"]
    k: Float[Tensor, "batch length key_heads key_dim"]
    v: Float[Tensor, "batch length heads value_dim"]
    log_decay: Tensor | None = None
    beta: Float[Tensor, "batch length heads"] | None = None
    gate: Any = None


DecayKind = Literal["none", "fixed", "per_head", "per_channel"]


def _decay_kind(log_decay: Tensor | None) -> DecayKind:
    if log_decay is None:
        return "none"
    kinds: dict[int, DecayKind] = {1: "fixed", 3: "per_head", 4: "per_channel"}
    return kinds[log_decay.ndim]


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
        decay=_decay_kind(log_decay),
        key_heads=q.shape[2],
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
    inputs = ScanInputs(q.to(dtype), k.to(dtype), values, log_decay, beta)
    with torch.autocast("cpu" if v.is_meta else v.device.type, enabled=False):
        out, state = SCANS[kernel](inputs, state.to(dtype), resets, chunk_size)
    return out.to(v.dtype), state


def one_key_per_head(scan: ScanInputs) -> ScanInputs:
    """Repeat queries and keys that several heads share."""
    q, k = (x.repeat_interleave(scan.v.shape[2] // x.shape[2], 2) for x in scan[:2])
    return scan._replace(q=q, k=k)


def recurrent(
    scan: ScanInputs, state: Tensor, resets: Tensor | None, chunk_size: int
) -> tuple[Tensor, Tensor]:
    """Compute a scan token by token: the formula, and the reference of all kernels."""
    q, k, v, log_decay, beta, _ = one_key_per_head(scan)
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

    With D_ij the product of the decays of tokens j + 1 to i in a chunk, and F_i that of its tokens up to i, the values
    that a chunk writes are U - W S for the delta rule, where (I + tril(A, -1)) [U, W] = [beta v, beta F k],
    A = beta k k^T * D, and v otherwise. Decays are multiplied, never divided: strong ones cannot overflow, sums of
    logs cannot cancel, and a reset is a decay of 0.

    Source: Dao and Gu (2024), section 6; Yang et al. (2024), Parallelizing linear transformers with the delta rule.
    """
    length, heads = scan.v.shape[1:3]
    if length == 1 and not torch.is_grad_enabled():  # decoding: a quarter of the operations
        return recurrent(scan, state, resets, chunk_size)
    size = _chunk_length(chunk_size, length)
    per_channel = scan.log_decay is not None and scan.log_decay.ndim == 4
    q, k, v = (_chunks(x, size) for x in (one_key_per_head(scan) if per_channel else scan)[:3])
    if scan.log_decay is None:  # [chunks, batch, heads, size, key_dim or 1]
        decay = q.new_ones(1, 1, heads, size, 1)
    else:
        # On a CPU torch's exp2 is 4 times as fast as its exp, and 50 times where results are denormal.
        log_decay = scan.log_decay if per_channel else scan.log_decay[..., None]
        decay = (_chunks(log_decay, size) * LOG2_E).exp2()
    if resets is not None:
        decay = decay.masked_fill(_chunks(resets[..., None, None], size), 0)
    readers = (q,) if scan.beta is None else (q, k)
    if per_channel:
        products, from_start, to_end = _decayed_products(readers, k, decay)
    else:
        one = torch.ones_like(decay)
        (pairs,), from_start, to_end = _decayed_products((one,), one, decay)
        products = [_per_head(x @ k.mT, pairs) for x in readers]
    values, reads = v, None
    if scan.beta is not None:
        beta = _chunks(scan.beta[..., None], size)
        right = torch.cat((beta * v, _per_head(k, beta * from_start)), -1)
        solved = _Solve.apply(beta * products[1], right)  # type: ignore[no-untyped-call]
        values, reads = solved.split((v.shape[-1], k.shape[-1]), -1)
    carried = from_start[..., -1, :, None].expand(len(q), -1, -1, -1, -1)
    states, written, last = _States.apply(  # type: ignore[no-untyped-call]
        values, reads, _per_head(k, to_end), carried, state
    )
    # Products of all heads of all chunks: [chunks * batch * heads, size, value_dim].
    out = torch.baddbmm(
        *(x.flatten(0, 2) for x in (products[0] @ written, _per_head(q, from_start), states))
    ).view_as(v)
    # [chunks, batch, heads, size, value_dim] -> [batch, length, heads, value_dim]
    return out.permute(1, 0, 3, 2, 4).flatten(1, 2)[:, :length], last


def _per_head(x: Tensor, factor: Tensor) -> Tensor:
    """Multiply [chunks, batch, key_heads, ...] by a factor of each head [..., heads, ...]."""
    # A key head and its heads: [chunks, batch, key_heads, heads of a key, ...]
    y: Tensor = (x[:, :, :, None] * factor.unflatten(2, (x.shape[2], -1))).flatten(2, 3)
    return y


def _chunks(x: Tensor, size: int) -> Tensor:
    """Return [chunks, batch, heads, size, width] of [batch, length, heads, width]; zeros fill the last chunk."""
    if x.shape[1] % size:
        x = F.pad(x, [0, 0, 0, 0, 0, -x.shape[1] % size])
    # [batch, chunks, size, heads, width] -> [chunks, batch, heads, size, width]
    y: Tensor = x.unflatten(1, (-1, size)).permute(1, 0, 3, 2, 4).contiguous()
    return y


def _decayed_products(
    readers: Sequence[Tensor], keys: Tensor, decay: Tensor
) -> tuple[list[Tensor], Tensor, Tensor]:
    """Return sum_d a_id D_ijd k_jd of each reader a for j <= i, else 0, and the decays of whole chunks.

    Segments are joined in pairs, from single tokens to the chunk. Between two of them D_ij is the decay from j to the
    end of the first, times that from the start of the second to i.
    Shapes: a, k and decay [..., size, width or 1], size a power of 2.

    Returns:
        The products [..., size, size]; decays from the start up to each token; decays from each token to the end.
    """
    starts, ends = decay[..., None, :], torch.ones_like(decay)[..., None, :]
    # [..., segments, length of a segment, the same]
    products = [(a * keys).sum(-1)[..., None, None] for a in readers]
    while (half := starts.shape[-2]) < keys.shape[-2]:
        (start_1, start_2), (end_1, end_2) = _pairs(starts), _pairs(ends)
        # First half of each pair: [..., pairs, half, width] -> [..., pairs, width, half]
        decayed = (keys.unflatten(-2, (-1, 2, half)).select(-3, 0) * end_1).mT
        for n, a in enumerate(readers):
            first, second = _pairs(products[n])
            # Second half of each pair: [..., pairs, half, width]
            rows = a.unflatten(-2, (-1, 2, half)).select(-3, 1) * start_2
            below = rows * decayed if rows.shape[-1] == 1 else rows @ decayed
            above = torch.cat((first, torch.zeros_like(first)), -1)
            products[n] = torch.cat((above, torch.cat((below, second), -1)), -2)
        starts = torch.cat((start_1, start_2 * start_1[..., -1:, :]), -2)
        ends = torch.cat((end_1 * start_2[..., -1:, :], end_2), -2)
    return [x.squeeze(-3) for x in products], starts.squeeze(-3), ends.squeeze(-3)


def _pairs(x: Tensor) -> tuple[Tensor, ...]:
    """Return even and odd segments [..., segments / 2, length, width] of [..., segments, length, width]."""
    # [..., segments / 2, 2, length, width]
    pairs: tuple[Tensor, ...] = x.unflatten(-3, (-1, 2)).unbind(-3)
    return pairs


class _Solve(torch.autograd.Function):
    """Solve (I + tril(a, -1)) x = right by the inverse, as products are faster than substitution."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, right: Tensor) -> Tensor:
        inverse = _inverse(a)
        x = inverse @ right
        ctx.save_for_backward(inverse, x)
        return x

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        inverse, x = ctx.saved_tensors
        right = inverse.mT @ grad
        return (right @ x.mT).neg_().tril_(-1), right


def _inverse(a: Tensor) -> Tensor:
    """Return the inverse of I + tril(a, -1), by halves: that below the diagonal is -T_2 a_21 T_1."""
    size = a.shape[-1]
    if size <= LEAST_SOLVED:
        eye = torch.eye(size, dtype=a.dtype, device=a.device).expand_as(a)
        block: Tensor = torch.linalg.solve_triangular(a, eye, upper=False, unitriangular=True)
        return block
    half = size // 2
    first, second = _inverse(torch.stack((a[..., :half, :half], a[..., half:, half:])))
    inverse = a.new_zeros(a.shape)
    inverse[..., :half, :half], inverse[..., half:, half:] = first, second
    inverse[..., half:, :half] = (second @ a[..., half:, :half] @ first).neg_()
    return inverse


class _States(torch.autograd.Function):
    """S_(i+1) = carried_i S_i + keys_i^T X_i with X_i = values_i - reads_i S_i, or values_i without reads."""

    @staticmethod
    def forward(
        ctx: Any,
        values: Tensor,
        reads: Tensor | None,
        keys: Tensor,
        carried: Tensor,
        state: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return the states before the chunks, X, and the last state."""
        states = values.new_empty(len(values) + 1, *state.shape)
        states[0] = state
        # Without reads all products at once: fewer and larger calls.
        written = values if reads is None else torch.empty_like(values)
        added = keys.mT @ values if reads is None else torch.empty_like(states[1:])
        for i in range(len(values)):
            if reads is not None:
                torch.sub(values[i], reads[i] @ states[i], out=written[i])
                torch.matmul(keys[i].mT, written[i], out=added[i])
            torch.addcmul(added[i], carried[i], states[i], out=states[i + 1])
        ctx.save_for_backward(reads, keys, carried, states, written)
        return states[:-1], written, states[-1].clone()

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, grad_states: Tensor, grad_written: Tensor, grad_last: Tensor
    ) -> tuple[Tensor | None, ...]:
        reads, keys, carried, states, written = ctx.saved_tensors
        grads, grad_values = torch.empty_like(states), torch.empty_like(written)
        grads[-1] = grad_last
        for i in reversed(range(len(keys))):
            torch.addcmul(grad_states[i], carried[i], grads[i + 1], out=grads[i])
            if reads is not None:
                torch.add(grad_written[i], keys[i] @ grads[i + 1], out=grad_values[i])
                grads[i] -= reads[i].mT @ grad_values[i]
        if reads is None:
            grad_values = grad_written + keys @ grads[1:]
        return (
            grad_values,
            None if reads is None else (grad_values @ states[:-1].mT).neg_(),
            written @ grads[1:].mT,
            (grads[1:] * states[:-1]).sum(-1, keepdim=True).sum_to_size(carried.shape),
            grads[0],
        )


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
    decay: DecayKind = "per_head",
    key_heads: int | None = None,
    itemsize: int = 4,
) -> ScanCosts:
    """Return the costs of `chunked`; a multiplication and an addition count as two FLOPs."""
    size = _chunk_length(chunk_size, length)
    number, pairs, state = -(-length // size), size * size, key_dim * value_dim
    # Per channel, joined segments multiply only the blocks below the diagonal.
    per_channel, has_gradient = decay == "per_channel", decay in ("per_head", "per_channel")
    shared = 1.0 if key_heads is None or per_channel else key_heads / heads
    product = (pairs - size) * key_dim if per_channel else shared * 2 * pairs * key_dim
    widths, gate = key_dim + value_dim, key_dim if per_channel else 1
    flops = product + 2 * pairs * value_dim + 4 * size * state
    levels = (size.bit_length() - 1) * (3 + delta * per_channel / 2)  # factors between segments
    levels *= has_gradient
    # Per head the decays of pairs, and what they multiply if they have a gradient; the weights; A and its inverse.
    matrices = (
        (decay in ("fixed", "per_head"))
        + (decay == "per_head") * (1 + delta) * shared
        + 1
        + 2 * delta
    )
    kept = (
        pairs * matrices
        + size
        * (gate * levels + key_dim * (7 + delta if per_channel else 2 + 2 * shared) + value_dim + 4)
        + state * (1 + 1 / number)
    )
    if delta:
        flops += product + 2 * pairs * widths + 2 * size * state
        flops += 2 * size * max(0, pairs - LEAST_SOLVED**2) // 3  # inverses of halves
        kept += size * (widths + value_dim)
    moved = size * (2 * widths + gate + delta) + 2 * state
    times = heads * number
    return ScanCosts(times * flops, float(times * itemsize * moved), times * kept)


def _chunk_length(chunk_size: int, length: int) -> int:
    """Return a power of 2: segments of a chunk are joined in pairs."""
    return 1 << (min(chunk_size, length) - 1).bit_length()


ScanKernel = Callable[[ScanInputs, Tensor, Tensor | None, int], tuple[Tensor, Tensor]]
"""(inputs in float32 or wider, state, resets, chunk size) -> outputs, final state."""
SCANS: dict[str, ScanKernel] = {"recurrent": recurrent, "chunked": chunked}
"""Kernels by name."""
