"""The base class of recurrences carries a scan of a mixer's own: here the state of RWKV-7, with a token shift."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import archwright as aw
from archwright.parts.context import Context
from archwright.parts.linear import Linear
from archwright.parts.mixers import Conv, RecurrentMixer, StateTensor
from archwright.parts.mixers.recurrent import Boundaries
from archwright.parts.sharing import LayerInfo
from archwright.parts.short_conv import ShortConv
from archwright.spec.mixers import Recurrence
from archwright.testing import Case, mixer_laws, model_laws, small_model

pytestmark = pytest.mark.usefixtures("visitors")

HEADS, WIDTH = 2, 4
Maps = list[Tensor]


class DiagonalLowRank(RecurrentMixer):
    """S = (diag(w) - (a h)^T h) S + k^T v, o = q S, with h = k / |k| (Peng et al., 2025, RWKV-7, equation 17)."""

    chunk_size = None  # type: ignore[assignment]  # token by token
    num_heads = HEADS

    def __init__(self, spec: Any, dim: int, layer: LayerInfo | None) -> None:
        super().__init__()
        self.shift = ShortConv(dim, 2)
        self.maps = torch.nn.ModuleList(Linear(dim, HEADS * WIDTH) for _ in "qkvwa")
        self.out = Linear(HEADS * WIDTH, dim, is_residual_output=True)

    def state_tensors(self) -> dict[str, StateTensor]:
        shape = (HEADS, WIDTH, WIDTH)
        return {"memory": StateTensor(shape, blocks=HEADS), "read": StateTensor((1,))}

    def project(self, x: Tensor, projected: Sequence[Tensor], conv: Conv) -> Maps:
        shifted = conv("shift", x)
        q, k, v, w, a = (m(shifted).unflatten(-1, (HEADS, WIDTH)) for m in self.maps)
        return [q, k, v, w.sigmoid(), a.sigmoid(), F.normalize(k, dim=-1)]

    def scan(
        self, inputs: Maps, state: Mapping[str, Tensor], boundaries: Boundaries
    ) -> tuple[Tensor, Mapping[str, Tensor]]:
        memory, read, outs = state["memory"], state["read"], []
        for t in range(inputs[0].shape[1]):
            q, k, v, w, a, h = (x[:, t, :, :, None].to(memory.dtype) for x in inputs)
            before = memory
            if boundaries.resets is not None:
                before = before.masked_fill(boundaries.resets[:, t, None, None, None], 0)
            new = w * before - (a * h) @ (h.mT @ before) + k @ v.mT
            outs.append((q.mT @ new)[:, :, 0])
            if boundaries.real is None:
                memory, read = new, read + 1
            else:
                memory = torch.where(boundaries.real[:, t, None, None, None], new, memory)
                read = read + boundaries.real[:, t, None]
        return torch.stack(outs, 1).to(inputs[0].dtype), {"memory": memory, "read": read}

    def output(self, mixed: Tensor, inputs: Maps) -> Tensor:
        out: Tensor = self.out(mixed.flatten(-2))
        return out


@pytest.fixture
def case() -> Case:
    class LowRankState(Recurrence):
        kind: Literal["low_rank_state"] = "low_rank_state"
        takes: ClassVar[frozenset[str]] = frozenset({"segment_ids", "padding_mask"})

    aw.register(LowRankState, DiagonalLowRank)
    return Case(small_model(LowRankState))


@pytest.mark.parametrize(
    "law",
    [
        model_laws.shapes_and_dtypes,
        model_laws.packed_is_alone,
        model_laws.padding_is_nothing,
        model_laws.cached_is_uncached,
        model_laws.cached_rows_of_different_lengths,
        model_laws.state_bytes_are_stated,
        mixer_laws.long_cached_is_uncached,
        mixer_laws.forgets_at_no_fixed_token,
    ],
    ids=lambda law: law.__name__,
)
def test_a_scan_of_its_own_keeps_the_laws(law: Any, case: Case) -> None:
    law(case)


def test_states_of_several_tensors_are_counted_and_kept() -> None:
    mixer = DiagonalLowRank(None, 8, None)
    assert mixer.kept_blocks == 1  # it declares no split, so each rank keeps the whole state
    # float32 or wider for the state; the convolution keeps one token of 8 activations.
    assert mixer.state_bytes(100, 2) == 4 * (HEADS * WIDTH**2 + 1) + 2 * 8
    state, x = mixer.new_state(2), torch.randn(2, 5, 8)
    for parameter in mixer.parameters():
        torch.nn.init.normal_(parameter)
    mixer(x, Context.alone(x), state)
    assert state.get("read") is not None
    assert torch.equal(state.get("read"), torch.full((2, 1), 5.0))
    assert torch.equal(state.get("shift"), x[:, -1:])
