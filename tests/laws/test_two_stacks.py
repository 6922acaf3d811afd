"""Random compositions of an encoder and a decoder obey laws of their own: see `test_laws` for decoders."""

import os
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from archwright.catalogue.parameter_counts import parameter_counts
from archwright.model.build import build
from archwright.model.encoder_decoder import EncoderDecoder
from archwright.parts import context
from archwright.parts.context import Context, Memory
from archwright.parts.kernels import KERNELS, Kernel, eager
from archwright.parts.masks import AttentionMask, Causal, prefix_size
from archwright.parts.states import SourceKV
from archwright.planning.cost import counts_of
from archwright.spec import masks
from archwright.spec.errors import UserError
from archwright.spec.model_spec import ModelSpec
from archwright.testing.case import Case, enlarged
from tests.laws.laws import obey, reachable
from tests.strategies import two_stack_specs

pytestmark = pytest.mark.slow

COMPOSITIONS = int(os.environ.get("COMPOSITIONS", "25"))
ROWS = 2
CLOSE = {"rtol": 1e-6, "atol": 1e-6}
"""In float64, of which norms and softmax compute in float32 at least."""


class Texts:
    """A model of two stacks in float64, a source and what its decoder reads."""

    def __init__(self, spec: ModelSpec, seed: int) -> None:
        built = build(spec, seed=seed)
        assert isinstance(built, EncoderDecoder)
        self.model = enlarged(built, seed, 0.5)
        generator = torch.Generator().manual_seed(seed)
        # With padding beside them, rows end before learned positions do.
        length, rows = max(1, min(8, spec.context_length) - 3), int(built.spec.vocab_size)
        self.source, self.target = (
            torch.randint(rows, (ROWS, n), generator=generator)
            for n in (length, max(1, length - 2))
        )
        self.logits = self.read(self.source, self.target)

    def traced(
        self, source: Tensor, target: Tensor, **given: object
    ) -> tuple[Tensor, list[Tensor]]:
        """Return what the head would read, and the embeddings of source and target that it was made of."""
        leaves: list[Tensor] = []

        def leaf(module: nn.Module, args: object, out: Tensor) -> Tensor:
            leaves.append(out.detach().requires_grad_())
            return leaves[-1]

        # The source is read first.
        tables = {self.model.embedding, self.model.encoder.embedding} - {None}
        hooks = [table.register_forward_hook(leaf) for table in tables]
        found: Tensor = self.model.hidden(source, target, **given)
        for hook in hooks:
            hook.remove()
        return found, leaves

    def read(self, source: Tensor | None, target: Tensor, **given: object) -> Tensor:
        logits: Tensor = self.model(source, target, **given).logits
        return logits


def kernels_agree(texts: Texts) -> None:
    """Also where some of a source is padding."""
    real = torch.ones_like(texts.source, dtype=torch.bool)
    real[1, texts.source.shape[1] // 2 + 1 :] = False
    expected = texts.read(texts.source, texts.target, padding_mask=real)
    for kernel in ("sdpa", "blockwise"):
        texts.model.use_kernel(kernel)
        torch.testing.assert_close(texts.read(texts.source, texts.target), texts.logits, **CLOSE)
        found = texts.read(texts.source, texts.target, padding_mask=real)
        torch.testing.assert_close(found, expected, **CLOSE)
    texts.model.use_kernel("eager")


def a_decoder_token_sees_its_source_whole(texts: Texts) -> None:
    """Its own, of rows that are packed, and no padding; and of what the decoder reads, what its masks show."""
    if texts.model.spec.context_length < 4:
        return
    source, real = padded(texts.source, 2, 1)
    target, answered = texts.target, torch.ones_like(texts.target, dtype=torch.bool)
    answered[0, -1] = False
    parts = [(torch.arange(t.shape[1]) >= n).long() for t, n in ((source, 4), (target, 1))]
    ids = [part.expand(ROWS, -1) for part in parts]
    given = {"padding_mask": real, "segment_ids": ids[0]}
    given |= {"decoder_padding_mask": answered, "decoder_segment_ids": ids[1]}
    found, leaves = texts.traced(source, target, **given)
    own = {"padding_mask": answered, "segment_ids": ids[1]}
    weight = torch.randn(found.shape[-1], generator=torch.Generator().manual_seed(1)).double()
    for row, i in answered.nonzero().tolist():
        graded = torch.autograd.grad(found[row, i] @ weight, leaves, retain_graph=True)
        of_source, of_target = (grad.abs().amax(-1) > 0 for grad in graded)
        expected = torch.zeros_like(real)
        expected[row] = real[row] & (ids[0][row] == ids[1][row, i])
        assert torch.equal(of_source, expected), f"output {row, i} sees of the source {of_source}"
        reach = torch.zeros_like(answered)
        reach[row] = reachable(texts.model.spec, row, own, target.shape[1])[i]
        if Case(texts.model.spec).chooses_keys:  # some of those that the masks show
            reach &= of_target
        assert torch.equal(of_target, reach), f"output {row, i} sees of its text {of_target}"


def padding_changes_nothing(texts: Texts) -> None:
    if texts.model.spec.context_length < 4:
        return
    source, real = padded(texts.source, 2, 1)
    target, answered = padded(texts.target, 1, 2)
    found = texts.read(source, target, padding_mask=real, decoder_padding_mask=answered)
    assert found.isfinite().all()
    kept = found[:, 1 : 1 + texts.target.shape[1]]
    torch.testing.assert_close(kept, texts.logits, **CLOSE)


def packed_is_alone(texts: Texts) -> None:
    both = [t.reshape(1, -1) for t in (texts.source, texts.target)]
    ids = [
        torch.arange(ROWS).repeat_interleave(t.shape[1])[None] for t in (texts.source, texts.target)
    ]
    found = texts.read(both[0], both[1], segment_ids=ids[0], decoder_segment_ids=ids[1])
    torch.testing.assert_close(found.view(texts.logits.shape), texts.logits, **CLOSE)


def cached_is_uncached(texts: Texts) -> None:
    if any(map(prefix_size, texts.model.masks.values())):  # a prefix is read in one piece
        return
    try:
        cache = texts.model.new_cache()
    except UserError:  # a decoder that sees what follows
        return
    pieces = [
        (texts.source, texts.target[:, :1]),
        (None, texts.target[:, 1:2]),
        (None, texts.target[:, 2:]),
    ]
    found = [texts.read(s, t, cache=cache) for s, t in pieces if t.shape[1]]
    torch.testing.assert_close(torch.cat(found, 1), texts.logits, **CLOSE)
    if texts.model.spec.context_length < 4:
        return
    cache, (source, real) = texts.model.new_cache(), padded(texts.source, 1, 2)
    found = [
        texts.read(source if s is not None else s, t, cache=cache, padding_mask=real)
        for s, t in pieces
        if t.shape[1]
    ]
    torch.testing.assert_close(torch.cat(found, 1), texts.logits, **CLOSE)


def rows_do_not_meet(texts: Texts) -> None:
    source = texts.source.clone()
    source[1] = (source[1] + 1) % int(texts.model.spec.vocab_size)
    torch.testing.assert_close(texts.read(source, texts.target)[0], texts.logits[0], **CLOSE)


def gradients_are_finite(texts: Texts) -> None:
    texts.logits.square().mean().backward()
    missing = [n for n, p in texts.model.named_parameters() if p.grad is None]
    assert all(p.grad is None or p.grad.isfinite().all() for p in texts.model.parameters())
    assert not [name for name in missing if "encoder.layers" in name and "norm" in name]


def parameters_are_counted(texts: Texts) -> None:
    assert counts_of(texts.model.spec) == parameter_counts(texts.model.spec)


def it_is_what_it_is_written_as(texts: Texts) -> None:
    spec = texts.model.spec
    assert ModelSpec.model_validate(spec.model_dump()) == spec == spec.resolved()
    assert (texts.model.encoder.spec.dim, spec.encoder_model) == (
        spec.dim,
        texts.model.encoder.spec,
    )


LAWS = (
    *(kernels_agree, padding_changes_nothing, packed_is_alone, cached_is_uncached),
    a_decoder_token_sees_its_source_whole,
    *(rows_do_not_meet, gradients_are_finite, parameters_are_counted, it_is_what_it_is_written_as),
)


@settings(
    max_examples=COMPOSITIONS,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
@given(two_stack_specs(), st.integers(0, 2**20))
def test_every_composition_of_two_stacks_is_lawful(spec: ModelSpec, seed: int) -> None:
    try:
        spec.resolved()
    except UserError:
        assume(False)
    texts = Texts(spec, seed)
    obey(LAWS, texts, spec, seed)


def padded(tokens: Tensor, left: int, right: int) -> tuple[Tensor, Tensor]:
    rows = tokens.new_zeros(len(tokens), left + tokens.shape[1] + right)
    real = torch.zeros_like(rows, dtype=torch.bool)
    rows[:, left : left + tokens.shape[1]] = tokens
    real[:, left : left + tokens.shape[1]] = True
    return rows, real


SMALL = ModelSpec(dim=16, num_layers=2, vocab_size=33, context_length=12).override(
    *("attention.num_heads=2", "attention.num_kv_heads=1", "encoder.kind=stack"),
    *("encoder.num_layers=1", "encoder.attention.num_heads=2", "encoder.attention.num_kv_heads=1"),
    *("cross_attention.kind=softmax", "cross_attention.num_heads=2"),
    # What each token of the source becomes tells of those before it alone, so that it is told which ones are seen.
    "encoder.attention.mask.kind=causal",
)


def source_padding_that_is_seen(patch: pytest.MonkeyPatch) -> None:
    _blind(patch, padding_mask=None)


def sources_of_others_that_are_seen(patch: pytest.MonkeyPatch) -> None:
    _blind(patch, segment_ids=None)


def a_source_that_is_seen_bit_by_bit(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(context, "WHOLE", Causal(masks.Causal()))
    _blind(patch)


def a_cross_state_whose_values_move(patch: pytest.MonkeyPatch) -> None:
    update = SourceKV.update

    def moved(self: SourceKV, new: Any) -> Any:
        was_there = self._held is not None
        keys, values = update(self, new)
        return keys, values.roll(1, 1) if was_there else values

    patch.setattr(SourceKV, "update", moved)


def sources_that_meet(patch: pytest.MonkeyPatch) -> None:
    encode = EncoderDecoder.encode

    def mixed(self: EncoderDecoder, *args: Any, **given: Any) -> Memory:
        memory = encode(self, *args, **given)
        mean = memory.output.mean(0, keepdim=True).expand_as(memory.output)
        return Memory(mean, memory.layout)

    patch.setattr(EncoderDecoder, "encode", mixed)


def a_kernel_that_sees_padding(patch: pytest.MonkeyPatch) -> None:
    def blind(q: Tensor, k: Tensor, v: Tensor, view: AttentionMask, scores: Any) -> Tensor:
        kept = view.kept and replace(view.kept, padding_mask=None)
        return eager(q, k, v, AttentionMask(view.pattern, view.layout, kept), scores)

    patch.setitem(KERNELS, "sdpa", Kernel(blind))


def _blind(patch: pytest.MonkeyPatch, **fields: None) -> None:
    """Let cross-attention forget something of where the tokens of a source stand."""

    def forgetful(self: Context) -> AttentionMask:
        source = replace(self.memory.layout, **fields)
        return AttentionMask(context.WHOLE, self.layout, source)

    patch.setattr(Context, "memory_mask", forgetful)


FAULTS = (
    (source_padding_that_is_seen, padding_changes_nothing),
    (source_padding_that_is_seen, a_decoder_token_sees_its_source_whole),
    (source_padding_that_is_seen, cached_is_uncached),
    (sources_of_others_that_are_seen, packed_is_alone),
    (sources_of_others_that_are_seen, a_decoder_token_sees_its_source_whole),
    (a_source_that_is_seen_bit_by_bit, a_decoder_token_sees_its_source_whole),
    (a_cross_state_whose_values_move, cached_is_uncached),
    (sources_that_meet, rows_do_not_meet),
    (a_kernel_that_sees_padding, kernels_agree),
)


@pytest.mark.parametrize(("plant", "law"), FAULTS, ids=lambda value: value.__name__)
def test_a_planted_fault_is_caught(
    plant: Callable[[pytest.MonkeyPatch], None],
    law: Callable[[Texts], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    law(Texts(SMALL, 1))
    plant(monkeypatch)
    with pytest.raises(AssertionError):
        law(Texts(SMALL, 1))
