"""The loss against its formula in float64, and torch's own cross-entropy."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from archwright import losses
from archwright.losses import cross_entropy


def reference(
    logits: Tensor, targets: Tensor, z_loss: float, divisor: float, ignore_index: int = -100
) -> Tensor:
    """The definition, target by target, in float64."""
    total = torch.zeros((), dtype=torch.float64)
    for row, target in zip(logits.flatten(0, -2).double(), targets.flatten(), strict=True):
        if target != ignore_index:
            log_z = torch.log(torch.exp(row - row.max()).sum()) + row.max()
            total = total + log_z - row[target] + z_loss * log_z**2
    return total / divisor


def batch(rows: int = 12, vocab: int = 37, dtype: torch.dtype = torch.float32, spread: float = 3.0):
    generator = torch.Generator().manual_seed(1)
    logits = (torch.randn(3, rows // 3, vocab, generator=generator) * spread).to(dtype)
    targets = torch.randint(vocab, (3, rows // 3), generator=generator)
    targets[0, 1] = targets[2, 0] = -100
    return logits.requires_grad_(), targets


@pytest.fixture(params=[2**20, 5 * 37], ids=["one chunk", "uneven chunks"])
def chunk_size(request, monkeypatch):
    size = request.param // 37
    cut = lambda logits: [slice(i, i + size) for i in range(0, len(logits), size)]  # noqa: E731
    monkeypatch.setattr(losses, "_chunks", cut)


@pytest.mark.parametrize("z_loss", [0.0, 0.01])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
def test_value_and_gradient_are_those_of_the_formula(dtype, z_loss, chunk_size):
    logits, targets = batch(dtype=dtype)
    loss = cross_entropy(logits, targets, z_loss=z_loss)
    expected = reference(logits, targets, z_loss, divisor=10)
    # The value is exact whatever the logits' dtype: that only rounds the logits themselves.
    assert loss.total.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    assert loss.total.item() == pytest.approx(expected.item(), rel=1e-6)
    assert loss.nll_sum.item() == pytest.approx(reference(logits, targets, 0, 1).item(), rel=1e-6)
    assert loss.z_term.item() == pytest.approx(
        expected.item() - reference(logits, targets, 0, 10).item(), rel=1e-4, abs=1e-9
    )
    assert loss.num_targets.item() == 10

    (gradient,) = torch.autograd.grad(loss.total, logits)
    (exact,) = torch.autograd.grad(expected, logits)
    assert gradient.dtype == dtype
    step = torch.finfo(dtype).eps if dtype != torch.float64 else 1e-12
    smallest = 1e-7 if dtype == torch.float16 else 2e-8
    torch.testing.assert_close(gradient.double(), exact.double(), rtol=2 * step, atol=smallest)


@pytest.mark.parametrize("z_loss", [0.0, 0.1])
def test_gradcheck(z_loss, chunk_size):
    logits, targets = batch(dtype=torch.float64, spread=1.0)
    assert torch.autograd.gradcheck(
        lambda x: cross_entropy(x, targets, z_loss=z_loss).total * 2.5, logits
    )


def test_agrees_with_torch_on_real_chunks():
    logits = torch.randn(700, 2048, generator=torch.Generator().manual_seed(0)) * 4
    assert len(losses._chunks(logits)) > 1
    targets = torch.arange(700)
    ours, theirs = logits.clone().requires_grad_(), logits.clone().requires_grad_()
    loss = cross_entropy(ours, targets).total
    loss.backward()
    expected = F.cross_entropy(theirs, targets)
    expected.backward()
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-4, atol=1e-9)


def test_bfloat16_logits_are_not_reduced_in_bfloat16():
    logits = torch.randn(64, 4096, generator=torch.Generator().manual_seed(0)).bfloat16()
    targets = torch.arange(64)
    exact = F.cross_entropy(logits.double(), targets).item()
    assert abs(F.cross_entropy(logits, targets).item() - exact) > 1e-3
    assert abs(cross_entropy(logits, targets).total.item() - exact) < 1e-5


def test_micro_batches_of_uneven_label_counts_add_up_to_the_whole():
    logits, targets = batch()
    whole = cross_entropy(logits, targets, z_loss=0.01).total
    (expected,) = torch.autograd.grad(whole, logits)
    num_valid = (targets != -100).sum()
    parts = [
        cross_entropy(logits[i], targets[i], z_loss=0.01, num_valid=num_valid).total
        for i in range(3)
    ]
    gradient = sum(torch.autograd.grad(part, logits)[0] for part in parts)
    torch.testing.assert_close(sum(parts), whole)
    torch.testing.assert_close(gradient, expected)


def test_a_batch_without_valid_targets_is_zero():
    logits, targets = batch()
    loss = cross_entropy(logits, torch.full_like(targets, -100), z_loss=0.1)
    loss.total.backward()
    assert loss.total.item() == loss.nll_sum.item() == loss.num_targets.item() == 0
    assert torch.equal(logits.grad, torch.zeros_like(logits))


def test_another_ignore_index():
    logits, targets = batch()
    padded = torch.where(targets == -100, 0, targets.clamp(min=1))
    expected = reference(logits, padded, 0.0, (padded != 0).sum().item(), ignore_index=0)
    loss = cross_entropy(logits, padded, ignore_index=0)
    assert loss.total.item() == pytest.approx(expected.item(), rel=1e-6)


def test_extreme_logits_stay_finite_and_right():
    logits = torch.tensor([[1e4, -1e4, 0.0], [-1e30, 5.0, 5.0], [-math.inf, 0.0, 1.0]])
    logits.requires_grad_()
    loss = cross_entropy(logits, torch.tensor([1, 2, 2]))
    loss.total.backward()
    expected = 2e4 + math.log(2) + math.log(1 + math.exp(-1))
    assert loss.nll_sum.item() == pytest.approx(expected, rel=1e-6)
    assert torch.isfinite(logits.grad).all()


def test_a_loss_scale_saves_float16_gradients_from_underflow():
    logits = torch.zeros(1, 60_000, dtype=torch.float16, requires_grad=True)
    loss = cross_entropy(logits, torch.tensor([0]), num_valid=4096).total
    (loss * 2.0**16).backward()  # more than float16 can hold
    assert logits.grad[0, 1].item() == pytest.approx(2.0**16 / 60_000 / 4096, rel=1e-2)


def test_evaluation_computes_no_gradient():
    logits, targets = batch()
    with torch.no_grad():
        loss = cross_entropy(logits, targets)
    assert not loss.total.requires_grad
    assert not cross_entropy(logits, targets).nll_sum.requires_grad


def test_a_target_beyond_the_vocabulary_is_refused():
    with pytest.raises((IndexError, RuntimeError)):
        cross_entropy(torch.zeros(1, 5), torch.tensor([5]))
