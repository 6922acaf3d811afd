"""All families, by the `model_type` of their config.json."""

from archwright.hf.families.bert import BERT_FAMILIES
from archwright.hf.families.cohere import COHERE_FAMILIES
from archwright.hf.families.deepseek import DEEPSEEK_FAMILIES
from archwright.hf.families.dense_latent import DENSE_LATENT_FAMILIES
from archwright.hf.families.experts import EXPERTS_FAMILIES
from archwright.hf.families.fairseq import FAIRSEQ_FAMILIES
from archwright.hf.families.fused_experts import FUSED_EXPERTS_FAMILIES
from archwright.hf.families.gemma import GEMMA_FAMILIES
from archwright.hf.families.glm import GLM_FAMILIES
from archwright.hf.families.gpt import GPT_FAMILIES
from archwright.hf.families.granite import GRANITE_FAMILIES
from archwright.hf.families.llama import LLAMA_FAMILIES
from archwright.hf.families.llama_like import LLAMA_LIKE_FAMILIES
from archwright.hf.families.mistral import MISTRAL_FAMILIES
from archwright.hf.families.modernbert import MODERNBERT_FAMILIES
from archwright.hf.families.neox import NEOX_FAMILIES
from archwright.hf.families.olmo import OLMO_FAMILIES
from archwright.hf.families.phi import PHI_FAMILIES
from archwright.hf.families.qwen import QWEN_FAMILIES
from archwright.hf.families.sigmoid_experts import SIGMOID_EXPERTS_FAMILIES
from archwright.hf.families.softmax_experts import SOFTMAX_EXPERTS_FAMILIES
from archwright.hf.families.ungated import UNGATED_FAMILIES
from archwright.hf.families.window_experts import WINDOW_EXPERTS_FAMILIES
from archwright.hf.family import Family

FAMILIES: dict[str, Family] = {
    family.model_type: family
    for families in (
        LLAMA_FAMILIES,
        MISTRAL_FAMILIES,
        QWEN_FAMILIES,
        GEMMA_FAMILIES,
        OLMO_FAMILIES,
        COHERE_FAMILIES,
        GRANITE_FAMILIES,
        GLM_FAMILIES,
        UNGATED_FAMILIES,
        LLAMA_LIKE_FAMILIES,
        MODERNBERT_FAMILIES,
        DENSE_LATENT_FAMILIES,
        GPT_FAMILIES,
        NEOX_FAMILIES,
        FAIRSEQ_FAMILIES,
        PHI_FAMILIES,
        BERT_FAMILIES,
        EXPERTS_FAMILIES,
        FUSED_EXPERTS_FAMILIES,
        SIGMOID_EXPERTS_FAMILIES,
        WINDOW_EXPERTS_FAMILIES,
        SOFTMAX_EXPERTS_FAMILIES,
        DEEPSEEK_FAMILIES,
    )
    for family in families
}
"""Adding one is adding an entry to a file of this folder."""
