"""The attention branch beside its formula, written head by head with numpy in float64."""

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from archwright.parts.context import Context
from archwright.parts.kernels import KERNELS
from archwright.parts.mixers import SoftmaxAttention
from archwright.parts.norms import NoNorm, RMSNorm
from archwright.parts.sharing import LayerInfo
from archwright.parts.token_layout import token_layout
from archwright.spec import attention as spec
from archwright.spec import masks, norms, positions

DIM, HEAD_DIM, LENGTH = 10, 6, 7


def made(
    heads: int = 4,
    kv: int = 2,
    *,
    bias: bool = False,
    norm: norms.Norm = norms.NoNorm(),  # noqa: B008
    rope: bool = False,
    mask: masks.Mask = masks.Causal(),  # noqa: B008
) -> SoftmaxAttention:
    choice = spec.SoftmaxAttention.model_validate(
        {
            "num_heads": heads,
            "num_kv_heads": kv,
            "head_dim": HEAD_DIM,
            "value_head_dim": HEAD_DIM,
            "bias": bias,
        }
    )
    choice = choice.model_copy(update={"qk_norm": norm, "mask": mask})
    position = positions.RoPE() if rope else positions.NoPosition()
    part = SoftmaxAttention(choice, DIM, LayerInfo(position=position))
    if part.rotary is not None:
        part.rotary.value.double()
    torch.manual_seed(heads)
    for parameter in part.parameters():
        nn.init.normal_(parameter)
    return part.double()


def run(part: SoftmaxAttention, x: Tensor) -> Tensor:
    out: Tensor = part(x, Context(token_layout(torch.zeros(2, LENGTH).long()), 2))
    return out


def project(x: np.ndarray, linear: nn.Module) -> np.ndarray:
    bias = 0.0 if linear.bias is None else linear.bias.detach().numpy()
    return x @ linear.weight.detach().numpy().T + bias


def formula(part: SoftmaxAttention, x: Tensor, window: int = LENGTH) -> np.ndarray:
    """out(concat_h(softmax(q_h k_g^T / sqrt(d)) v_g)), for each row, head and query."""
    heads, kv = part.spec.num_heads, part.spec.num_kv_heads
    result = []
    for row in x.numpy():
        q, k, v = (project(row, p) for p in (part.query, part.key, part.value))
        mixed = np.zeros((LENGTH, heads * HEAD_DIM))
        for h in range(heads):
            g = h // (heads // kv)
            here = slice(h * HEAD_DIM, (h + 1) * HEAD_DIM)
            there = slice(g * HEAD_DIM, (g + 1) * HEAD_DIM)
            query, key = normed(q[:, here], part.query_norm), normed(k[:, there], part.key_norm)
            if part.rotary is not None:
                query, key = turned(query), turned(key)
            for t in range(LENGTH):
                first = max(0, t - window + 1)
                scores = key[first : t + 1] @ query[t] / np.sqrt(HEAD_DIM)
                weights = np.exp(scores - scores.max())
                mixed[t, here] = weights / weights.sum() @ v[first : t + 1, there]
        result.append(project(mixed, part.out))
    return np.stack(result)


def normed(x: np.ndarray, norm: nn.Module) -> np.ndarray:
    if isinstance(norm, NoNorm):
        return x
    weight = norm.weight.detach().numpy()
    if isinstance(norm, RMSNorm):
        return x / np.sqrt((x**2).mean(-1, keepdims=True) + norm.eps) * weight
    centred = x - x.mean(-1, keepdims=True)
    scaled = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + norm.eps)
    return scaled * weight + norm.bias.detach().numpy()


def turned(x: np.ndarray) -> np.ndarray:
    half = HEAD_DIM // 2
    pairs = x[:, :half] + 1j * x[:, half:]
    angles = np.arange(LENGTH)[:, None] * 10_000.0 ** (-2 * np.arange(half) / HEAD_DIM)
    pairs = pairs * np.exp(1j * angles)
    return np.concatenate((pairs.real, pairs.imag), -1)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize(
    "norm", [norms.NoNorm(), norms.RMSNorm(eps=0.1), norms.LayerNorm()], ids=str
)
@pytest.mark.parametrize(("heads", "kv"), [(4, 4), (4, 2), (3, 1)])
def test_formula(heads: int, kv: int, norm: norms.Norm, kernel: str) -> None:
    for bias in (False, True):
        for rope in (False, True):
            part = made(heads, kv, bias=bias, norm=norm, rope=rope)
            part.kernel = KERNELS[kernel]
            x = torch.randn(2, LENGTH, DIM, dtype=torch.float64)
            # frequencies are float32 numbers
            tight = 1e-6 if rope else 1e-11
            np.testing.assert_allclose(
                run(part, x).detach().numpy(), formula(part, x), rtol=tight, atol=tight * 10
            )


def test_a_window() -> None:
    part = made(mask=masks.Window(size=3))
    x = torch.randn(2, LENGTH, DIM, dtype=torch.float64)
    found = run(part, x).detach().numpy()
    np.testing.assert_allclose(found, formula(part, x, window=3), rtol=1e-11, atol=1e-11)
    assert not np.allclose(found, formula(part, x))


def test_shapes_are_those_of_the_spec() -> None:
    """Heads need not share out dim: four heads of six on a stream of ten."""
    shapes = {name: tuple(p.shape) for name, p in made(norm=norms.RMSNorm()).named_parameters()}
    assert shapes == {
        "query.weight": (24, 10),
        "key.weight": (12, 10),
        "value.weight": (12, 10),
        "out.weight": (10, 24),
        "query_norm.weight": (6,),
        "key_norm.weight": (6,),
    }


def test_dropout_is_in_training_alone() -> None:
    part = made()
    part.spec = part.spec.model_copy(update={"dropout": 0.5})
    x = torch.randn(2, LENGTH, DIM, dtype=torch.float64)
    assert not torch.equal(run(part.train(), x), run(part, x))
    assert torch.equal(run(part.eval(), x), run(part, x))


def test_the_rotary_part_is_not_registered_twice() -> None:
    assert not list(made(rope=True).buffers())
