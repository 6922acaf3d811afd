"""Mixtures of experts beside whole blocks of transformers, with the same random weights: outputs and gradients."""

import importlib
import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from archwright.parts.feedforward import Experts
from archwright.parts.routing import sparsemixer
from archwright.spec import feedforward as spec

DIM, HIDDEN, SHARED, EXPERTS = 8, 16, 12, 6
State = dict[str, Tensor]
SIZES = {
    "hidden_size": DIM,
    "intermediate_size": HIDDEN,
    "moe_intermediate_size": HIDDEN,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "num_experts_per_tok": 2,
    "num_local_experts": EXPERTS,
}


@dataclass(frozen=True)
class Block:
    """A block of the library: where it is, how it is made, and what its tensors are called here.

    `renamed` is linear, so that it tells gradients as it tells weights.
    """

    model: str
    name: str
    options: dict[str, Any]
    given: dict[str, Any]
    renamed: Callable[[State], State]

    def made(self) -> nn.Module:
        path = f"transformers.models.{self.model}.modeling_{self.model}"
        library = pytest.importorskip(path)
        package = importlib.import_module(path.replace("modeling", "configuration"))
        config = next(
            cls
            for key, cls in vars(package).items()
            if key.endswith("Config")
            and getattr(cls, "model_type", "").startswith(self.model)
            and ("Text" in key or self.model != "llama4")
        )(**{**SIZES, **self.given})
        config._experts_implementation = "eager"
        block: nn.Module = getattr(library, self.name)(config)
        return block.eval()


def fused(t: State, router: str = "gate.weight") -> State:
    """Stacks of [gate; up] with the maps' own orientation."""
    gate, up = t["experts.gate_up_proj"].chunk(2, 1)
    return {
        "router.weight": t[router],
        "experts.gate.weight": gate,
        "experts.up.weight": up,
        "experts.down.weight": t["experts.down_proj"],
    }


def turned(t: State) -> State:
    """Stacks of matrices that stand on their side, [in, out]."""
    return t | {f"experts.{n}_proj": t[f"experts.{n}_proj"].mT for n in ("gate_up", "down")}


def with_shared(name: str, **more: str) -> Callable[[State], State]:
    """Name a shared expert, and other tensors by our names."""
    router = more.pop("router", "gate.weight")

    def renamed(t: State) -> State:
        maps = {
            f"shared.{ours}.weight": t[f"{name}.{ours}_proj.weight"]
            for ours in ("gate", "up", "down")
        }
        return fused(t, router) | maps | {ours: t[theirs] for ours, theirs in more.items()}

    return renamed


def gpt_oss(t: State) -> State:
    bias = t["experts.gate_up_proj_bias"]
    found = fused(turned(t), "router.weight")
    both = t["experts.gate_up_proj"].mT  # gate and up take turns
    return found | {
        "router.bias": t["router.bias"],
        "experts.gate.weight": both[:, ::2],
        "experts.up.weight": both[:, 1::2],
        "experts.gate.bias": bias[:, ::2],
        "experts.up.bias": bias[:, 1::2],
        "experts.down.bias": t["experts.down_proj_bias"],
    }


def dbrx(t: State) -> State:
    gate, up, down = (
        t[f"experts.mlp.{name}"].unflatten(0, (EXPERTS, HIDDEN)) for name in ("w1", "v1", "w2")
    )
    return {
        "router.weight": t["router.layer.weight"],
        "experts.gate.weight": gate,
        "experts.up.weight": up,
        "experts.down.weight": down.mT,
    }


def jetmoe(t: State) -> State:
    gate, up = t["input_linear.weight"].chunk(2, 1)
    return {
        "router.weight": t["router.layer.weight"],
        "experts.gate.weight": gate,
        "experts.up.weight": up,
        "experts.down.weight": t["output_linear.weight"],
        "bias": t["bias"],
    }


def with_bias(name: str, inner: Callable[[State], State] = fused) -> Callable[[State], State]:
    """Name the selection bias, too."""
    return lambda t: inner(t) | {"selection_bias": t[name].flatten()}


V3: dict[str, Any] = {
    "routing": {"kind": "sigmoid"},
    "selection_bias": True,
    "num_groups": 2,
    "group_score": "top_two",
    "routed_scaling_factor": 2.5,
    "shared": "added",
    "shared_hidden_dim": HIDDEN,
}
V3_GIVEN = {
    "n_group": 2,
    "topk_group": 1,
    "n_routed_experts": EXPERTS,
    "n_shared_experts": 1,
    "num_shared_experts": 1,
    "num_experts": EXPERTS,
    "routed_scaling_factor": 2.5,
    "norm_topk_prob": True,
}
SIGMOID_WITH_BIAS = {"routing": {"kind": "sigmoid"}, "selection_bias": True}
V3_NAMES = with_bias("gate.e_score_correction_bias", with_shared("shared_experts"))

BLOCKS = [
    Block("mixtral", "MixtralSparseMoeBlock", {}, {}, fused),
    Block(
        "qwen2_moe",
        "Qwen2MoeSparseMoeBlock",
        {"normalize_weights": False, "shared": "gated", "shared_hidden_dim": SHARED},
        {"shared_expert_intermediate_size": SHARED, "num_experts": EXPERTS},
        with_shared("shared_expert", **{"shared_gate.weight": "shared_expert_gate.weight"}),
    ),
    Block(
        "deepseek_v2",
        "DeepseekV2Moe",
        {
            "normalize_weights": False,
            "num_groups": 3,
            "top_groups": 1,
            "routed_scaling_factor": 1.7,
            "shared": "added",
            "shared_hidden_dim": HIDDEN,
        },
        {
            "n_group": 3,
            "topk_group": 1,
            "n_routed_experts": EXPERTS,
            "n_shared_experts": 1,
            "routed_scaling_factor": 1.7,
            "topk_method": "group_limited_greedy",
            "norm_topk_prob": False,
        },
        with_shared("shared_experts"),
    ),
    Block("deepseek_v3", "DeepseekV3MoE", V3, V3_GIVEN, V3_NAMES),
    Block("solar_open", "SolarOpenMoE", V3, V3_GIVEN, V3_NAMES),
    Block("exaone_moe", "ExaoneMoeSparseMoEBlock", V3, V3_GIVEN, V3_NAMES),
    Block(
        "gpt_oss",
        "GptOssMLP",
        {
            "routing": {"kind": "softmax_of_chosen"},
            "router_bias": True,
            "expert": spec.ClampedSwiGLU(
                hidden_dim=HIDDEN, limit=1.0, bias=spec.FeedForwardBias(up=True, down=True)
            ),
        },
        {"swiglu_limit": 1.0},
        gpt_oss,
    ),
    Block(
        "llama4",
        "Llama4TextMoe",
        {
            "routing": {"kind": "sigmoid"},
            "normalize_weights": False,
            "router_weight_on": "input",
            "shared": "added",
            "shared_hidden_dim": HIDDEN,
        },
        {},
        lambda t: with_shared("shared_expert", router="router.weight")(turned(t)),
    ),
    Block(
        "phimoe",
        "PhimoeSparseMoeBlock",
        {"routing": {"kind": "sparsemixer"}, "normalize_weights": False, "jitter": 0.2},
        {"router_jitter_noise": 0.2},
        lambda t: fused(t, "router.weight"),
    ),
    Block(
        "dbrx",
        "DbrxFFN",
        {"normalize_power": 2.0, "top_k": 3},
        {
            "d_model": DIM,
            "ffn_config": {
                "hidden_size": DIM,
                "ffn_hidden_size": HIDDEN,
                "moe_num_experts": EXPERTS,
                "moe_top_k": 3,
                "moe_normalize_expert_weights": 2.0,
            },
        },
        dbrx,
    ),
    Block(
        "granitemoe",
        "GraniteMoeMoE",
        {"routing": {"kind": "softmax_of_chosen"}},
        {},
        lambda t: fused(t, "router.weight"),
    ),
    Block(
        "ernie4_5_moe",
        "Ernie4_5_MoeSparseMoeBlock",
        {
            "selection_bias": True,
            "normalize_min": 0.6,
            "shared": "added",
            "shared_hidden_dim": HIDDEN,
        },
        {"moe_num_experts": EXPERTS, "moe_k": 2, "moe_num_shared_experts": 1, "moe_norm_min": 0.6},
        with_bias("gate.moe_statics.e_score_correction_bias", with_shared("shared_experts")),
    ),
    Block(
        "hunyuan_v1_moe",
        "HunYuanMoEV1Moe",
        {"shared": "added", "shared_hidden_dim": HIDDEN},
        {"num_experts": EXPERTS, "moe_topk": 2},
        with_shared("shared_mlp", router="gate.wg.weight"),
    ),
    Block(
        "minimax_m2",
        "MiniMaxM2SparseMoeBlock",
        SIGMOID_WITH_BIAS,
        {},
        with_bias("e_score_correction_bias"),
    ),
    Block(
        "afmoe",
        "AfmoeSparseMoeBlock",
        SIGMOID_WITH_BIAS
        | {"routed_scaling_factor": 1.7, "shared": "added", "shared_hidden_dim": HIDDEN},
        {"num_experts": EXPERTS, "num_shared_experts": 1, "route_scale": 1.7},
        with_bias("expert_bias", with_shared("shared_experts", router="router.gate.weight")),
    ),
    Block(
        "hy_v3",
        "HYV3MoE",
        SIGMOID_WITH_BIAS
        | {"routed_scaling_factor": 1.7, "shared": "added", "shared_hidden_dim": HIDDEN},
        {"num_shared_experts": 1, "router_scaling_factor": 1.7},
        with_bias("e_score_correction_bias", with_shared("shared_experts")),
    ),
    Block(
        "flex_olmo",
        "FlexOlmoSparseMoeBlock",
        {"normalize_weights": False},
        {"num_experts": EXPERTS, "norm_topk_prob": False},
        fused,
    ),
    Block(
        "cohere2_moe",
        "Cohere2MoeSparseMoeBlock",
        {"routing": {"kind": "sigmoid"}, "shared": "averaged", "shared_hidden_dim": HIDDEN},
        {
            "num_experts": EXPERTS,
            "num_shared_experts": 1,
            "expert_selection_fn": "sigmoid",
            "shared_expert_combination_strategy": "average",
        },
        with_shared("shared_experts"),
    ),
    Block(
        "jetmoe",
        "JetMoeMoE",
        {"routing": {"kind": "softmax_of_chosen"}, "out_bias": True},
        {"activation_function": "silu"},
        jetmoe,
    ),
]


def enlarge(block: nn.Module) -> None:
    """Give matrices N(0, 1.5^2 / fan_in), and add 0.3 N(0, 1) to vectors, buffers too."""
    dice = torch.Generator().manual_seed(2)
    for tensor in itertools.chain(block.parameters(), block.buffers()):
        noise = torch.randn(tensor.shape, generator=dice)
        if tensor.ndim < 2 or 1 in tensor.shape:
            tensor.data.zero_().add_(0.3 * noise)
        else:
            tensor.data.copy_(1.5 * noise * tensor.shape[-1] ** -0.5)


@pytest.mark.parametrize("case", BLOCKS, ids=lambda case: case.model)
def test_block(case: Block) -> None:
    block = case.made()
    enlarge(block)
    theirs = {**dict(block.named_parameters()), **dict(block.named_buffers())}
    given = {"num_experts": EXPERTS, "top_k": 2, "expert": spec.SwiGLU(hidden_dim=HIDDEN)}
    part = Experts(spec.Experts(**{**given, **case.options}), DIM).eval()
    part.load_state_dict(case.renamed({k: v.detach() for k, v in theirs.items()}))
    dice = torch.Generator().manual_seed(1)
    inputs = [torch.randn(2, 10, DIM, generator=dice).requires_grad_() for _ in range(2)]
    inputs[1].data.copy_(inputs[0].data)
    out = block(inputs[1])
    expected = (out[0] if isinstance(out, tuple) else out).view(2, 10, DIM)
    found = part(inputs[0])
    torch.testing.assert_close(found, expected, rtol=0, atol=2e-5 * expected.std().item())
    slope = torch.randn(found.shape, generator=dice)
    found.backward(slope)
    expected.backward(slope)
    zero = {k: torch.zeros_like(v) for k, v in theirs.items()}
    gradients = case.renamed(zero | {k: v.grad for k, v in theirs.items() if v.grad is not None})
    gradients["x"] = inputs[1].grad
    for name, parameter in [("x", inputs[0]), *part.named_parameters()]:
        error = (parameter.grad - gradients[name]).norm()
        assert error <= 1e-3 * gradients[name].norm(), name
        assert gradients[name].any(), name


class TestSparsemixerInTraining:
    """Experts are drawn; the library draws in the same order, so that one seed tells both the same."""

    def both(self, seed: int) -> list[tuple[Tensor, Tensor, Tensor]]:
        library = pytest.importorskip("transformers.models.phimoe.modeling_phimoe")
        dice = torch.Generator().manual_seed(seed)
        start, slope = torch.randn(2000, EXPERTS, generator=dice), torch.randn(2000, 2)
        found = []
        for ours in (True, False):
            logits = start.clone().requires_grad_()
            torch.manual_seed(seed)
            if ours:
                chosen, weights = sparsemixer(logits, 2, 0.3, training=True)
            else:
                weights, chosen = library.sparsemixer(logits, 0.3, True)
            weights.backward(slope)
            found.append((chosen, weights.detach(), logits.grad))
        return found

    def test_choices_weights_and_gradients(self) -> None:
        (chosen, weights, gradient), theirs = self.both(3)
        assert torch.equal(chosen, theirs[0])
        torch.testing.assert_close(weights[:, 0], theirs[1][:, 0], rtol=1e-3, atol=0)
        torch.testing.assert_close(gradient, theirs[2], rtol=1e-4, atol=1e-5)
        # The library draws once more before the second weight's third, so those differ.
        ratio = weights[:, 1] / theirs[1][:, 1]
        same = [torch.isclose(ratio, torch.tensor(r), rtol=1e-3) for r in (1.0, 3.0, 1 / 3)]
        assert torch.stack(same).any(0).all()
        assert all(some.any() for some in same)

    def test_the_best_is_drawn_by_its_share_and_others_count_a_third_in_three_of_four(self) -> None:
        logits = torch.tensor([[1.0, 0.6, 0.9, -3.0]]).expand(40_000, 4)
        chosen, weights = sparsemixer(logits, 1, 0.3, training=True)
        near = logits[0, :3].softmax(-1)
        found = chosen.flatten().bincount(minlength=4) / 40_000
        torch.testing.assert_close(found[:3], near, rtol=0, atol=0.01)
        assert found[3] == 0
        of_second = weights[chosen == 1]
        thirds = of_second < 0.5 * near[1]
        assert thirds.double().mean().item() == pytest.approx(0.75, abs=0.02)
        assert of_second[thirds].unique().item() == pytest.approx(near[1].item() / 3, rel=1e-5)
        assert weights[chosen == 0].unique().item() == pytest.approx(near[0].item(), rel=1e-5)
