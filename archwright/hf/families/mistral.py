"""Mistral AI: Mistral, Mixtral, Ministral and Ministral 3."""

from typing import Any

from archwright.hf.families.common import ALL_OR_NONE, ROLES, W_EXPERTS, balance, experts
from archwright.hf.families.llama import LLAMA
from archwright.hf.layer_types import Layers, Listed
from archwright.hf.lenses import MISSING, Computed, Config, Get, Table, nested
from archwright.spec.errors import UserError

MISTRAL = LLAMA.derive("mistral", "MistralForCausalLM", groups=(Layers(ALL_OR_NONE, ROLES),))

MIXTRAL = LLAMA.derive(
    "mixtral",
    "MixtralForCausalLM",
    *experts("num_local_experts", "intermediate_size"),
    balance(),
    groups=(Layers(ALL_OR_NONE, ROLES),),
    layer_keys={"block_sparse_moe.gate": "feedforward.router"} | W_EXPERTS,
)

MINISTRAL = MISTRAL.derive(
    "ministral", "MinistralForCausalLM", groups=(Layers(Listed(otherwise=ALL_OR_NONE.read), ROLES),)
)


def _read_query_temperature(config: Config) -> Table:
    scaling = config.get("rope_scaling") or config["rope_parameters"]
    if scaling.get("llama_4_scaling_beta") is None:
        raise UserError("config.json: rope_parameters.llama_4_scaling_beta: missing")
    period = scaling.get("original_max_position_embeddings") or config["max_position_embeddings"]
    scale = {"kind": "log", "coefficient": scaling["llama_4_scaling_beta"], "period": period}
    return nested("attention.query_temperature", scale | {"offset": 0})


def _write_query_temperature(get: Get) -> dict[str, Any]:
    scaling = {
        "llama_4_scaling_beta": get("attention.query_temperature.coefficient"),
        "original_max_position_embeddings": get("attention.query_temperature.period"),
    }
    return {"rope_parameters": {k: value for k, value in scaling.items() if value is not MISSING}}


MINISTRAL3 = MISTRAL.derive(
    "ministral3",
    "Ministral3ForCausalLM",
    Computed(_read_query_temperature, _write_query_temperature),
    undeclared={
        "rope_parameters": {
            "rope_type": "yarn",
            "rope_theta": 1000000.0,
            "factor": 16.0,
            "original_max_position_embeddings": 16384,
            "beta_fast": 32.0,
            "beta_slow": 1.0,
            "mscale": 1.0,
            "mscale_all_dim": 1.0,
            "llama_4_scaling_beta": 0.1,
        }
    },
)
