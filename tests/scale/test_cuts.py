"""What one process of a tensor group has of a branch, without the others."""

import pytest
import torch

from archwright.model.build import build_layer
from archwright.parts.context import Context
from archwright.parts.mixers import Mixer
from archwright.scale.cuts import cut_axes, own_part, share_sizes, shared_position
from archwright.spec.model_spec import ModelSpec
from archwright.spec.read import load

CHANGES = {
    "grouped queries": (),
    "one key-value head": ("attention.num_kv_heads=1",),
    "gates, sinks": ("attention.gate=head", "attention.sinks=true"),
    "slopes": ("position.kind=alibi",),
    "a table of distances": ("position.kind=t5", "position.shared=false"),
    "a table that layers share": ("position.kind=t5",),
}


@pytest.mark.parametrize("name", CHANGES)
def test_the_first_process_has_the_first_heads(name: str) -> None:
    """Its term is what attention gives where the heads of all others write nothing."""
    spec = load("modern").tiny().override(*CHANGES[name])
    whole, own = (attention_of(spec) for _ in range(2))
    position = shared_position(own)
    axes: dict[torch.Tensor, int] = {}
    for part in (own,) if position is None else (own, position):
        axes |= dict(cut_axes(part))
        share_sizes(part, 2)
    for tensor, axis in axes.items():
        tensor.data = own_part(tensor.data, axis, 2, 0)
    x = torch.randn(2, 7, spec.dim, generator=torch.Generator().manual_seed(0))
    heads, total = (sum(p.numel() for p in m.parameters()) for m in (own, whole))
    assert heads < total
    with torch.no_grad():
        written = whole.get_parameter("out.weight")
        written[:, written.shape[1] // 2 :] = 0
        assert torch.allclose(own(x, Context.alone(x)), whole(x, Context.alone(x)), atol=1e-6)


def attention_of(spec: ModelSpec) -> Mixer:
    """Return the attention of the first layer, each of whose heads has other parameters."""
    layer = build_layer(spec)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=generator))
    return layer.mixers()["attention"]
