"""All families, by the `model_type` of their config.json."""

from archwright.hf.families.bert import BERT_FAMILIES
from archwright.hf.families.deepseek import DEEPSEEK_FAMILIES
from archwright.hf.families.experts import EXPERTS_FAMILIES
from archwright.hf.families.fairseq import FAIRSEQ_FAMILIES
from archwright.hf.families.fused_experts import FUSED_EXPERTS_FAMILIES
from archwright.hf.families.gpt import GPT_FAMILIES
from archwright.hf.families.llama import LLAMA_FAMILIES
from archwright.hf.families.neox import NEOX_FAMILIES
from archwright.hf.families.phi import PHI_FAMILIES
from archwright.hf.families.sigmoid_experts import SIGMOID_EXPERTS_FAMILIES
from archwright.hf.families.softmax_experts import SOFTMAX_EXPERTS_FAMILIES
from archwright.hf.family import Family

FAMILIES: dict[str, Family] = {
    family.model_type: family
    for families in (
        LLAMA_FAMILIES,
        GPT_FAMILIES,
        NEOX_FAMILIES,
        FAIRSEQ_FAMILIES,
        PHI_FAMILIES,
        BERT_FAMILIES,
        EXPERTS_FAMILIES,
        FUSED_EXPERTS_FAMILIES,
        SIGMOID_EXPERTS_FAMILIES,
        SOFTMAX_EXPERTS_FAMILIES,
        DEEPSEEK_FAMILIES,
    )
    for family in families
}
"""Adding one is adding an entry to a file of this folder."""
