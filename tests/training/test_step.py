"""The step against plain float64 arithmetic: one loss over the whole batch, one clip, one update."""

import copy
import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from archwright import losses
from archwright.data.inputs import Batch, Inputs
from archwright.machine.precision import Precision
from archwright.model import build
from archwright.optim import build_optimizers
from archwright.scale.processes import Processes
from archwright.spec.machine import ActivationCheckpointing
from archwright.spec.model_spec import ModelSpec
from archwright.spec.optimizers import AdamW
from archwright.training import step as step_room
from archwright.training.step import StepResult, train_step

SPEC = ModelSpec(dim=16, num_layers=2, vocab_size=64, context_length=12).override(
    "attention.num_heads=2", "attention.num_kv_heads=1"
)
FP32 = Precision("fp32", torch.device("cpu"))


@pytest.fixture
def model() -> nn.Module:
    return build(SPEC, seed=3).double()


def batch(rows: int = 5) -> Batch:
    """Rows with very unequal numbers of ignored targets, one of them without any target."""
    dice = torch.Generator().manual_seed(1)
    tokens = torch.randint(0, 64, (rows, 12), generator=dice)
    targets = torch.randint(0, 64, (rows, 12), generator=dice)
    for row in range(rows):
        targets[row, : 12 - 12 * row // (rows - 1)] = -100
    return Batch(Inputs(tokens), targets)


def stepped(model: nn.Module, rows: Batch, **settings: object) -> StepResult:
    optimizers = build_optimizers(model, AdamW(lr=0.1, eps=1e-3))
    return train_step(
        model,
        rows,
        optimizers,
        **{"lr_scale": 0.25, "precision": FP32, "max_grad_norm": None, **settings},  # type: ignore[arg-type]
    )


def by_hand(model: nn.Module, rows: Batch, max_grad_norm: float | None, z_loss: float) -> Tensor:
    """The formulas, with torch's own losses and AdamW: return the norm before clipping."""
    decayed = [p for p in model.parameters() if p.ndim > 1]
    plain = [p for p in model.parameters() if p.ndim < 2]
    optimizer = torch.optim.AdamW(
        [{"params": decayed, "weight_decay": 0.1}, {"params": plain, "weight_decay": 0.0}],
        lr=0.1 * 0.25,
        betas=(0.9, 0.95),
        eps=1e-3,
    )
    logits = model(rows.inputs.tokens).logits.flatten(0, 1)
    targets = rows.targets.flatten()
    loss = F.cross_entropy(logits, targets, ignore_index=-100)
    loss = loss + z_loss * logits.logsumexp(-1)[targets >= 0].square().mean()
    loss.backward()
    norm = math.sqrt(sum(p.grad.square().sum().item() for p in model.parameters()))  # type: ignore[union-attr]
    if max_grad_norm is not None and norm > max_grad_norm:
        for p in model.parameters():
            p.grad *= max_grad_norm / norm  # type: ignore[operator]
    optimizer.step()
    return torch.tensor(norm)


def assert_equal_weights(one: nn.Module, other: nn.Module, atol: float = 1e-12) -> None:
    for (name, a), b in zip(one.named_parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=atol, msg=lambda m, n=name: f"{n}: {m}")


@pytest.mark.parametrize("grad_accum_steps", [1, 2, 3, 5])
@pytest.mark.parametrize(
    ("max_grad_norm", "z_loss"), [(None, 0.0), (0.05, 0.0), (1e3, 0.1), (0.05, 0.1)]
)
def test_parts_add_up_to_the_batch(
    model: nn.Module, grad_accum_steps: int, max_grad_norm: float | None, z_loss: float
) -> None:
    expected = copy.deepcopy(model)
    norm = by_hand(expected, batch(), max_grad_norm, z_loss)
    result = stepped(
        model,
        batch(),
        grad_accum_steps=grad_accum_steps,
        max_grad_norm=max_grad_norm,
        z_loss=z_loss,
    )
    assert result.grad_norm == pytest.approx(norm.item(), rel=1e-6)  # float32 where it is summed
    # AdamW's first update is nearly the gradient's sign: what clipping rounds hardly shows.
    assert_equal_weights(model, expected, atol=1e-12 if max_grad_norm is None else 1e-8)


@pytest.mark.parametrize("num_rows", [4, 5])
@pytest.mark.parametrize("chunked", [False, True])
def test_what_routers_ask_for_is_minimised_too(chunked: bool, num_rows: int) -> None:
    """A part counts by its rows; the reported loss is without it, and evaluation asks for nothing."""
    spec = SPEC.override(
        "feedforward.kind=experts", "feedforward.balance_loss=0.3", "feedforward.router_z_loss=0.2"
    )
    model = build(spec, seed=3).double()
    expected, rows = copy.deepcopy(model), batch(num_rows)
    asked = torch.zeros(())
    loss = F.cross_entropy(
        expected(rows.inputs.tokens).logits.flatten(0, 1), rows.targets.flatten(), ignore_index=-100
    )
    larger = -(-num_rows // 2)
    for part in (rows.inputs.tokens[:larger], rows.inputs.tokens[larger:]):
        expected(part)
        share = len(part) / num_rows
        asked = asked + share * sum(losses.pop_aux_losses(expected).values())
    (loss + asked).backward()
    norm = math.sqrt(sum(p.grad.square().sum().item() for p in expected.parameters()))  # type: ignore[union-attr]
    optimizers = build_optimizers(model, AdamW(lr=0.1, eps=1e-3))
    result = train_step(
        model,
        rows,
        optimizers,
        lr_scale=0.0,
        precision=FP32,
        max_grad_norm=None,
        grad_accum_steps=2,
        chunked=chunked,
    )
    assert result.loss == pytest.approx(loss.item(), rel=1e-6)
    assert result.auxiliary["router_loss"] == pytest.approx(asked.item(), rel=1e-9)
    assert result.grad_norm == pytest.approx(norm, rel=1e-5)
    assert not losses.pop_aux_losses(model)
    model.eval()(rows.inputs.tokens)
    assert not losses.pop_aux_losses(model)


def test_what_a_step_reports(model: nn.Module) -> None:
    rows = batch()
    logits = model(rows.inputs.tokens).logits.flatten(0, 1)
    targets = rows.targets.flatten()
    valid = targets >= 0
    loss = F.cross_entropy(logits[valid], targets[valid]).item()
    z_term = 0.3 * logits.logsumexp(-1)[valid].square().mean().item()
    result = stepped(model, rows, grad_accum_steps=2, z_loss=0.3)
    assert result.loss == pytest.approx(loss, rel=1e-12)  # without the z-loss
    assert result.z_loss == pytest.approx(z_term, rel=1e-12)
    assert result.finite


def test_rate_is_a_share_of_the_peak(model: nn.Module) -> None:
    still = copy.deepcopy(model)
    stepped(model, batch(), lr_scale=0.0)
    assert_equal_weights(model, still, atol=0.0)


def test_document_masks_and_positions_are_cut_with_the_rows(model: nn.Module) -> None:
    plain = batch()
    ids = (torch.arange(12) >= 5).long().expand(5, -1)
    positions = torch.arange(12).expand(5, -1) - 5 * ids
    rows = Batch(Inputs(plain.inputs.tokens, positions, ids), plain.targets)
    whole = copy.deepcopy(model)
    stepped(whole, rows)
    stepped(model, rows, grad_accum_steps=3)
    assert_equal_weights(model, whole)
    unmasked = copy.deepcopy(model)
    stepped(unmasked, plain)
    assert not torch.equal(unmasked.head.weight, model.head.weight)  # type: ignore[union-attr]


def test_gradients_are_gone_afterwards(model: nn.Module) -> None:
    stepped(model, batch())
    assert all(p.grad is None for p in model.parameters())


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_loss_that_is_no_number_updates_nothing(model: nn.Module, value: float) -> None:
    optimizers = build_optimizers(model, AdamW())
    model.head.weight.data[3, 3] = value  # type: ignore[union-attr, operator]
    before = copy.deepcopy(model.state_dict())
    result = train_step(
        model, batch(), optimizers, lr_scale=1.0, precision=FP32, grad_accum_steps=2
    )
    assert not result.finite
    for name, tensor in model.state_dict().items():
        torch.testing.assert_close(tensor, before[name], rtol=0, atol=0, equal_nan=True)
    assert not optimizers["adamw"].state
    assert all(p.grad is None for p in model.parameters())


def test_a_gradient_that_is_no_number_updates_nothing(model: nn.Module) -> None:
    """A finite loss whose gradient overflows."""
    model.embedding.weight.register_hook(lambda grad: grad * math.inf)  # type: ignore[union-attr, operator]
    before = copy.deepcopy(model.state_dict())
    result = stepped(model, batch(), max_grad_norm=1.0)
    assert math.isfinite(result.loss)
    assert not result.finite
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


@pytest.mark.parametrize("finite", [True, False])
def test_updates_that_skip_themselves_are_those_that_are_not_made(
    finite: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A GPU's fused optimizer is called before the host knows whether it may update."""
    found = []
    for first in (False, True):
        monkeypatch.setattr(step_room, "_can_skip", lambda *_, first=first: first)
        model, rows = build(SPEC, seed=3), batch()
        optimizers = build_optimizers(model, AdamW(lr=0.1))
        if not finite:
            model.embedding.weight.register_hook(lambda grad: grad * math.nan)
        results = [
            train_step(model, rows, optimizers, lr_scale=0.5, precision=FP32) for _ in range(2)
        ]
        assert {result.finite for result in results} == {finite}
        found.append(copy.deepcopy(model.state_dict()))
    for name, value in found[0].items():
        assert torch.equal(value, found[1][name]), name
    assert finite != torch.equal(found[0]["embedding.weight"], build(SPEC, seed=3).embedding.weight)


def test_no_target_at_all_is_no_loss(model: nn.Module) -> None:
    rows = batch()
    nothing = Batch(rows.inputs, torch.full_like(rows.targets, -100))
    result = stepped(model, nothing, lr_scale=0.0)
    assert (result.loss, result.grad_norm, result.finite) == (0.0, 0.0, True)


def test_bf16_is_near_fp32() -> None:
    results = {}
    for name in ("fp32", "bf16"):
        precision = Precision(name, torch.device("cpu"))
        results[name] = stepped(build(SPEC, seed=3), batch(), precision=precision)
    assert results["bf16"].loss == pytest.approx(results["fp32"].loss, rel=1e-2)
    assert results["bf16"].loss != results["fp32"].loss


@pytest.mark.parametrize("grad_accum_steps", [1, 3])
@pytest.mark.parametrize("tied", [False, True])
def test_a_step_with_few_logits_at_a_time_is_the_same(
    grad_accum_steps: int, tied: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(losses, "LINEAR_CHUNK", 7 * 64 * 4)
    spec = SPEC.override(f"head.tied={str(tied).lower()}", "head.bias=true", "head.softcap=5.0")
    whole = build(spec, seed=3).double()
    chunked = copy.deepcopy(whole)
    one = stepped(
        whole, batch(), z_loss=0.01, label_smoothing=0.1, grad_accum_steps=grad_accum_steps
    )
    other = stepped(
        chunked,
        batch(),
        z_loss=0.01,
        label_smoothing=0.1,
        grad_accum_steps=grad_accum_steps,
        chunked=True,
    )
    assert other.loss == pytest.approx(one.loss, rel=1e-12)
    assert other.z_loss == pytest.approx(one.z_loss, rel=1e-12)
    assert other.grad_norm == pytest.approx(one.grad_norm, rel=1e-9)
    for ours, theirs in zip(chunked.parameters(), whole.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-12)


EXPERTS = (
    "feedforward.kind=experts",
    "feedforward.num_experts=4",
    "feedforward.selection_bias_update_rate=0.1",
    "feedforward.balance_loss=0.1",
    "feedforward.routing.kind=sigmoid",
    "residual.dropout=0.1",
    "embedding.dropout=0.1",
)


@pytest.mark.parametrize("what", ["selective", "full"])
@pytest.mark.parametrize("changes", [(), EXPERTS], ids=["dense", "experts"])
def test_layers_that_are_computed_again_give_the_same_step(
    changes: tuple[str, ...], what: ActivationCheckpointing
) -> None:
    """Bit for bit, dropout and what routers see included; and their values are not kept."""
    found = []
    for checkpointing in ("none", what):
        model = build(SPEC.override(*changes), seed=3).checkpoint_activations(checkpointing)
        kept: dict[int, int] = {}

        def keep(x: Tensor, kept: dict[int, int] = kept) -> Tensor:
            kept[x.untyped_storage().data_ptr()] = x.untyped_storage().nbytes()
            return x

        torch.manual_seed(5)
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x):
            model(batch().inputs.tokens)
        losses.pop_aux_losses(model)
        torch.manual_seed(6)
        result = stepped(model, batch(), grad_accum_steps=2)
        found.append((result, model.state_dict(), sum(kept.values())))
    (plain, weights, all_kept), (again_, same, few_kept) = found
    assert plain == again_
    for name, value in weights.items():
        assert torch.equal(value, same[name]), name
    assert few_kept < 0.6 * all_kept


class Share(Processes):
    """One of two processes that wait for no other: it takes its rows, and keeps its gradients."""

    size = 2

    def __init__(self, rank: int, model: torch.nn.Module) -> None:
        self.number, self.model = rank, model
        self.gradients: list[torch.Tensor] = []

    def rows(self, part: Batch) -> Batch:
        middle = len(part.targets) // 2
        return part[middle:] if self.number else part[:middle]

    def bring_gradients(self) -> None:
        self.gradients = [p.grad.clone() for p in self.model.parameters() if p.grad is not None]


@pytest.mark.parametrize("chunked", [False, True])
def test_what_processes_make_of_their_rows_adds_up_to_that_of_the_batch(
    model: nn.Module, chunked: bool
) -> None:
    """Though one has far fewer targets than the other."""
    rows, found = batch(), []
    for rank in (None, 0, 1):
        own = copy.deepcopy(model)
        share = Share(rank or 0, own)
        if rank is None:
            share.rows = lambda part: part  # type: ignore[method-assign]
        result = stepped(
            own, rows, processes=share, z_loss=0.1, grad_accum_steps=2, chunked=chunked
        )
        found.append((share.gradients, result))
    (whole, result), (first, one), (second, other) = found
    assert one.loss + other.loss == pytest.approx(result.loss, rel=1e-9)
    assert one.z_loss + other.z_loss == pytest.approx(result.z_loss, rel=1e-9)
    for a, b, c in zip(first, second, whole, strict=True):
        torch.testing.assert_close(a + b, c, rtol=1e-6, atol=1e-9)
