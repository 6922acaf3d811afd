"""Random compositions of an encoder and a decoder obey laws of their own: see `test_laws` for decoders."""

import os

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor

from archwright.catalogue.parameter_counts import parameter_counts
from archwright.model.build import build
from archwright.model.encoder_decoder import EncoderDecoder
from archwright.parts.masks import prefix_size
from archwright.planning.counts import counts_of
from archwright.spec.errors import UserError
from archwright.spec.model_spec import ModelSpec
from tests.laws.laws import enlarged, obey
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

    def read(self, source: Tensor | None, target: Tensor, **given: object) -> Tensor:
        logits: Tensor = self.model(source, target, **given).logits
        return logits


def kernels_agree(texts: Texts) -> None:
    for kernel in ("sdpa", "blockwise"):
        texts.model.use_kernel(kernel)
        torch.testing.assert_close(texts.read(texts.source, texts.target), texts.logits, **CLOSE)
    texts.model.use_kernel("eager")


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
    *(rows_do_not_meet, gradients_are_finite, parameters_are_counted, it_is_what_it_is_written_as),
)


@settings(max_examples=COMPOSITIONS)
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
