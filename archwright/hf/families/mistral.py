"""Mistral: Llama with windows in some layers or queries that grow with their position; and Mixtral."""

from typing import Any

from archwright.hf.families.common import (
    ALL_OR_NONE,
    ATTENTION_BIAS,
    MLP_BIAS,
    NO_ATTENTION_BIAS,
    NO_DENSE,
    NO_MLP_BIAS,
    ROLES,
    balance,
    experts,
    listed,
)
from archwright.hf.families.llama import BASE, LLAMA
from archwright.hf.layer_types import Layers, Listed
from archwright.hf.lenses import MISSING, Computed, Config, Get, Table, nested
from archwright.spec.errors import UserError

MISTRAL = LLAMA.derive(
    "mistral",
    "MistralForCausalLM",
    NO_ATTENTION_BIAS,
    NO_MLP_BIAS,
    without=(ATTENTION_BIAS, MLP_BIAS),
    groups=(Layers(ALL_OR_NONE, ROLES),),
)


MIXTRAL = BASE.derive(
    "mixtral",
    "MixtralForCausalLM",
    *experts("num_local_experts", "intermediate_size"),
    balance(),
    groups=(Layers(ALL_OR_NONE, ROLES),),
    layer_keys=NO_DENSE
    | {"block_sparse_moe.gate": "feedforward.router"}
    | listed("block_sparse_moe.experts", "w1", "w3", "w2"),
    key_aliases={"num_experts": "num_local_experts"},
)


MINISTRAL = MISTRAL.derive(
    "ministral",
    "MinistralForCausalLM",
    groups=(Layers(Listed(otherwise=ALL_OR_NONE.read), ROLES),),
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
