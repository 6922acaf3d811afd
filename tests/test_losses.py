"""The loss against its formula in float64, and torch's own cross-entropy."""

import math
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from archwright import losses
from archwright.losses import Loss, cross_entropy, linear_cross_entropy
from archwright.parts.branch import Branch
from archwright.parts.embeddings import Head
from archwright.parts.feedforward import RouterAuxLoss
from archwright.spec.embeddings import Head as HeadSpec
from archwright.spec.errors import UserError


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
    monkeypatch.setattr(losses, "CHUNK", request.param)


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


@pytest.mark.slow
@pytest.mark.parametrize("z_loss", [0.0, 0.1])
def test_gradcheck(z_loss, chunk_size):
    logits, targets = batch(dtype=torch.float64, spread=1.0)
    assert torch.autograd.gradcheck(
        lambda x: cross_entropy(x, targets, z_loss=z_loss).total * 2.5, logits
    )


@pytest.mark.parametrize("loss_of", ["logits", "a chunk at a time"])
@pytest.mark.parametrize("z_loss", [0.0, 0.01])
def test_label_smoothing_is_torch_s(loss_of, z_loss, chunk_size, few_rows):
    generator = torch.Generator().manual_seed(3)
    hidden = torch.randn(12, 8, generator=generator, dtype=torch.float64, requires_grad=True)
    head = Head(HeadSpec(), 8, 37).double()
    torch.nn.init.normal_(head.weight, generator=generator)
    targets = torch.randint(37, (12,), generator=generator)
    targets[4] = -100
    options = {"z_loss": z_loss, "label_smoothing": 0.1}
    if loss_of == "logits":
        loss = cross_entropy(head(hidden), targets, **options)
    else:
        loss = linear_cross_entropy(hidden, head, targets, **options)
    logits = head(hidden)
    z_term = z_loss * (logits.logsumexp(-1) ** 2)[targets != -100].mean()
    expected = F.cross_entropy(logits, targets, label_smoothing=0.1) + z_term
    torch.testing.assert_close(loss.total, expected, rtol=1e-12, atol=0)
    torch.testing.assert_close(loss.nll_sum, F.cross_entropy(logits, targets, reduction="sum"))
    found, wanted = (
        torch.autograd.grad(total * 2.5, (hidden, head.weight)) for total in (loss.total, expected)
    )
    torch.testing.assert_close(found, wanted, rtol=1e-10, atol=1e-12)


def test_agrees_with_torch_on_real_chunks():
    logits = torch.randn(700, 2048, generator=torch.Generator().manual_seed(0)) * 4
    assert logits.numel() > losses.CHUNK
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


HEADS = {
    "plain": {},
    "bias": {"bias": True},
    "factors": {"bias": True, "logit_scale": 0.7, "logit_divisor": 1.3},
    "soft-cap": {"softcap": 2.5, "logit_scale": 1.5},
}


@pytest.fixture(params=[10**6, 5], ids=["one chunk", "uneven chunks"])
def few_rows(request, monkeypatch):
    monkeypatch.setattr(losses, "LINEAR_CHUNK", 4 * 37 * request.param)


def made_head(options: dict[str, object]) -> Head:
    head = Head(HeadSpec.model_validate(options), 6, 37)
    generator = torch.Generator().manual_seed(2)
    torch.nn.init.normal_(head.weight, 0.0, 1.5 / math.sqrt(6), generator=generator)
    if head.bias is not None:
        torch.nn.init.normal_(head.bias, 0.0, 0.3, generator=generator)
    return head


def hidden_batch() -> tuple[Tensor, Tensor]:
    hidden = torch.randn(3, 4, 6, generator=torch.Generator().manual_seed(3)).requires_grad_()
    return hidden, batch()[1]


def logits_by_hand(head: Head, hidden: Tensor, options: dict[str, float]) -> Tensor:
    logits = torch.einsum("btd,vd->btv", hidden, head.weight)
    logits = logits if head.bias is None else logits + head.bias
    logits = logits * options.get("logit_scale", 1.0) / options.get("logit_divisor", 1.0)
    cap = options.get("softcap")
    return logits if cap is None else cap * torch.tanh(logits / cap)


@pytest.mark.parametrize("z_loss", [0.0, 0.01])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("kind", HEADS)
class TestLinear:
    def test_value_and_gradients_are_those_of_the_formula(self, kind, dtype, z_loss, few_rows):
        head, (hidden, targets) = made_head(HEADS[kind]), hidden_batch()
        head, hidden = head.to(dtype), hidden.detach().to(dtype).requires_grad_()
        wanted = [hidden, *head.parameters()]
        loss = linear_cross_entropy(hidden, head, targets, z_loss=z_loss)
        exact = made_head(HEADS[kind]).double()
        wide = hidden.detach().double().requires_grad_()
        logits = logits_by_hand(exact, wide, HEADS[kind])
        expected = reference(logits, targets, z_loss, divisor=10)
        close = {"rtol": 1e-9, "atol": 1e-11} if dtype == torch.float64 else {}
        assert loss.total.dtype == dtype
        torch.testing.assert_close(loss.total, expected.to(dtype), **close)
        whole = cross_entropy(head(hidden), targets, z_loss=z_loss)
        for part in ("nll_sum", "z_term", "num_targets"):
            torch.testing.assert_close(getattr(loss, part), getattr(whole, part), **close)
        found = torch.autograd.grad(2.5 * loss.total, wanted)
        truth = torch.autograd.grad(2.5 * expected, [wide, *exact.parameters()])
        for ours, theirs in zip(found, truth, strict=True):
            torch.testing.assert_close(ours, theirs.to(dtype), **close)


def test_linear_with_another_ignore_index(few_rows):
    head, (hidden, targets) = made_head({}), hidden_batch()
    padded = torch.where(targets == -100, 0, targets.clamp(min=1))
    expected = cross_entropy(head(hidden), padded, ignore_index=0)
    found = linear_cross_entropy(hidden, head, padded, ignore_index=0)
    truth = reference(head(hidden), padded, 0.0, (padded != 0).sum().item(), ignore_index=0)
    torch.testing.assert_close(found.total, truth.to(found.total.dtype))
    assert found.num_targets == expected.num_targets < padded.numel()
    for ours, theirs in zip(
        torch.autograd.grad(found.total, [hidden, head.weight]),
        torch.autograd.grad(expected.total, [hidden, head.weight]),
        strict=True,
    ):
        torch.testing.assert_close(ours, theirs)


class Asking(Branch):
    """Asks for something to be minimised besides, as routers do."""

    def __init__(self, asked: Tensor | RouterAuxLoss | None, name: str = "router_loss") -> None:
        super().__init__()
        self.auxiliary, self.auxiliary_name = asked, name


def test_what_modules_ask_for_is_taken_once():
    asked = (torch.tensor(2.0), None, torch.tensor(0.5))
    further = Asking(torch.tensor(3.0), "further_loss")
    model = torch.nn.Sequential(*map(Asking, asked), further)
    assert losses.pop_aux_losses(model) == {"router_loss": 2.5, "further_loss": 3.0}
    assert losses.pop_aux_losses(model) == {}


@pytest.mark.parametrize("name", ["z_loss", "loss", "tokens_per_second"])
def test_auxiliary_losses_have_names_of_their_own(name):
    branch = Branch()
    assert losses.aux_loss_names(branch) == ["auxiliary_loss"]
    branch.auxiliary_name = name
    with pytest.raises(UserError, match=f'found "{name}"; expected another, which ends with _loss'):
        losses.aux_loss_names(branch)


def test_balance_over_all_layers_is_of_their_means():
    """factor * sum over experts of mean f_e * mean p_e, and what each layer asks for by itself."""
    dice = torch.Generator().manual_seed(0)
    shares, scores = torch.rand(2, 3, 5, generator=dice)
    asked = [
        Asking(RouterAuxLoss(share, score, 0.7, torch.tensor(0.1)))
        for share, score in zip(shares, scores, strict=True)
    ]
    expected = 3 * 0.1 + 0.7 * (shares.mean(0) * scores.mean(0)).sum().item()
    assert losses.pop_aux_losses(torch.nn.Sequential(*asked))[
        "router_loss"
    ].item() == pytest.approx(expected)


@pytest.mark.parametrize("kind", ["bias", "soft-cap"])
def test_linear_under_autocast_is_as_good_as_all_logits_at_once(kind, few_rows):
    head, (hidden, targets) = made_head(HEADS[kind]), hidden_batch()
    logits = logits_by_hand(head.double(), hidden.double(), HEADS[kind])
    truth = reference(logits, targets, 0.0, 10)
    exact = torch.autograd.grad(truth, [hidden, *head.parameters()])
    head.float()
    with torch.autocast("cpu", torch.bfloat16):
        loss = linear_cross_entropy(hidden, head, targets)
    found = torch.autograd.grad(loss.total, [hidden, *head.parameters()])
    assert loss.total.dtype == torch.float32
    assert loss.total.item() == pytest.approx(truth.item(), rel=5e-3)
    for ours, theirs in zip(found, exact, strict=True):
        assert ours.dtype == torch.float32
        assert (ours - theirs).norm() < 0.02 * theirs.norm()


def test_linear_gradients_of_a_tied_table_add_up(few_rows):
    hidden, targets = hidden_batch()
    table = torch.nn.Parameter(made_head({}).weight.detach().clone())
    head = Head(HeadSpec(tied=True), 6, 37, table)

    def gradient(loss_of):
        x = table[targets.clamp(min=0)] + hidden.detach()
        return torch.autograd.grad(loss_of(x).total, table)[0]

    torch.testing.assert_close(
        gradient(lambda x: linear_cross_entropy(x, head, targets)),
        gradient(lambda x: cross_entropy(head(x), targets)),
    )


def test_linear_float16_gradients_do_not_underflow():
    """The share of a token among many is smaller than float16 can say."""
    head = Head(HeadSpec(), 2, 60_000).half()
    torch.nn.init.zeros_(head.weight)
    hidden = torch.ones(1, 2, dtype=torch.float16)
    loss = linear_cross_entropy(hidden, head, torch.tensor([0]), num_valid=4096).total
    (loss * 2.0**16).backward()
    assert head.weight.grad[1, 0].item() == pytest.approx(2.0**16 / 60_000 / 4096, rel=1e-2)


def test_linear_without_gradients_and_without_targets(few_rows):
    head, (hidden, targets) = made_head({}), hidden_batch()
    with torch.no_grad():
        loss = linear_cross_entropy(hidden, head, targets)
        torch.testing.assert_close(loss.total, cross_entropy(head(hidden), targets).total)
    assert not loss.total.requires_grad
    nothing = linear_cross_entropy(hidden, head, torch.full_like(targets, -100), z_loss=0.1)
    nothing.total.backward()
    assert nothing.total.item() == 0
    assert not head.weight.grad.any()


@pytest.mark.slow
def test_linear_never_holds_all_logits():
    """The largest tensor made is the gradient of the head, or a chunk."""
    from torch.utils._python_dispatch import TorchDispatchMode

    largest = 0

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            nonlocal largest
            found = func(*args, **(kwargs or {}))
            for made in found if isinstance(found, tuple | list) else (found,):
                largest = max(largest, made.numel() if isinstance(made, Tensor) else 0)
            return found

    head, hidden = Head(HeadSpec(), 4, 20_000), torch.randn(2000, 4, requires_grad=True)
    torch.nn.init.normal_(head.weight)
    targets = torch.arange(2000)
    with Watch():
        linear_cross_entropy(hidden, head, targets).total.backward()
    assert largest <= losses.LINEAR_CHUNK / 4 < hidden.shape[0] * 20_000 / 2


class _Lockstep:
    """One of several threads that split a vocabulary."""

    def __init__(self, barrier: threading.Barrier, values: list[Tensor], rank: int) -> None:
        self.barrier, self.values, self.size = barrier, values, 36
        self.rank, self.start = rank, rank * 12

    def max(self, x: Tensor) -> Tensor:
        return self.exchanged(x).amax(0)

    def sum(self, x: Tensor) -> Tensor:
        return self.exchanged(x).sum(0)

    def exchanged(self, x: Tensor) -> Tensor:
        self.values[self.rank] = x
        self.barrier.wait(60)
        stacked = torch.stack(self.values)
        self.barrier.wait(60)
        return stacked


def test_gradients_of_a_split_vocabulary_survive_float16() -> None:
    """Divided by a million targets before the loss scale, they would be zero."""
    vocab = _Lockstep(threading.Barrier(1), [torch.empty(0)], 0)
    logits = torch.randn(4, 36, generator=torch.Generator().manual_seed(1)).half()
    targets = torch.arange(4)
    gradients = []
    for shards in (None, vocab):
        rows = logits.clone().requires_grad_()
        loss = cross_entropy(rows, targets, num_valid=10**6, vocab=shards)
        (gradient,) = torch.autograd.grad(loss.total * 2.0**16, rows)
        gradients.append(gradient)
    torch.testing.assert_close(*gradients)
    assert (gradients[0] != 0).all()


@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize("softcap", ["none", 3.0])
def test_a_split_vocabulary_has_the_loss_and_gradients_of_a_whole_one(
    whole: bool, softcap: str | float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(losses, "LINEAR_CHUNK", 4 * 36 * 5)
    monkeypatch.setattr(losses, "CHUNK", 12 * 3)
    generator = torch.Generator().manual_seed(3)
    spec = HeadSpec.model_validate({"softcap": softcap, "bias": True})
    head = Head(spec, 8, 36).double()
    torch.nn.init.normal_(head.weight, generator=generator)
    hidden = 5 * torch.randn(14, 8, generator=generator, dtype=torch.float64)
    targets = torch.randint(36, (14,), generator=generator)
    targets[[4, 9]] = 7
    options: dict[str, Any] = {"z_loss": 0.3, "label_smoothing": 0.1, "ignore_index": 7}

    def computed(part: Head) -> tuple[Loss, Tensor, Tensor]:
        rows = hidden.clone().requires_grad_()
        loss = linear_cross_entropy(rows, part, targets, whole=whole, **options)
        x, weight = torch.autograd.grad(2.5 * loss.total, (rows, part.weight))
        return loss, x, weight

    expected, x, weight = computed(head)
    values = [torch.empty(0)] * 3
    barrier, parts = threading.Barrier(3), []
    for rank in range(3):
        part = Head(spec, 8, 36).double()
        part.weight = torch.nn.Parameter(head.weight[12 * rank : 12 * rank + 12].detach())
        assert head.bias is not None
        part.bias = torch.nn.Parameter(head.bias[12 * rank : 12 * rank + 12].detach())
        part.vocab = _Lockstep(barrier, values, rank)
        parts.append(part)
    with ThreadPoolExecutor(3) as pool:
        found = [*pool.map(computed, parts)]
    for loss, _, _ in found:
        for name in ("total", "nll_sum", "z_term"):
            torch.testing.assert_close(getattr(loss, name), getattr(expected, name))
    torch.testing.assert_close(torch.stack([own for _, own, _ in found]).sum(0), x)
    torch.testing.assert_close(torch.cat([own for _, _, own in found]), weight)


@pytest.mark.parametrize(
    ("vocab_size", "tokens", "device", "chunks"),
    [
        (50304, 16384, "cpu", 50),
        (50304, 16384, "cuda", 4),
        (128256, 8192, "cpu", 64),
        (128256, 8192, "cuda", 4),
        (1_000_000, 8192, "cuda", 4),
    ],
)
def test_a_gpu_has_few_chunks(vocab_size: int, tokens: int, device: str, chunks: int) -> None:
    """A chunk of few rows would spend its time on the gradient of the head."""
    rows = losses.rows_per_chunk(vocab_size, device)
    assert len(losses._slices(tokens, rows)) == chunks
    assert device == "cpu" or rows >= 2048
