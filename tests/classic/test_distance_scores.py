"""What tokens say of distances, beside loops over pairs; and its buckets, beside the published code's formula."""

import math

import pytest
import torch

from archwright.classic.parts.distance_scores import BucketScores
from archwright.classic.spec import distance_scores as spec
from archwright.parts.masks import AttentionMask
from archwright.parts.sharing import LayerInfo
from archwright.parts.token_layout import token_layout
from archwright.spec.masks import Causal, Full, Mask

LENGTH, DIM, HEADS = 9, 8, 2
POSITIONS = torch.tensor([[0, 1, 2, 3, 4, 5, 6, 7, 8], [9, 0, 30, 2, 2, 1, 40, 7, 8]])


def bucket(distance: int, number: int, farthest: int, two_way: bool) -> int:
    """The published code's, with what lies ahead in the second half; `distance` is that of a key behind its query."""
    ahead = number // 2 if two_way and distance < 0 else 0
    number = number // 2 if two_way else number
    behind = abs(distance) if two_way else max(0, distance)
    exact = number // 2
    if behind < exact:
        return ahead + behind
    far = exact + math.log(behind / exact) / math.log(farthest / exact) * (number - exact)
    return ahead + min(number - 1, int(far))


@pytest.mark.parametrize("mask", [Causal(), Full()], ids=lambda mask: mask.kind)
def test_scores_are_those_of_each_pair(mask: Mask) -> None:
    choice = spec.BucketScores(num_buckets=8, max_distance=12)
    part = BucketScores(choice, DIM, HEADS, two_way=not mask.causal).double()
    torch.manual_seed(2)
    with torch.no_grad():
        for parameter in part.parameters():
            parameter.normal_()
    x = torch.randn(2, LENGTH, DIM, dtype=torch.float64)
    layout = token_layout(torch.zeros(2, LENGTH).long(), POSITIONS)
    bias = part(x, AttentionMask(LayerInfo().pattern(mask, HEADS).value, layout))
    rows, added = part.map.weight.view(HEADS, 8, DIM), part.map.bias.view(HEADS, 8)
    expected = torch.zeros(2, HEADS, LENGTH, LENGTH, dtype=torch.float64)
    for row, head, q, k in torch.cartesian_prod(*map(torch.arange, expected.shape)).tolist():
        distance = int(POSITIONS[row, q] - POSITIONS[row, k])
        b = bucket(distance, 8, 12, two_way=not mask.causal)
        expected[row, head, q, k] = rows[head, b] @ x[row, q] + added[head, b]
    torch.testing.assert_close(bias.block(0, LENGTH, 0, LENGTH), expected)
    torch.testing.assert_close(bias.block(3, 7, 2, 8), expected[:, :, 3:7, 2:8])


@pytest.mark.parametrize(("number", "farthest"), [(32, 128), (8, 64), (12, 96), (64, 4096)])
@pytest.mark.parametrize("two_way", [False, True])
def test_buckets_are_those_of_the_published_class(
    number: int, farthest: int, two_way: bool
) -> None:
    """Which rounds the logarithm elsewhere, where it makes no difference."""
    modeling = pytest.importorskip("transformers.models.prophetnet.modeling_prophetnet")
    choice = spec.BucketScores(num_buckets=number, max_distance=farthest)
    part = BucketScores(choice, DIM, HEADS, two_way=two_way)
    distances = torch.arange(-2 * farthest, farthest)
    expected = modeling.compute_relative_buckets(number, farthest, distances, two_way)
    assert part.buckets(distances).tolist() == expected.tolist()
