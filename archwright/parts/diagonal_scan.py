"""Recurrences with independent entries of the state: Mamba's selective scan, and the RG-LRU with one per channel.

The state S [channels, entries] of a text has a decay for each entry:

    S <- exp(step rate) S + x B^T      step and x: one number per channel; rate: fixed [channels, entries]
    y = S C                            B and C: one number per entry
"""

from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from archwright.parts.leaves import LeafCosts, leaf


def _costs(
    x: Tensor,
    steps: Tensor,
    rates: Tensor,
    writes: Tensor,
    reads: Tensor,
    *,
    chunk_size: int,
    **_: Any,
) -> LeafCosts:
    """Return the costs of `diagonal_scan`; an exponential counts as no FLOP."""
    dtype = torch.promote_types(x.dtype, torch.float32)
    (batch, length, channels), entries = x.shape, rates.shape[1]
    state = torch.empty(batch, entries, channels, dtype=dtype, device="meta")
    chunks = -(-length // chunk_size)
    inputs = 2 * batch * length * (channels + entries)
    moved = inputs + batch * length * channels + 2 * chunks * state.numel()
    # The exponent and the product with B take one FLOP each, the update and the sum over entries two.
    flops = 6.0 * length * state.numel()
    out = torch.empty(x.shape, dtype=x.dtype, device="meta")
    starts = state.new_empty(chunks, *state.shape)
    # Inputs that have the dtype of the scan are kept as they are, others as a copy.
    kept = (
        t if t.dtype == dtype else torch.empty(t.shape, dtype=dtype, device="meta")
        for t in (x, steps, rates, writes, reads)
    )
    return LeafCosts(flops, float(moved * dtype.itemsize), (out, state), (*kept, starts))


@leaf(_costs)
def diagonal_scan(
    x: Float[Tensor, "batch length channels"],
    steps: Float[Tensor, "batch length channels"],
    rates: Float[Tensor, "channels entries"],
    writes: Float[Tensor, "batch length entries"],
    reads: Float[Tensor, "batch length entries"],
    *,
    state: Float[Tensor, "batch entries channels"],
    resets: Bool[Tensor, "batch length"] | None = None,
    real: Bool[Tensor, "batch length"] | None = None,
    chunk_size: int = 64,
    kernel: str = "chunked",
) -> tuple[Float[Tensor, "batch length channels"], Float[Tensor, "batch entries channels"]]:
    """Return the outputs in the dtype of x, and the final state in float32 or wider.

    Args:
        steps: Factors of the rates; the products must be at most 0.
        state: State before the first token.
        resets: True for tokens that start with a state of zeros.
        real: False for padding, which leaves the state as it is.
        chunk_size: Tokens between states that are kept for the backward pass. It does not change the result.
        kernel: Name in `DIAGONAL_SCANS`.
    """
    dtype = torch.promote_types(x.dtype, torch.float32)
    values, steps, rates, writes, reads, state = (
        t.to(dtype) for t in (x, steps, rates.mT, writes, reads, state)
    )
    if real is not None:  # padding does not decay the state, and writes nothing
        padding = ~real[..., None]  # [batch, length, 1]
        values, steps = values.masked_fill(padding, 0), steps.masked_fill(padding, 0)
    keep = None if resets is None else (~resets).to(dtype)
    with torch.autocast("cpu" if x.is_meta else x.device.type, enabled=False):
        if kernel == "recurrent" or x.shape[1] == 1:
            y, state = recurrent(values, steps, rates, writes, reads, state, keep)
        else:
            y, state, _ = chunked(values, steps, rates, writes, reads, state, keep, chunk_size)
    return y.to(x.dtype), state


def recurrent(
    x: Tensor,
    steps: Tensor,
    rates: Tensor,
    writes: Tensor,
    reads: Tensor,
    state: Tensor,
    keep: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """Compute a scan token by token: the formula, and the reference.

    Shapes: rates [entries, channels], state [batch, entries, channels].
    """
    outs = []
    for t in range(x.shape[1]):
        decay = (steps[:, t, None] * rates).exp()  # [batch, entries, channels]
        if keep is not None:
            decay = decay * keep[:, t, None, None]
        state = decay * state + writes[:, t, :, None] * x[:, t, None]
        outs.append((reads[:, t, :, None] * state).sum(1))
    return torch.stack(outs, 1), state


def _chunk(first: int, stop: int, *tensors: Tensor) -> list[Tensor]:
    """Return tokens first, [size, batch, ...], of tensors [batch, length, ...]."""
    # [batch, size, ...] -> [size, batch, ...]
    return [t[:, first:stop].transpose(0, 1) for t in tensors]


def _workspace(number: int, x: Tensor, state: Tensor, chunk_size: int) -> Tensor:
    """Return memory for all states of a chunk: [number, size, batch, entries, channels].

    One allocation serves all chunks, because new pages of memory cost more than the arithmetic.
    """
    return x.new_empty(number, min(chunk_size, x.shape[1]), *state.shape)


def _states(
    x: Tensor,
    steps: Tensor,
    rates: Tensor,
    writes: Tensor,
    state: Tensor,
    keep: Tensor | None,
    out: Tensor,
) -> tuple[Tensor, Tensor]:
    """Return the decays and the states of a chunk, [size, batch, entries, channels], from inputs with tokens first.

    Each token updates a state that stays in the processor's cache. There is no quotient of decays, which might
    overflow.
    """
    decays, states = out[:2, : len(x)]
    torch.mul(steps[:, :, None], rates, out=decays).exp_()
    if keep is not None:
        decays.mul_(keep[..., None, None])
    torch.mul(writes[..., None], x[:, :, None], out=states)
    for new, decay in zip(states.unbind(), decays.unbind(), strict=True):
        state = new.addcmul_(decay, state)
    return decays, states


def _over_entries(a: Tensor, states: Tensor) -> Tensor:
    """Return sum_n a_n S_n for each token, [size, batch, channels]."""
    # Products [1, entries] x [entries, channels] of all tokens: [size * batch, 1, channels] -> [size, batch, channels]
    return torch.bmm(a.flatten(0, 1)[:, None], states.flatten(0, 1)).view(*a.shape[:2], -1)


@torch.library.custom_op("archwright::diagonal_scan", mutates_args=())
def chunked(
    x: Tensor,
    steps: Tensor,
    rates: Tensor,
    writes: Tensor,
    reads: Tensor,
    state: Tensor,
    keep: Tensor | None,
    chunk_size: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute a scan in chunks; return the outputs, the final state, and the states before chunks.

    Memory for states of all tokens is needed for one chunk at a time. The backward pass computes them again.
    """
    y, starts, space = torch.empty_like(x), [], _workspace(2, x, state, chunk_size)
    for first in range(0, x.shape[1], chunk_size):
        stop = first + chunk_size
        starts.append(state.clone())
        xs, ss, ws, rs, ys = _chunk(first, stop, x, steps, writes, reads, y)
        ks = None if keep is None else keep[:, first:stop].T
        _, states = _states(xs, ss, rates, ws, starts[-1], ks, space)
        ys.copy_(_over_entries(rs, states))
        state = states[-1]
    return y, state.clone(), torch.stack(starts)


@chunked.register_fake
def _shapes(*inputs: Any) -> tuple[Tensor, Tensor, Tensor]:
    x, *_, state, _, chunk_size = inputs
    number = -(-x.shape[1] // chunk_size)
    return torch.empty_like(x), torch.empty_like(state), state.new_empty(number, *state.shape)


@torch.library.custom_op("archwright::diagonal_scan_backward", mutates_args=())
def _backward_of_chunks(
    grad_y: Tensor,
    grad_state: Tensor,
    x: Tensor,
    steps: Tensor,
    rates: Tensor,
    writes: Tensor,
    reads: Tensor,
    starts: Tensor,
    keep: Tensor | None,
    chunk_size: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Return the gradients of x, steps, rates, writes, reads and the first state."""
    grads = [torch.empty_like(t) for t in (x, steps, writes, reads)]
    grad_rates, carried = torch.zeros_like(rates), grad_state
    space = _workspace(4, x, grad_state, chunk_size)
    for i in reversed(range(len(starts))):
        first, stop = i * chunk_size, (i + 1) * chunk_size
        xs, ss, ws, rs, gs = _chunk(first, stop, x, steps, writes, reads, grad_y)
        ks = None if keep is None else keep[:, first:stop].T
        decays, states = _states(xs, ss, rates, ws, starts[i], ks, space)
        # Gradients of states, from the last token to the first: [size, batch, entries, channels].
        of_states, spare = space[2:, : len(xs)]
        torch.mul(rs[..., None], gs[:, :, None], out=of_states)
        of_states[-1] += carried
        new, old = of_states.unbind(), decays.unbind()
        for t in range(len(new) - 2, -1, -1):
            new[t].addcmul_(old[t + 1], new[t + 1])
        carried = old[0] * new[0]
        of_x, of_steps, of_writes, of_reads = _chunk(first, stop, *grads)
        of_x.copy_(_over_entries(ws, of_states))
        of_writes.copy_(torch.mul(of_states, xs[:, :, None], out=spare).sum(-1))
        of_reads.copy_(torch.mul(states, gs[:, :, None], out=spare).sum(-1))
        # Gradients of the exponents, in the memory of the decays.
        of_exponents = decays.mul_(of_states)
        of_exponents[0] *= starts[i]
        of_exponents[1:] *= states[:-1]
        of_steps.copy_(torch.mul(of_exponents, rates, out=spare).sum(2))
        grad_rates += of_exponents.mul_(ss[:, :, None]).sum((0, 1))
    of_x, of_steps, of_writes, of_reads = grads
    return of_x, of_steps, grad_rates, of_writes, of_reads, carried


@_backward_of_chunks.register_fake
def _shapes_of_gradients(grad_y: Tensor, grad_state: Tensor, *inputs: Any) -> tuple[Tensor, ...]:
    shapes = (*inputs[:5], grad_state)
    return tuple(torch.empty_like(t) for t in shapes)


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    x, steps, rates, writes, reads, _, keep, ctx.chunk_size = inputs
    ctx.save_for_backward(x, steps, rates, writes, reads, output[2], keep)
    ctx.set_materialize_grads(True)


def _backward(ctx: Any, grad_y: Tensor, grad_state: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
    grads = _backward_of_chunks(grad_y, grad_state, *ctx.saved_tensors, ctx.chunk_size)
    return (*grads, None, None)


chunked.register_autograd(_backward, setup_context=_save)

DIAGONAL_SCANS = {"recurrent": recurrent, "chunked": chunked}
"""Kernels by name."""
