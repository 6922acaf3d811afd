"""Families with different logits in `transformers` 4.57 and 5."""

from archwright.hf.lenses import Config

EAGER = ' unless it is loaded with attn_implementation="eager"'


def difference(config: Config) -> str:
    """Return the problem of `transformers` 4.57 with a config, or ""."""
    ropes = (config.get("rope_parameters") or {}).values()
    bases = {rope["rope_theta"] for rope in ropes if isinstance(rope, dict)}
    soft_capped = config.get("attn_logit_softcapping") is not None
    by_family = {
        "apertus": (True, ", because it rounds xIELU to bfloat16"),
        "fsmt": (True, ", because its positions differ"),
        "gemma2": (soft_capped, EAGER),
        "gpt2": (config.get("scale_attn_by_inverse_layer_idx"), EAGER),
        "modernbert-decoder": (True, ", because its windows are one token shorter"),
        "mt5": (config.get("tie_word_embeddings"), ", because it scales tied heads"),
        "olmo3": (len(bases) > 1, ", because it has only one base of RoPE"),
        "t5": ("scale_decoder_outputs" in config, ", because it scales tied heads only"),
        "t5gemma": (True, ", because its windows differ"),
        "vaultgemma": (soft_capped, EAGER),
    }
    has_two_tables = config.get("share_encoder_decoder_embeddings") is False
    unread = {"deberta": True, "deberta-v2": True, "marian": has_two_tables}
    if unread.get(config["model_type"]):
        return "cannot read it"
    differs, how = by_family.get(config["model_type"], (False, ""))
    return f"computes other logits{how}" if differs else ""
