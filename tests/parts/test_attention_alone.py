"""Attention by itself: without a model, with sizes left open, and through a mask that is given."""

import math

import pytest
import torch
from torch import Tensor, nn

from archwright.parts.context import Context
from archwright.parts.feedforward import Experts, Gated, Plain
from archwright.parts.init import Glorot
from archwright.parts.kernels import KERNELS
from archwright.parts.masks import MASKS, AttentionMask
from archwright.parts.mixers import LatentAttention, SoftmaxAttention
from archwright.parts.residuals import DeepNorm
from archwright.parts.sharing import LayerInfo
from archwright.parts.token_layout import TokenLayout, token_layout
from archwright.spec import attention as spec
from archwright.spec import feedforward, latent, masks, positions, residuals
from archwright.spec import init as init_spec
from archwright.spec.errors import UserError

DIM, HEADS, WIDTH, LENGTH = 12, 4, 3, 9
KERNEL = pytest.mark.parametrize("kernel", KERNELS)
KIND = pytest.mark.parametrize("kind", ["softmax", "latent"])
SIZES = {
    "one for all": (1, 1),
    "one for each row": (3, 1),
    "one for each head": (1, HEADS),
    "one for each row and head": (3, HEADS),
}


def made(kind: str = "softmax", *, turning: bool = True, **options: object) -> nn.Module:
    """An attention whose weights show every dropped detail, in float64."""
    position = positions.RoPE() if turning else positions.NoPosition()
    part: nn.Module
    if kind == "latent":
        wanted = latent.LatentAttention(num_heads=HEADS, rope_head_dim=4, **options)
        part = LatentAttention(wanted, DIM, LayerInfo(position=position))
    else:
        choice = spec.SoftmaxAttention(num_heads=HEADS, head_dim=4, num_kv_heads=2, **options)
        part = SoftmaxAttention(choice, DIM, LayerInfo(position=position))
    dice = torch.Generator().manual_seed(0)
    for parameter in part.parameters():
        parameter.data = torch.randn(parameter.shape, generator=dice)
    return part.double()


def vectors(rows: int = 3) -> Tensor:
    dice = torch.Generator().manual_seed(1)
    return torch.randn(rows, LENGTH, DIM, generator=dice, dtype=torch.float64)


def drawn(rows: int, heads: int) -> Tensor:
    """A mask without any order, in which every query sees a key at least."""
    dice = torch.Generator().manual_seed(2)
    mask = torch.rand(rows, heads, LENGTH, LENGTH, generator=dice) < 0.4
    return mask | torch.eye(LENGTH, dtype=torch.bool).roll(3, 0)


@pytest.mark.sampled(fast=4)
@KERNEL
@KIND
@pytest.mark.parametrize("mask", [masks.Causal(), masks.Full(), masks.Window(size=4)], ids=str)
def test_alone_it_is_what_it_is_in_a_model(kind: str, mask: masks.Mask, kernel: str) -> None:
    part, x = made(kind, mask=mask), vectors()
    part.kernel = KERNELS[kernel]  # type: ignore[assignment]
    context = Context(token_layout(torch.zeros(len(x), LENGTH).long()), len(x))
    with torch.no_grad():
        torch.testing.assert_close(part(x), part(x, context), rtol=0, atol=0)


@KERNEL
@pytest.mark.parametrize(("rows", "heads"), SIZES.values(), ids=SIZES)
def test_a_given_mask_shows_what_it_says(rows: int, heads: int, kernel: str) -> None:
    """softmax over the shown keys alone, row by row, head by head and query by query."""
    part, x, mask = made(turning=False, softcap=5.0), vectors(), drawn(rows, heads)
    part.kernel = KERNELS[kernel]  # type: ignore[assignment]
    x.requires_grad_()
    found = part(x, attention_mask=mask)
    expected = by_hand(part, x, mask.expand(3, HEADS, -1, -1))
    torch.testing.assert_close(found, expected)
    ours, theirs = (torch.autograd.grad(y.square().sum(), x)[0] for y in (found, expected))
    torch.testing.assert_close(ours, theirs)
    if heads == 1:
        torch.testing.assert_close(part(x, attention_mask=mask[:, 0]), found)


def by_hand(part: nn.Module, x: Tensor, mask: Tensor) -> Tensor:
    maps = (part.query, part.key, part.value)
    q, k, v = ((x @ m.weight.T).unflatten(-1, (-1, 4)) for m in maps)  # type: ignore[operator, union-attr]
    rows = []
    for b in range(len(x)):
        heads = []
        for h in range(HEADS):
            scores = 5 * torch.tanh(q[b, :, h] @ k[b, :, h // 2].T / math.sqrt(4) / 5)
            weights = scores.exp() * mask[b, h]
            heads.append(weights / weights.sum(-1, keepdim=True) @ v[b, :, h // 2])
        rows.append(torch.cat(heads, -1))
    return torch.stack(rows) @ part.out.weight.T  # type: ignore[operator, union-attr]


@KERNEL
@KIND
def test_the_given_mask_of_a_choice_is_that_choice(kind: str, kernel: str) -> None:
    window = masks.Window(size=3)
    part, x = made(kind, mask=window), vectors()
    part.kernel = KERNELS[kernel]  # type: ignore[assignment]
    view = AttentionMask(MASKS[masks.Window](window), TokenLayout(LENGTH, x.device))
    whole = made(kind, mask=masks.Full())
    whole.kernel = KERNELS[kernel]  # type: ignore[assignment]
    with torch.no_grad():
        torch.testing.assert_close(whole(x, attention_mask=view.dense), part(x))


def test_a_bias_of_positions_joins_a_given_mask() -> None:
    """ALiBi through the causal mask, told by name and given as a tensor."""
    choice = spec.SoftmaxAttention(num_heads=HEADS, head_dim=4, mask=masks.Causal())
    part = SoftmaxAttention(choice, DIM, LayerInfo(position=positions.ALiBi()))
    for parameter in part.parameters():
        nn.init.normal_(parameter, generator=torch.Generator().manual_seed(3))
    part, x = part.double(), vectors()
    triangle = torch.ones(1, LENGTH, LENGTH, dtype=torch.bool).tril()
    for kernel in KERNELS:
        part.kernel = KERNELS[kernel]
        torch.testing.assert_close(part(x, attention_mask=triangle), part(x))


def test_what_may_see_nothing_is_finite_and_harms_no_other() -> None:
    part, x, mask = made(), vectors(), drawn(3, 1)
    some = mask.clone()
    some[1, :, 4] = False
    found, whole = part(x, attention_mask=some), part(x, attention_mask=mask)
    assert found.isfinite().all()
    others = torch.ones(3, LENGTH, dtype=torch.bool)
    others[1, 4] = False
    torch.testing.assert_close(found[others], whole[others])


@pytest.mark.parametrize(
    ("mask", "said"),
    [
        (torch.ones(2, 1, LENGTH, LENGTH).bool(), "found shape [2, 1, 9, 9]; expected [3 or 1,"),
        (torch.ones(1, 2, LENGTH, LENGTH).bool(), "4 or 1, 9, 9], or the same without heads"),
        (torch.ones(3, LENGTH, 5).bool(), "found shape [3, 9, 5]"),
        (torch.ones(LENGTH, LENGTH).bool(), "found shape [9, 9]"),
        (torch.zeros(1, 1, LENGTH, LENGTH), "found torch.float32; expected torch.bool, True where"),
    ],
)
def test_other_masks_are_refused(mask: Tensor, said: str) -> None:
    with pytest.raises(UserError) as caught:
        made()(vectors(), attention_mask=mask)
    assert str(caught.value).startswith("attention_mask: ")
    assert said in str(caught.value)


def test_sizes_that_are_left_open_follow_from_the_dimensions() -> None:
    part = SoftmaxAttention(spec.SoftmaxAttention(), 256)
    assert (part.num_heads, part.head_dim, part.value_dim) == (4, 64, 64)
    assert part.spec.num_kv_heads == 4
    mixer = LatentAttention(latent.LatentAttention(), 256)
    assert (mixer.num_heads, mixer.rank, mixer.widths) == (4, 256, (64, 32))
    assert Gated(feedforward.SwiGLU(), 96).down.weight.shape == (96, 256)
    assert Plain(feedforward.ReLU(), 96).down.weight.shape == (96, 384)
    experts = Experts(feedforward.Experts(num_experts=2, shared="added"), 96)
    assert experts.experts.down.weight.shape == (2, 96, 256)
    assert experts.shared.down.weight.shape == (96, 256)  # type: ignore[union-attr]


def test_what_follows_from_the_whole_model_is_asked_for() -> None:
    with pytest.raises(UserError, match=r'residual\.alpha: found "auto".*resolved'):
        DeepNorm(residuals.DeepNorm(), 16, LayerInfo(), {"attention": ["attention"]})
    with pytest.raises(UserError, match=r'init\.embedding_std: found "auto".*resolved'):
        Glorot(init_spec.Glorot(), 2, 16)
