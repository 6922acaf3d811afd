"""Scan kernels of flash-linear-attention, for GPUs. The tests of this package do not run them."""

from importlib import import_module
from importlib.util import find_spec

import torch
from torch import Tensor

from archwright.parts.scans import SCANS, ScanInputs, one_key_per_head

# Kernels by (delta rule, decay per key channel): modules and functions of fla.ops.
FUNCTIONS = {
    (True, False): ("gated_delta_rule", "chunk_gated_delta_rule"),
    (True, True): ("kda", "chunk_kda"),
    (False, False): ("simple_gla", "chunk_simple_gla"),
    (False, True): ("gla", "chunk_gla"),
}


def fla(
    scan: ScanInputs, state: Tensor, resets: Tensor | None, chunk_size: int
) -> tuple[Tensor, Tensor]:
    """Compute a scan with flash-linear-attention, which ignores `chunk_size`.

    Matmuls use bfloat16. With resets, documents become separate sequences (`cu_seqlens`).
    """
    q, k, v, log_decay, beta, _ = one_key_per_head(scan)
    batch, length = v.shape[:2]
    per_channel = log_decay is not None and log_decay.ndim == 4
    module, name = FUNCTIONS[beta is not None, per_channel]
    function = getattr(import_module(f"fla.ops.{module}"), name)
    if log_decay is None:
        log_decay = v.new_zeros(v.shape[:3])
    args = {n: x.bfloat16() for n, x in zip("qkv", (q, k, v), strict=True)} | {"g": log_decay}
    args |= {} if beta is None else {"beta": beta}
    starts = None
    if resets is not None:
        # One row: [1, batch * length, heads, ...]
        args = {name: x.flatten(0, 1)[None] for name, x in args.items()}
        # A row starts from its initial state, unless its first token resets it.
        begins = torch.cat((torch.ones_like(resets[:, :1]), resets[:, 1:]), 1)
        starts = begins.flatten().nonzero()[:, 0]  # in [batch * length]
        row = starts // length
        continues = (starts % length == 0) & ~resets[row, 0]
        args["cu_seqlens"] = torch.cat((starts, starts.new_tensor([batch * length])))
        state = state[row] * continues[:, None, None, None]
        last = torch.cat((row[1:] != row[:-1], row.new_ones(1).bool()))
    out, new = function(**args, scale=1.0, initial_state=state, output_final_state=True)
    # [batch, length, heads, value_dim]
    return out.reshape(v.shape), new if starts is None else new[last]


if find_spec("fla") is not None and torch.cuda.is_available():
    SCANS["fla"] = fla
