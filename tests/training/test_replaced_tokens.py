"""A generator and what finds its tokens: their losses, and what these move, beside the published classes."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from archwright import hf
from archwright.data.inputs import IGNORE
from archwright.model import build
from archwright.model.replaced_tokens import drawn
from archwright.training.step import second_answers, train_step
from tests.model.test_replaced_tokens import FP32, batch, made, published


def test_loss_and_gradients_are_those_of_the_published_classes() -> None:
    """With one embedding: its gradient is the sum of both."""
    model, given = made(), batch()
    theirs = published(model)
    real, types = given.inputs.padding_mask, given.inputs.token_type_ids
    out = model(**given.inputs.given())
    around = {"attention_mask": real.long(), "token_type_ids": types}
    first = theirs[0](input_ids=given.inputs.tokens, labels=given.targets, **around)
    torch.testing.assert_close(out.logits[real], first.logits[real], rtol=1e-9, atol=1e-9)
    chosen = given.targets != IGNORE
    text = torch.where(chosen, given.targets, given.inputs.tokens)
    labels = (out.read != text).long()
    assert labels[chosen].any()
    second = theirs[1](input_ids=out.read, labels=labels, **around)
    torch.testing.assert_close(out.replaced_logits[real], second.logits[real], rtol=1e-9, atol=1e-9)
    (first.loss + 50 * second.loss).backward()

    before = copy.deepcopy(model)
    optimizers = {"sgd": torch.optim.SGD([{"params": [*model.parameters()], "initial_lr": 1.0}])}
    result = train_step(
        model,
        given,
        optimizers,
        lr_scale=1.0,
        precision=FP32,
        max_grad_norm=None,
        grad_accum_steps=3,
        second_weight=50.0,
    )
    assert result.loss == pytest.approx(first.loss.item(), rel=1e-6)
    assert result.second_loss == pytest.approx(second.loss.item(), rel=1e-6)
    # The library's gradients, under our names.
    family, spec = hf.FAMILIES["electra"], model.spec
    total: dict[str, Tensor] = {n: torch.zeros_like(p) for n, p in before.named_parameters()}
    for theirs_one, of, at in (
        (theirs[0], spec.generator_model, "generator."),
        (theirs[1], spec.detector, ""),
    ):
        assert of is not None
        alone = build(of).double()
        tensors = {n: torch.zeros_like(p) for n, p in alone.named_parameters()}
        for name, slot in family.slots(of, tensors).items():
            grad = dict(theirs_one.named_parameters())[name].grad
            slot.read(grad, tensors)
        for name, grad in tensors.items():
            total[f"{at}{name}" if f"{at}{name}" in total else name] += grad
    for (name, now), was in zip(model.named_parameters(), before.parameters(), strict=True):
        torch.testing.assert_close(was - now, total[name], rtol=1e-6, atol=1e-7, msg=name)


def test_what_was_drawn_carries_no_gradient_and_an_own_token_is_one() -> None:
    model, given = made(), batch()
    out = model(**given.inputs.given())
    nats, right = second_answers(out, given)
    assert len(nats) == int(given.inputs.padding_mask.sum())
    nats.sum().backward()
    assert all(
        p.grad is None for p in model.generator.parameters() if p is not model.embedding.weight
    )
    # Where the generator is sure of the text's own tokens, nothing was replaced.
    sure = F.one_hot(given.targets.clamp(min=0), 64) * 100.0
    same = drawn(given.inputs.tokens, sure, given.inputs.draws)
    text = torch.where(given.targets == IGNORE, given.inputs.tokens, given.targets)
    assert same.equal(text)
    whole = type(out)(sure, replaced_logits=out.replaced_logits.detach(), read=same)
    nats, right = second_answers(whole, given)
    logits = out.replaced_logits[given.inputs.padding_mask]
    torch.testing.assert_close(nats, F.softplus(logits).detach())
    assert right.equal(logits < 0)
