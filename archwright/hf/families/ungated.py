"""Feed-forwards of two matrices in Llama's place: Nemotron, Arcee, Jais 2, Apertus and nanochat."""

from archwright.hf.families.llama import (
    EPS,
    GATED,
    LLAMA,
    MLP_BIAS,
    NO_MLP_BIAS,
    PRE_RMS,
    ROPE,
)
from archwright.hf.families.qwen import ALL_EPS, HEAD_NORM_NAMES, HEAD_NORMS
from archwright.hf.layouts import HalvesSwapped
from archwright.hf.lenses import Activation, Field, Set
from archwright.hf.rope import Rope
from archwright.hf.weight_map import Fused, filled
from archwright.spec.model_spec import LayerSpec

PLAIN = Activation("hidden_act", gated=False)

ARCEE = LLAMA.derive(
    "arcee",
    "ArceeForCausalLM",
    PLAIN,
    without=(GATED,),
    layer_keys={"mlp.gate_proj": None},
)

NEMOTRON = ARCEE.derive(
    "nemotron",
    "NemotronForCausalLM",
    Set({"residual.kind": "pre", "norm.kind": "layer", "norm.bias": True}),
    Set({"norm.weight": "unit_offset"}),
    Field("norm_eps", "norm.eps"),
    Rope(),
    without=(PRE_RMS, EPS, ROPE),
    undeclared={"partial_rotary_factor": 0.5},
)

JAIS2 = ARCEE.derive(
    "jais2",
    "Jais2ForCausalLM",
    Set({"residual.kind": "pre", "norm.kind": "layer", "norm.bias": True}),
    Set({"norm.weight": "plain"}),
    Field("layer_norm_eps", "norm.eps"),
    without=(PRE_RMS, EPS),
)

APERTUS = ARCEE.derive(
    "apertus",
    "ApertusForCausalLM",
    Activation("hidden_act", gated=False, names={"xielu": {"kind": "xielu", "beta": 0.5}}),
    Set(HEAD_NORMS),
    ALL_EPS,
    NO_MLP_BIAS,
    without=(PLAIN, EPS, MLP_BIAS),
    layer_keys={
        "input_layernorm": None,
        "post_attention_layernorm": None,
        "attention_layernorm": "residual.norms.attention",
        "feedforward_layernorm": "residual.norms.feedforward",
        "mlp.act_fn.alpha_p": "feedforward.activation.positive",
        "mlp.act_fn.alpha_n": "feedforward.activation.negative",
        "mlp.act_fn.beta": filled(0.5),
        "mlp.act_fn.eps": filled(-1e-6),
        **HEAD_NORM_NAMES,
    },
    undeclared={
        "rope_parameters": {
            "rope_type": "llama3",
            "rope_theta": 12000000.0,
            "factor": 8.0,
            "original_max_position_embeddings": 8192,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
        }
    },
)


def _swapped(layer: LayerSpec) -> HalvesSwapped:
    return HalvesSwapped(layer.attention.model_dump()["head_dim"])


NANOCHAT = ARCEE.derive(
    "nanochat",
    "NanoChatForCausalLM",
    Set({"norm.weight": "none", "norm.scale_in": "float32"}),
    Set({"embedding.norm.kind": "rms", "embedding.norm.weight": "none"}),
    Set({"attention.qk_norm.kind": "rms", "attention.qk_norm.weight": "none"}),
    Set({"attention.qk_norm_over": "head", "attention.qk_norm_position": "after"}),
    Field("rms_norm_eps", ("norm.eps", "attention.qk_norm.eps", "embedding.norm.eps")),
    Field("final_logit_softcapping", "head.softcap", or_none=True),
    NO_MLP_BIAS,
    without=(EPS, MLP_BIAS),
    layer_keys={
        "self_attn.q_proj": Fused(("attention.query",), _swapped),
        "self_attn.k_proj": Fused(("attention.key",), _swapped),
        "mlp.up_proj": None,
        "mlp.down_proj": None,
        "mlp.fc1": "feedforward.up",
        "mlp.fc2": "feedforward.down",
    },
)

UNGATED_FAMILIES = (NEMOTRON, ARCEE, JAIS2, APERTUS, NANOCHAT)
