"""Faults planted on purpose: each is caught by a law, or by the formula of the part it is in.

docs/testing.md says more.
"""

import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from archwright.model import cache as caching
from archwright.parts import context
from archwright.parts import init as initialising
from archwright.parts.kernels import KERNELS, Kernel, ScoreMods, eager, sdpa
from archwright.parts.masks import AttentionMask, BlockSparse, Causal, Window
from archwright.parts.mixers import LatentAttention, base
from archwright.parts.positions import Rotation
from archwright.parts.residuals import OutputNorm, PostNorm
from archwright.parts.states import SlotTable
from archwright.parts.token_layout import TokenLayout
from archwright.spec.model_spec import ModelSpec
from archwright.spec.norms import LayerNorm, Norm
from archwright.spec.residuals import PostNorm as PostNormSpec
from tests.laws import laws
from tests.laws.laws import Case
from tests.parts.test_residuals import test_formula as wiring_formula

pytestmark = pytest.mark.slow

SMALL = ModelSpec(dim=16, num_layers=2, vocab_size=33, context_length=12).override(
    "attention.num_heads=4", "attention.num_kv_heads=2", "attention.head_dim=4"
)
WINDOW = ("attention.mask.kind=window", "attention.mask.size=3")
SPARSE = (
    *("attention.mask.kind=block_sparse", "attention.mask.block_size=1"),
    *("attention.mask.local_blocks=1", "attention.mask.stride=7"),
)
Plant = Callable[[pytest.MonkeyPatch], None]
building = sys.modules["archwright.model.build"]  # the package has a function of that name
FAULTS: dict[str, tuple[Plant, Callable[[Case], None], tuple[str, ...]]] = {}


def fault(law: Callable[[Case], None], *assignments: str) -> Callable[[Plant], Plant]:
    """Say which law catches a fault, in which model."""

    def add(plant: Plant) -> Plant:
        FAULTS[plant.__name__] = (plant, law, assignments)
        return plant

    return add


@fault(laws.visibility, *WINDOW)
def a_window_of_one_key_more(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Window, "visible", lambda self, q, k: (k <= q) & (k >= q - self.spec.size))


@fault(laws.visibility)
def a_mask_that_shows_the_next_token(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Causal, "visible", lambda self, q, k: k <= q + 1)


@fault(laws.visibility)
def documents_that_see_each_other(patch: pytest.MonkeyPatch) -> None:
    _blinded(patch, segment_ids=None)


@fault(laws.padding_is_nothing)
def padding_that_is_seen(patch: pytest.MonkeyPatch) -> None:
    _blinded(patch, padding_mask=None)


@fault(laws.packed_is_alone, "position.kind=sinusoidal")
def positions_that_run_on_through_documents(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(TokenLayout, "position_ids_or_range", lambda self: self._range())


@fault(laws.kernels_agree, "attention.softcap=2.0")
def a_kernel_without_the_soft_cap(patch: pytest.MonkeyPatch) -> None:
    def forgetful(
        q: Tensor, k: Tensor, v: Tensor, view: AttentionMask, scores: ScoreMods
    ) -> Tensor:
        return sdpa(q, k, v, view, ScoreMods(scores.scale, bias=scores.bias, sinks=scores.sinks))

    patch.setitem(KERNELS, "sdpa", Kernel(forgetful))


@fault(laws.kernels_agree)
def heads_that_read_the_wrong_keys(patch: pytest.MonkeyPatch) -> None:
    def confused(q: Tensor, k: Tensor, v: Tensor, view: AttentionMask, scores: ScoreMods) -> Tensor:
        times = q.shape[2] // k.shape[2]
        return eager(q, k.repeat(1, 1, times, 1), v.repeat(1, 1, times, 1), view, scores)

    patch.setitem(KERNELS, "blockwise", Kernel(confused))


@fault(laws.kernels_agree, *SPARSE)
def heads_that_see_through_the_masks_of_others(patch: pytest.MonkeyPatch) -> None:
    def confused(q: Tensor, k: Tensor, v: Tensor, view: AttentionMask, scores: ScoreMods) -> Tensor:
        flipped = AttentionMask(view.pattern, view.layout)
        flipped.made["dense"] = view.dense.flip(1)
        return eager(q, k, v, flipped, scores)

    patch.setitem(KERNELS, "sdpa", Kernel(confused))


@fault(laws.visibility, *SPARSE)
def heads_that_all_see_what_the_first_sees(patch: pytest.MonkeyPatch) -> None:
    visible = BlockSparse.visible
    patch.setattr(BlockSparse, "visible", lambda self, q, k, head=0: visible(self, q, k, 0 * head))


@fault(laws.cached_is_uncached)
def a_piece_that_is_shifted_by_one(patch: pytest.MonkeyPatch) -> None:
    whole = caching.token_layout

    def shifted(*args: Any, start: int = 0, **given: Any) -> TokenLayout:
        return whole(*args, start=start + (start > 0), **given)

    patch.setattr(caching, "token_layout", shifted)


@fault(laws.cached_is_uncached, *WINDOW)
def a_cache_that_forgets_a_token_too_soon(patch: pytest.MonkeyPatch) -> None:
    for room in (base, context):
        patch.setattr(room, "max_length", lambda pattern: pattern.lookback)


@fault(laws.cached_is_uncached, "attention.kind=latent")
def a_latent_cache_that_turns_keys_by_the_place_of_queries(patch: pytest.MonkeyPatch) -> None:
    placed = LatentAttention._rotate_and_cache

    def late(self: LatentAttention, q: Tensor, kept: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
        context, mask, state = rest
        if state is None or self.rotary is None:
            return placed(self, q, kept, *rest)
        (kept,) = state.update(context.slots(state.max_length), kept)
        last = Rotation(*(table[:, -1:] for table in context.rotation(self.rotary)))
        q, _ = placed(self, q, q, context, mask, None)
        return q, self._rotated(kept, self.rotary.value.rotate_key, last)

    patch.setattr(LatentAttention, "_rotate_and_cache", late)


@fault(laws.cached_is_uncached, "attention.kind=latent", "attention.num_heads=4")
def queries_of_one_head_in_the_latent_of_another(patch: pytest.MonkeyPatch) -> None:
    absorbed = LatentAttention._absorbed

    def confused(self: LatentAttention, q: Tensor, *rest: Any) -> Tensor:
        return absorbed(self, q.flip(2), *rest)

    patch.setattr(LatentAttention, "_absorbed", confused)


@fault(laws.cached_rows_of_different_lengths)
def a_cache_that_keeps_padding(patch: pytest.MonkeyPatch) -> None:
    assigned = SlotTable._assigned

    def careless(self: SlotTable, where: TokenLayout, batch: int) -> Tensor:
        blind = TokenLayout(where.length, where.device, where.start)
        return assigned(self, blind, batch)

    patch.setattr(SlotTable, "_assigned", careless)


@fault(laws.cached_rows_of_different_lengths)
def rows_that_go_on_from_the_longest(patch: pytest.MonkeyPatch) -> None:
    after = caching._after

    def level(where: TokenLayout) -> caching.Read:
        read = after(where)
        return caching.Read(read.next_index.amax().expand_as(read.next_index), read.document)

    patch.setattr(caching, "_after", level)


@fault(laws.same_seed_same_weights)
def initial_values_that_depend_on_what_was_drawn_before(patch: pytest.MonkeyPatch) -> None:
    drawing = torch.Generator().manual_seed(0)
    patch.setattr(initialising, "keyed_generator", lambda seed, name: drawing)


@fault(laws.shapes_on_meta, "head.tied=true")
def a_tied_head_with_a_table_of_its_own(patch: pytest.MonkeyPatch) -> None:
    head = building.Head
    patch.setattr(
        building, "Head", lambda spec, dim, vocab, table, **more: head(spec, dim, vocab, **more)
    )


@fault(laws.shapes_on_meta, "norm.kind=layer")
def a_norm_that_does_not_count_itself(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(LayerNorm, "num_parameters", Norm.num_parameters)


@fault(laws.weights_return, "attention.sinks=true")
def sinks_that_are_not_saved(patch: pytest.MonkeyPatch) -> None:
    state = building.Decoder.state_dict

    def partial(self: nn.Module, *args: Any, **given: Any) -> Any:
        found = state(self, *args, **given)
        return {name: torch.zeros_like(t) if "sinks" in name else t for name, t in found.items()}

    patch.setattr(building.Decoder, "state_dict", partial)


def _blinded(patch: pytest.MonkeyPatch, **fields: None) -> None:
    """Let every view forget something of the batch."""
    seen = AttentionMask.block

    def forgetful(self: AttentionMask, *block: int) -> Tensor:
        layout = self.layout.__class__(**(vars(self.layout) | fields))
        return seen(AttentionMask(self.pattern, layout), *block)

    patch.setattr(AttentionMask, "block", forgetful)


@pytest.mark.parametrize("planted", sorted(FAULTS))
def test_it_is_caught(planted: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plant, law, assignments = FAULTS[planted]
    spec = SMALL.override(*assignments)

    def holds() -> None:
        for seed in range(8):
            law(Case(spec, seed))

    holds()
    plant(monkeypatch)
    with pytest.raises((AssertionError, RuntimeError)):
        holds()


def test_what_does_not_count_itself_is_told_by_how_much(monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case(SMALL.override("norm.kind=layer"), 0)
    a_norm_that_does_not_count_itself(monkeypatch)
    with pytest.raises(
        AssertionError, match="norms have 160 parameters, and num_parameters says 0"
    ):
        laws.shapes_on_meta(case)


def test_norms_in_the_wrong_place_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PostNorm, "forward", OutputNorm.forward)
    with pytest.raises(AssertionError):
        wiring_formula(PostNormSpec(), ["attention", "feedforward"])
