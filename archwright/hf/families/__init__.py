"""All families, by the `model_type` of their config.json."""

from archwright.hf.families.gpt import GPT_FAMILIES
from archwright.hf.families.llama import LLAMA_FAMILIES
from archwright.hf.families.neox import NEOX_FAMILIES
from archwright.hf.family import Family

FAMILIES: dict[str, Family] = {
    family.model_type: family for family in (*LLAMA_FAMILIES, *GPT_FAMILIES, *NEOX_FAMILIES)
}
"""Adding one is adding an entry to a file of this folder."""
