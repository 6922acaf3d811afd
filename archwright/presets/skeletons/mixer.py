"""A mixer of your own, which exchanges information between tokens: here a recurrence with a state of one vector.

archwright check my_mixer.py
archwright train demo model.recurrence.kind=my_mixer budget=60s --parts my_mixer.py

So asked for, it stands beside attention. Alone it stands with model.attention.kind=none model.position.kind=none.
Attention with masks, positions and a cache of keys: archwright new attention FILE.
"""

import math
from collections.abc import Sequence
from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

import archwright
from archwright.parts.context import Context
from archwright.parts.linear import Linear
from archwright.parts.mixers import Mixer
from archwright.parts.sharing import LayerInfo
from archwright.parts.states import RecurrentState
from archwright.spec.mixers import Recurrence


# 1. What it is called, and which options it has. `takes` names what a batch may have beside tokens and the module does
# not ignore: segment_ids (several documents in a row), padding_mask. A batch with anything else is refused.
class MyMixer(Recurrence):
    """m = d m + (1 - d) value(x), a moving average with a learned decay d of each coordinate (Ma et al., 2022, Mega,
    section 3.1), over the tokens of a document."""

    kind: Literal["my_mixer"] = "my_mixer"
    takes: ClassVar[frozenset[str]] = frozenset({"segment_ids", "padding_mask"})
    decay: float = Field(0.9, gt=0, lt=1)
    """First value of d."""


# 2. What computes it. `Linear` is drawn by the model's initialisation, and counted in FLOPs, by itself.
class MyMixerModule(Mixer):
    """y = out(m), m_t = d m_(t-1) + (1 - d) value(x_t). Shapes: x and y [batch, length, dim]; m [batch, dim]; the
    logarithm of d / (1 - d) [dim]."""

    def __init__(self, spec: MyMixer, dim: int, layer: LayerInfo) -> None:
        super().__init__()
        self.first = spec.decay
        self.value = Linear(dim, dim)
        self.out = Linear(dim, dim, is_residual_output=True)
        self.logit = nn.Parameter(torch.empty(dim))

    def forward(
        self,
        x: Tensor,
        context: Context,
        state: RecurrentState | None = None,
        projected: Sequence[Tensor] | None = None,
    ) -> Tensor:
        value = self.value(x)
        decay = self.logit.sigmoid()
        # A document begins where its index is 0: there nothing of the one before is left. [batch, length]
        starts = (context.layout.index_or_range() == 0).expand(context.batch, -1)
        real = context.layout.padding_mask  # None: all tokens are
        mean = None if state is None else state.get("mean")
        mean = torch.zeros_like(value[:, 0]) if mean is None else mean
        means = []
        for t in range(x.shape[1]):
            kept = mean.masked_fill(starts[:, t, None], 0)
            new = decay * kept + (1 - decay) * value[:, t]
            mean = new if real is None else torch.where(real[:, t, None], new, mean)
            means.append(mean)
        if state is not None:  # text that is read, or written, piece by piece
            state.update(mean=mean)
        out: Tensor = self.out(torch.stack(means, 1).to(x.dtype))  # [batch, length, dim]
        return out

    # What is kept of a text that was read, and its bytes. Without these two, texts are read whole, and nothing can be
    # written token by token.
    def new_state(self, batch: int) -> RecurrentState:
        return RecurrentState()

    def state_bytes(self, length: int, itemsize: int) -> int:
        return self.value.d_out * itemsize

    # First values of its own parameters; those of `Linear` are drawn elsewhere.
    def reset_parameters(self) -> None:
        nn.init.constant_(self.logit, math.log(self.first / (1 - self.first)))


# 3. The line that joins them.
archwright.register(MyMixer, MyMixerModule)
