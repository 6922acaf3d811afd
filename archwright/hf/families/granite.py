"""IBM Granite: Llama with four multipliers, and variants with windows or experts."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from archwright.hf.families.common import (
    EXPERTS_GATE_UP,
    GATE_UP,
    ROLES,
    ROPE,
    balance,
    embedding_scale,
    experts,
)
from archwright.hf.families.llama import LLAMA
from archwright.hf.families.mamba2 import HYBRID, SWIGLU, ssd_names
from archwright.hf.layer_types import Layers, Listed, first_of, getter
from archwright.hf.layouts import Rows, Stacked
from archwright.hf.lenses import (
    MISSING,
    Config,
    Either,
    Field,
    Lens,
    Set,
    Switch,
    Table,
    Write,
    nested,
)
from archwright.hf.rope import Rope
from archwright.hf.weight_map import Fused, Mapped, When
from archwright.spec.errors import UserError
from archwright.spec.model_spec import ModelSpec

GRANITE = LLAMA.derive(
    "granite",
    "GraniteForCausalLM",
    embedding_scale("embedding_multiplier"),
    Field(
        "residual_multiplier", ("residual.multiplier.attention", "residual.multiplier.feedforward")
    ),
    Set({"attention.scale.kind": "fixed"}),
    Field("attention_multiplier", "attention.scale.value"),
    Field("logits_scaling", "head.logit_divisor"),
)


@dataclass(frozen=True)
class ThetaByLayer:
    """Layers grouped by RoPE theta, listed in config[key]; 0 means no positions."""

    key: str
    rope: Rope

    @property
    def lenses(self) -> list[Lens]:
        return [self.rope]

    def names(self, config: Config, num_layers: int) -> list[str]:
        return [_turns(theta) for theta in self._thetas(config, num_layers)]

    def of(self, role: str, config: Config) -> Table:
        for theta in self._thetas(config, config["num_hidden_layers"]):
            if theta and _turns(theta) == role:
                scaling = config.get("rope_scaling") or config.get("rope_parameters") or {}
                rope = {**scaling, "rope_theta": theta}
                return self.rope.read({**config, "rope_scaling": None, "rope_parameters": rope})
        return nested("position.kind", "none")

    def write(self, spec: ModelSpec) -> dict[str, Any]:
        thetas = [getter(spec, [i])("position.theta") for i in range(spec.num_layers)]
        listed = [0.0 if theta is MISSING else theta for theta in thetas]
        return {**self.rope.write(getter(spec, _first(listed))), self.key: listed}

    def _thetas(self, config: Config, num_layers: int) -> Sequence[float]:
        listed: list[float] | None = config.get(self.key)
        if listed and len(listed) != num_layers:
            raise UserError(
                f"config.json: {self.key}: found {len(listed)} numbers; expected {num_layers}"
            )
        return listed or [self.rope.read(config)["position"]["theta"]] * num_layers


def _turns(theta: float) -> str:
    return f"theta_{theta:.0f}" if theta else "nope"


def _first(thetas: Sequence[float]) -> list[int]:
    """Return the first layer with RoPE in a list, by default layer 0."""
    return [i for i, theta in enumerate(thetas) if theta][:1] or [0]


GRANITE_SWA = GRANITE.derive(
    "granite_swa",
    "GraniteSWAForCausalLM",
    Set({"attention.sinks": True}),
    layer_keys={"self_attn.sinks": "attention.sinks"},
    groups=(Layers(Listed(otherwise=first_of(4)), ROLES), ThetaByLayer("layer_rope_theta", ROPE)),
)

EXPERT_NAMES: dict[str, Mapped] = {
    "block_sparse_moe.router.layer": "feedforward.router",
    "block_sparse_moe.input_linear": Fused(EXPERTS_GATE_UP, Stacked()),
    "block_sparse_moe.output_linear": "feedforward.experts.down",
}
SHARED_GATE_UP = Fused(("feedforward.shared.gate", "feedforward.shared.up"), Rows())

GRANITEMOE = GRANITE.derive(
    "granitemoe",
    "GraniteMoeForCausalLM",
    *experts("num_local_experts", "intermediate_size", routing="softmax_of_chosen"),
    balance(),
    layer_keys=EXPERT_NAMES,
)

GRANITEMOESHARED = GRANITEMOE.derive(
    "granitemoeshared",
    "GraniteMoeSharedForCausalLM",
    Either(
        lambda config: config["shared_intermediate_size"] > 0,
        lambda get: get("feedforward.shared") == "added",
        (
            Set({"feedforward.shared": "added"}),
            Field("shared_intermediate_size", "feedforward.shared_hidden_dim"),
        ),
    ),
    layer_keys={
        "shared_mlp.input_linear": SHARED_GATE_UP,
        "shared_mlp.output_linear": "feedforward.shared.down",
    },
)

GRANITEMOEHYBRID = GRANITE.derive(
    "granitemoehybrid",
    "GraniteMoeHybridForCausalLM",
    SWIGLU,
    Switch(
        "position_embedding_type",
        {
            "rope": Set({"position.kind": "rope"}),
            "nope": Set({"position.kind": "none"}),
            None: Set({"position.kind": "none"}),
        },
    ),
    Either(
        lambda config: config["num_local_experts"] > 0,
        lambda get: get("feedforward.kind") == "experts",
        (
            *experts(
                "num_local_experts",
                "intermediate_size",
                routing="softmax_of_chosen",
                shared="added",
            ),
            balance(),
            Field("shared_intermediate_size", "feedforward.shared_hidden_dim"),
        ),
        (
            Write({"num_local_experts": 0, "num_experts_per_tok": 0}),
            Field("shared_intermediate_size", "feedforward.hidden_dim"),
        ),
    ),
    groups=(Layers(Listed(otherwise=lambda config, n: ["mamba"] * n), HYBRID),),
    layer_keys={
        **ssd_names("mamba"),
        **EXPERT_NAMES,
        "shared_mlp.input_linear": (
            When("feedforward.kind", "experts", SHARED_GATE_UP),
            When("feedforward.kind", "swiglu", GATE_UP),
        ),
        "shared_mlp.output_linear": (
            When("feedforward.kind", "experts", "feedforward.shared.down"),
            When("feedforward.kind", "swiglu", "feedforward.down"),
        ),
    },
)
