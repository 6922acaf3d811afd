"""Granite: Llama with four multipliers, and later with windows, sinks and a base of RoPE for each layer."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from archwright.hf.families.llama import LLAMA, ROLES, ROPE
from archwright.hf.layer_types import Layers, Listed, first_of, getter
from archwright.hf.lenses import MISSING, Computed, Config, Field, Get, Set, Table, nested
from archwright.hf.rope import Rope
from archwright.spec.errors import UserError
from archwright.spec.model_spec import ModelSpec


def embedding_scale(key: str) -> Computed:
    """Return the lens of a number that embeddings are multiplied by; 1 is none."""

    def write(get: Get) -> dict[str, Any]:
        scale = get("embedding.scale")
        return {key: 1.0 if scale == "none" else scale} if scale != "sqrt_dim" else {}

    def read(config: Config) -> Table:
        scale = float(config[key])
        return nested("embedding.scale", "none" if scale == 1 else scale)

    return Computed(read, write)


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
class ThetaOfEach:
    """A group of layers by the base of their RoPE, which `key` lists; 0 is a layer without positions."""

    key: str
    rope: Rope

    def names(self, config: Config, num_layers: int) -> list[str]:
        return [_turns(theta) for theta in self._thetas(config, num_layers)]

    def of(self, role: str, config: Config) -> Table:
        for theta in self._thetas(config, config["num_hidden_layers"]):
            if theta and _turns(theta) == role:
                scaling = config.get("rope_scaling") or config.get("rope_parameters") or {}
                own = {**scaling, "rope_theta": theta}
                return self.rope.read({**config, "rope_scaling": None, "rope_parameters": own})
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
    """Return the first layer with positions, if there is one."""
    return [i for i, theta in enumerate(thetas) if theta][:1] or [0]


GRANITE_SWA = GRANITE.derive(
    "granite_swa",
    "GraniteSWAForCausalLM",
    Set({"attention.sinks": True}),
    without=(ROPE,),
    layer_keys={"self_attn.sinks": "attention.sinks"},
    groups=(
        Layers(Listed(otherwise=first_of(4)), ROLES),
        ThetaOfEach("layer_rope_theta", ROPE),
    ),
)

GRANITE_FAMILIES = (GRANITE, GRANITE_SWA)
