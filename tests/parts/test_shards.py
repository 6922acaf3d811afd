"""What devices may share of a map: each computes with its heads or columns alone, and their results add up to the
whole, as in tensor parallelism (Shoeybi et al., 2019, section 3)."""

import pytest
import torch
from torch import Tensor, nn

from archwright.classic.spec.transient_global import TransientGlobalAttention
from archwright.parts.context import Context
from archwright.parts.feedforward import FEEDFORWARDS
from archwright.parts.linear import Linear
from archwright.parts.mixers import ATTENTIONS
from archwright.parts.sharing import LayerInfo
from archwright.spec.attention import Attention, SoftmaxAttention
from archwright.spec.feedforward import FeedForward, SwiGLU
from archwright.spec.latent import LatentAttention

DIM, TOKENS = 32, 6
GROUPED = {"num_heads": 4, "num_kv_heads": 2, "head_dim": 8}
LATENT = {"kv_rank": 12, "nope_head_dim": 8, "rope_head_dim": 4, "value_head_dim": 8}


def cut(whole: nn.Module, part: nn.Module, index: int, devices: int) -> None:
    """Give a part the weights of one of some devices: its blocks, or all of what is not shared."""
    for name, parameter in part.named_parameters():
        source = whole.get_parameter(name)
        m = whole.get_submodule(name.rpartition(".")[0])
        if isinstance(m, Linear) and m.num_blocks != 1:
            if not m.is_residual_output:
                source = source.chunk(devices, 0)[index]
            elif name.endswith("weight"):
                source = source.chunk(devices, 1)[index]
        assert source.shape == parameter.shape, name
        parameter.data.copy_(source)


def drawn(part: nn.Module) -> nn.Module:
    torch.manual_seed(0)
    for parameter in part.parameters():
        nn.init.normal_(parameter, std=0.2)
    return part.double()


@pytest.mark.parametrize(
    ("spec", "half"),
    [
        (SoftmaxAttention(**GROUPED), SoftmaxAttention(num_heads=2, num_kv_heads=1, head_dim=8)),
        (
            SoftmaxAttention(**GROUPED, gate="value"),
            SoftmaxAttention(num_heads=2, num_kv_heads=1, head_dim=8, gate="value"),
        ),
        (
            LatentAttention(num_heads=4, query_rank=20, **LATENT),
            LatentAttention(num_heads=2, query_rank=20, **LATENT),
        ),
        (
            LatentAttention(num_heads=4, query_rank="none", **LATENT),
            LatentAttention(num_heads=2, query_rank="none", **LATENT),
        ),
        (
            TransientGlobalAttention(num_heads=4, head_dim=8, block_size=2),
            TransientGlobalAttention(num_heads=2, head_dim=8, block_size=2),
        ),
    ],
    ids=str,
)
def test_halves_of_heads_add_up(spec: Attention, half: Attention) -> None:
    whole = drawn(ATTENTIONS.make(spec, DIM, LayerInfo()))
    x = torch.randn(2, TOKENS, DIM, dtype=torch.float64)
    found = torch.zeros_like(x)
    for index in range(2):
        part = drawn(ATTENTIONS.make(half, DIM, LayerInfo()))
        cut(whole, part, index, 2)
        found += run(part, x)
    torch.testing.assert_close(found, run(whole, x))


def run(part: nn.Module, x: Tensor) -> Tensor:
    context = Context.alone(x, None)
    part.prepare(context)  # type: ignore[operator]
    y: Tensor = part(x, context)
    return y


def test_halves_of_columns_add_up() -> None:
    whole = drawn(FEEDFORWARDS.make(SwiGLU(hidden_dim=48), DIM))
    x = torch.randn(2, TOKENS, DIM, dtype=torch.float64)
    found = torch.zeros_like(x)
    spec: FeedForward = SwiGLU(hidden_dim=24)
    for index in range(2):
        part = drawn(FEEDFORWARDS.make(spec, DIM))
        cut(whole, part, index, 2)
        found += part(x)
    torch.testing.assert_close(found, whole(x))
