"""Numbers that a forward pass leaves for the backward pass, beside those that autograd does keep."""

import pytest
import torch
from torch import Tensor

from archwright.model import build
from archwright.planning.activations import amount, layer_values
from archwright.spec.model_spec import ModelSpec
from archwright.spec.read import load
from tests.planning.activation_bytes import activation_bytes

DIM, LENGTH, NUM_EXPERTS = 48, 64, 22
SIZES = (f"dim={DIM}", "vocab_size=256", f"context_length={LENGTH}", "attention.num_heads=4")
SOFTMAX = ("attention.num_kv_heads=2", "attention.head_dim=20")
PLAIN = ("feedforward.kind=gelu", "feedforward.hidden_dim=112")
LATENT = (
    "attention.kind=latent",
    "attention.kv_rank=24",
    "attention.nope_head_dim=16",
    "attention.rope_head_dim=8",
    "attention.value_head_dim=12",
)
EXPERTS = (
    "feedforward.kind=experts",
    f"feedforward.num_experts={NUM_EXPERTS}",
    "feedforward.top_k=2",
    "feedforward.expert.kind=gelu",
    "feedforward.expert.hidden_dim=32",
)
QK_NORM = "attention.qk_norm.kind=rms"
CHANGES = {
    "pre": (),
    **{
        kind: (f"residual.kind={kind}",)
        for kind in ("post", "sandwich", "output", "parallel", "norm_residual", "deepnorm")
    },
    "parallel, two norms": ("residual.kind=parallel", "residual.num_norms=2"),
    "a branch without a norm": ("residual.skip_norm=attention",),
    "no norms": ("norm.kind=none",),
    "layer norm": ("norm.kind=layer",),
    "QK norm": (QK_NORM,),
    "QK norm of all heads": (QK_NORM, "attention.qk_norm_over=projection"),
    "QK norm behind rotation": (QK_NORM, "attention.qk_norm_position=after"),
    "QK norm without rotation": (QK_NORM, "position.kind=none"),
    "norm of values": ("attention.v_norm.kind=rms",),
    "norm behind attention": ("attention.out_norm.kind=rms",),
    "a gate": ("attention.gate=value",),
    "a gate and a norm": ("attention.gate=value", "attention.out_norm.kind=rms"),
    "clipped": ("attention.qkv_clip=4.0",),
    "norm of hidden values": ("feedforward.hidden_norm.kind=rms",),
}
CASES = {
    **{name: (*SOFTMAX, *PLAIN, *changes) for name, changes in CHANGES.items()},
    "bilinear": (*SOFTMAX, "feedforward.kind=bilinear", "feedforward.hidden_dim=112"),
    "latent": (*LATENT, *PLAIN),
    "a latent of queries": (*LATENT, *PLAIN, "attention.query_rank=28"),
    "experts": (*SOFTMAX, *EXPERTS),
    "a shared expert": (
        *SOFTMAX,
        *EXPERTS,
        "feedforward.shared=added",
        "feedforward.shared_hidden_dim=40",
    ),
    "weighted inputs": (*SOFTMAX, *EXPERTS, "feedforward.router_weight_on=input"),
    "norms in experts": (*SOFTMAX, *EXPERTS, "feedforward.expert.hidden_norm.kind=rms"),
}


def kept_by_autograd(spec: ModelSpec) -> float:
    """Return the numbers per token that a pass keeps, those that lie in one place once; without parameters, scores,
    logits of routers, and what has a few numbers for each token, such as the scale of a norm."""
    model = build(spec).use_kernel("sdpa").train()
    parameters, held = {p.data_ptr() for p in model.parameters()}, []

    def keep(x: Tensor) -> Tensor:
        held.append(x)
        return x

    tokens = torch.randint(0, 256, (1, LENGTH))
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x):
        model(tokens)
    found: dict[int, int] = {}
    for x in filter(Tensor.is_floating_point, held):
        of_tokens = {LENGTH, 2 * LENGTH} & {*x.shape}  # each token goes to two experts
        is_narrow = x.numel() < 8 * LENGTH or x.shape[-1] == NUM_EXPERTS
        is_left_out = is_narrow or x.shape[-2:] == (LENGTH, LENGTH)
        if x.data_ptr() not in parameters and of_tokens and not is_left_out:
            most = min(x.numel(), x.untyped_storage().nbytes() // x.element_size())
            found[x.data_ptr()] = max(found.get(x.data_ptr(), 0), most)
    return sum(found.values()) / LENGTH


@pytest.mark.parametrize("changes", CASES.values(), ids=CASES)
def test_a_layer_leaves_what_autograd_keeps(changes: tuple[str, ...]) -> None:
    """By the difference that one layer more makes."""
    spec = load("modern").override(*SIZES, *changes)
    two, one = (kept_by_autograd(spec.override(f"num_layers={n}")) for n in (2, 1))
    model = build(spec, device="meta")
    kept, again = layer_values(next(iter(model.stack)), DIM, LENGTH, LENGTH).under("none")
    assert not again
    expected = amount(kept)
    of_router = NUM_EXPERTS if "feedforward.kind=experts" in changes else 0
    assert two - one == expected - of_router


def test_norms_of_gemma_by_hand() -> None:
    """Beside Gemma 3 27B with norms before branches alone: what enters those behind them, and those of queries and
    keys."""
    spec = load("gemma-3-27b")
    changes = ("residual.kind=pre", "attention.qk_norm.kind=none")
    models = [build(each, device="meta") for each in (spec, spec.override(*changes))]
    norms, without = (activation_bytes(model, 4096, "none") for model in models)
    of_queries_and_keys = 32 * 128 + 16 * 128
    assert norms - without == 2 * 4096 * 62 * (2 * 5376 + of_queries_and_keys)
    norms, without = (activation_bytes(model, 4096, "selective") for model in models)
    # What maps give is kept; of one layer, queries and keys behind their norms are there as well.
    assert norms - without == 2 * 4096 * of_queries_and_keys
