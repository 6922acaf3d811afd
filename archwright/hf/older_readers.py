"""Families that `transformers` 4.57 computes otherwise than version 5, whatever their config.json says."""

from archwright.hf.lenses import Config

EAGER = ' unless it is loaded with attn_implementation="eager"'


def difference(config: Config) -> str:
    """Return what `transformers` 4.57 does otherwise than version 5; empty if it computes the same logits."""
    ropes = (config.get("rope_parameters") or {}).values()
    bases = {rope["rope_theta"] for rope in ropes if isinstance(rope, dict)}
    soft_capped = config.get("attn_logit_softcapping") is not None
    by_family = {
        "apertus": (True, ", as it rounds xIELU to bfloat16"),
        "fsmt": (True, ", as it has other positions"),
        "gemma2": (soft_capped, EAGER),
        "gpt2": (config.get("scale_attn_by_inverse_layer_idx"), EAGER),
        "modernbert-decoder": (True, ", as its windows are a token shorter"),
        "mt5": (config.get("tie_word_embeddings"), ", as it scales those of tied tables"),
        "olmo3": (len(bases) > 1, ", as it has one base of positions"),
        "t5": ("scale_decoder_outputs" in config, ", as it scales those of tied tables alone"),
        "t5gemma": (True, ", as its windows are others"),
        "vaultgemma": (soft_capped, EAGER),
    }
    has_two_tables = config.get("share_encoder_decoder_embeddings") is False
    unread = {"deberta": True, "deberta-v2": True, "marian": has_two_tables}
    if unread.get(config["model_type"]):
        return "cannot read it"
    differs, how = by_family.get(config["model_type"], (False, ""))
    return f"computes other logits{how}" if differs else ""
