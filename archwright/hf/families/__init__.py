"""All families, by the `model_type` of their config.json."""

from archwright.hf.families.bert import BERT_FAMILIES
from archwright.hf.families.fairseq import FAIRSEQ_FAMILIES
from archwright.hf.families.gpt import GPT_FAMILIES
from archwright.hf.families.llama import LLAMA_FAMILIES
from archwright.hf.families.neox import NEOX_FAMILIES
from archwright.hf.families.phi import PHI_FAMILIES
from archwright.hf.family import Family

_GROUPS = (
    LLAMA_FAMILIES,
    GPT_FAMILIES,
    NEOX_FAMILIES,
    FAIRSEQ_FAMILIES,
    PHI_FAMILIES,
    BERT_FAMILIES,
)

FAMILIES: dict[str, Family] = {family.model_type: family for group in _GROUPS for family in group}
"""Adding one is adding an entry to a file of this folder."""
