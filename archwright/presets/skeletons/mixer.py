"""A custom mixer, which exchanges information between tokens: here a recurrence with a matrix as its state.

archwright check my_mixer.py
archwright train demo model.recurrence.kind=my_mixer budget=60s --parts my_mixer.py

With these options it runs in parallel with attention; model.attention.kind=none model.position.kind=none removes
attention.
Documents, padding, texts in pieces and chunks of matrix products work without a change.
Attention with masks, positions and a cache of keys: archwright new attention FILE.
"""

from collections.abc import Sequence
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

import archwright
from archwright.parts.linear import Linear
from archwright.parts.mixers import Conv, RecurrentMixer, ScanInputs, StateTensor
from archwright.parts.sharing import LayerInfo
from archwright.spec.choice import Count, Width
from archwright.spec.mixers import Recurrence


# 1. Name and options. `takes` names the inputs of a batch in addition to tokens; the base class respects both.
class MyMixer(Recurrence):
    """S = d S + k v^T, o = S^T q / sqrt(head_dim), with a learned decay d of each head (Sun et al., 2023, RetNet)."""

    kind: Literal["my_mixer"] = "my_mixer"
    takes: ClassVar[frozenset[str]] = frozenset({"segment_ids", "padding_mask"})
    num_heads: Count = 4
    """Heads, each with its own state."""
    head_dim: Width = 16
    """Width of a head's query, key and value."""


# 2. The module. The model's initialisation draws `Linear`, and FLOPs include it.
class MyMixerModule(RecurrentMixer):
    """y = out(o). Shapes: x and y [batch, length, dim]; q, k, v and o [batch, length, heads, head_dim]; S
    [batch, heads, head_dim, head_dim]."""

    def __init__(self, spec: MyMixer, dim: int, layer: LayerInfo) -> None:
        super().__init__()
        self.num_heads, self.head_dim = spec.num_heads, spec.head_dim
        size = spec.num_heads * spec.head_dim
        self.query, self.key = (Linear(dim, size, deepnorm=False) for _ in range(2))
        self.value, self.out = Linear(dim, size), Linear(size, dim, is_residual_output=True)
        self.logit = nn.Parameter(torch.empty(self.num_heads))

    # Maps that read x. The base class applies them, and `project` receives their results.
    @property
    def inputs(self) -> list[Linear]:
        return [self.query, self.key, self.value]

    # Tensors of the state, [batch, ...] each: for texts read in pieces or written token by token.
    def state_tensors(self) -> dict[str, StateTensor]:
        return {"state": StateTensor((self.num_heads, self.head_dim, self.head_dim))}

    # EDIT HERE. The log of decays is at most 0: [heads], [batch, length, heads] or [batch, length, heads, head_dim].
    # A further argument beta [batch, length, heads] selects the delta rule,
    # S = S + k (beta (v - S^T k))^T. A `ShortConv` of the mixer is applied with conv("its name", y). For another state
    # and formula, override `scan`.
    def project(self, x: Tensor, projected: Sequence[Tensor], conv: Conv) -> ScanInputs:
        q, k, v = (y.unflatten(-1, (self.num_heads, self.head_dim)) for y in projected)
        return ScanInputs(q * self.head_dim**-0.5, k, v, functional.logsigmoid(self.logit))

    def output(self, mixed: Tensor, inputs: ScanInputs) -> Tensor:
        out: Tensor = self.out(mixed.flatten(-2))  # [batch, length, dim]
        return out

    # Initial values of the module's own parameters; those of `Linear` come from the model's initialisation.
    def reset_parameters(self) -> None:
        nn.init.uniform_(self.logit, 1.0, 5.0)  # decays of 0.73 to 0.993


# 3. The registration.
archwright.register(MyMixer, MyMixerModule)
