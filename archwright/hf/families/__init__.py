"""All families, by the `model_type` of their config.json."""

from archwright.hf.families.arcee import AFMOE, ARCEE
from archwright.hf.families.bert import BERT, BIG_BIRD, ROBERTA, ROFORMER, XLNET
from archwright.hf.families.bigcode import GPT_BIGCODE, STARCODER2
from archwright.hf.families.bloom import BLOOM
from archwright.hf.families.cohere import COHERE, COHERE2, COHERE2_MOE
from archwright.hf.families.databricks import DBRX, MPT
from archwright.hf.families.deepseek import DEEPSEEK_V2, DEEPSEEK_V3
from archwright.hf.families.eleuther import GPT_J, GPT_NEO, GPT_NEOX, GPT_NEOX_JAPANESE
from archwright.hf.families.ernie import ERNIE4_5, ERNIE4_5_MOE
from archwright.hf.families.exaone import EXAONE4, EXAONE_MOE
from archwright.hf.families.fairseq import BIOGPT, OPT, XGLM
from archwright.hf.families.falcon import FALCON
from archwright.hf.families.gemma import GEMMA, GEMMA2, GEMMA3, VAULT_GEMMA
from archwright.hf.families.glm import GLM, GLM4, GLM4_MOE, GLM4_MOE_LITE
from archwright.hf.families.gpt import GPT1, GPT2, GPT_OSS
from archwright.hf.families.granite import GRANITE, GRANITE_SWA, GRANITEMOE, GRANITEMOESHARED
from archwright.hf.families.hunyuan import HUNYUAN, HUNYUAN_V1_MOE, HY_V3, YOUTU
from archwright.hf.families.llama import CWM, LLAMA, LLAMA4_TEXT
from archwright.hf.families.mistral import MINISTRAL, MINISTRAL3, MISTRAL, MIXTRAL
from archwright.hf.families.modernbert import MODERNBERT_DECODER
from archwright.hf.families.olmo import FLEX_OLMO, OLMO, OLMO2, OLMO3, OLMOE
from archwright.hf.families.others import (
    APERTUS,
    DOTS1,
    HELIUM,
    JAIS2,
    MIMO_V2_FLASH,
    MINICPM3,
    MINIMAX_M2,
    NANOCHAT,
    NEMOTRON,
    PERSIMMON,
    SEED_OSS,
    SMOLLM3,
    SOLAR_OPEN,
    STABLELM,
)
from archwright.hf.families.phi import BITNET, PHI, PHI3, PHIMOE
from archwright.hf.families.qwen import QWEN2, QWEN2_MOE, QWEN3, QWEN3_MOE
from archwright.hf.families.salesforce import CODEGEN, CTRL
from archwright.hf.family import Family

FAMILIES: dict[str, Family] = {
    family.model_type: family
    for family in (
        LLAMA,
        MISTRAL,
        MINISTRAL,
        MINISTRAL3,
        QWEN2,
        QWEN3,
        GEMMA,
        GEMMA2,
        GEMMA3,
        VAULT_GEMMA,
        OLMO,
        OLMO2,
        OLMO3,
        EXAONE4,
        COHERE,
        COHERE2,
        GRANITE,
        GRANITE_SWA,
        GLM,
        GLM4,
        NEMOTRON,
        ARCEE,
        JAIS2,
        APERTUS,
        NANOCHAT,
        PHI3,
        SMOLLM3,
        CWM,
        SEED_OSS,
        HELIUM,
        ERNIE4_5,
        HUNYUAN,
        BITNET,
        MODERNBERT_DECODER,
        YOUTU,
        MINICPM3,
        GPT1,
        GPT2,
        GPT_NEO,
        GPT_J,
        CODEGEN,
        GPT_BIGCODE,
        GPT_NEOX,
        GPT_NEOX_JAPANESE,
        BLOOM,
        FALCON,
        MPT,
        OPT,
        XGLM,
        BIOGPT,
        CTRL,
        PHI,
        PERSIMMON,
        STABLELM,
        STARCODER2,
        BERT,
        BIG_BIRD,
        ROBERTA,
        ROFORMER,
        XLNET,
        MIXTRAL,
        QWEN2_MOE,
        QWEN3_MOE,
        OLMOE,
        FLEX_OLMO,
        GRANITEMOE,
        GRANITEMOESHARED,
        DBRX,
        GPT_OSS,
        LLAMA4_TEXT,
        SOLAR_OPEN,
        HY_V3,
        DOTS1,
        GLM4_MOE,
        MINIMAX_M2,
        EXAONE_MOE,
        AFMOE,
        MIMO_V2_FLASH,
        ERNIE4_5_MOE,
        HUNYUAN_V1_MOE,
        COHERE2_MOE,
        PHIMOE,
        DEEPSEEK_V2,
        DEEPSEEK_V3,
        GLM4_MOE_LITE,
    )
}
"""A model is written as the first family that can hold it."""
