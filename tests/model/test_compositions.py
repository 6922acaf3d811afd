"""Random compositions of all choices: each is refused by a rule's name, or builds and runs."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from archwright.model import build
from archwright.parts.kernels import KERNELS
from archwright.spec.errors import UserError
from archwright.spec.model_spec import ModelSpec
from archwright.spec.rules import RULES
from tests.strategies import model_specs


@pytest.mark.slow
@settings(max_examples=40)
@given(model_specs(), st.integers(1, 20), st.sampled_from(sorted(KERNELS)))
def test_each_is_refused_or_runs(spec: ModelSpec, length: int, kernel: str) -> None:
    if any(line for rule in RULES for line in rule.check(spec)):
        with pytest.raises(UserError):
            build(spec, device="meta")
        return
    model, meta = build(spec).use_kernel(kernel), build(spec, device="meta")
    assert {n: p.shape for n, p in model.named_parameters()} == {
        n: p.shape for n, p in meta.named_parameters()
    }
    row = torch.randint(0, 16, (2, min(length, spec.context_length)))
    logits = model(row).logits
    assert logits.shape == (*row.shape, model.spec.vocab_size)
    F.cross_entropy(logits.flatten(0, 1), row.flatten()).backward()
    assert logits.isfinite().all()
    for name, parameter in model.named_parameters():
        assert parameter.grad is None or parameter.grad.isfinite().all(), name


@pytest.mark.slow
@settings(max_examples=15)
@given(model_specs())
def test_kernels_agree_on_each(spec: ModelSpec) -> None:
    assume(not any(line for rule in RULES for line in rule.check(spec)))
    model = build(spec).double().eval()
    row = torch.randint(0, 16, (2, spec.context_length))
    real = torch.arange(spec.context_length) >= torch.tensor([[0], [spec.context_length // 2]])
    with torch.no_grad():
        found = [model.use_kernel(name)(row, padding_mask=real).logits[real] for name in KERNELS]
    for other in found[1:]:
        torch.testing.assert_close(found[0], other, rtol=1e-6, atol=1e-6)
