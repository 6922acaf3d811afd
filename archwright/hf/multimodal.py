"""Multimodal checkpoints: extraction of the text model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from archwright.spec.errors import UserError

if TYPE_CHECKING:
    from archwright.hf.weights_reader import Store

TEXT_NAMES = {
    "language_model.model.": "model.",
    "language_model.lm_head.": "lm_head.",
    "model.language_model.": "model.",
    "model.text_model.": "model.",
}
"""Name prefixes in multimodal files, old and new -> prefixes in text-only files."""
SHARED = ("quantization_config",)
"""Top-level keys that also apply to the text model."""


@dataclass(frozen=True)
class Wrapper:
    """Checkpoints of several models, one of them a text model.

    Args:
        ignored: Names of the other models, after an optional prefix "model.".
        family: `model_type` of the text model; empty if the config names it.
    """

    ignored: tuple[str, ...]
    family: str = ""

    def config(self, config: Mapping[str, object]) -> dict[str, Any]:
        """Return the text model's config: `text_config`, or all keys in older files.

        Raises:
            UserError: `text_config` is not a table.
        """
        text = config.get("text_config") or (config if self.family else None)
        if not isinstance(text, Mapping):
            raise UserError(f"config.json: text_config: found {text!r}; expected a table")
        shared = {key: config[key] for key in SHARED if key in config}
        return {**shared, **text} | ({"model_type": self.family} if self.family else {})

    def tensors(self, store: Store) -> tuple[Store, list[str]]:
        """Return the text model's tensors by text-only name, and the ignored models."""
        names, ignored = dict[str, str](), dict[str, None]()
        for name in store.shapes:
            model = name.removeprefix("model.").split(".")[0]
            if model in self.ignored:
                ignored[model] = None
            else:
                names[text_name(name)] = name
        return store.renamed(names), list(ignored)


def text_name(name: str) -> str:
    """Return the text-only name of a tensor or module."""
    for prefix, text_prefix in TEXT_NAMES.items():
        if name.startswith(prefix):
            return text_prefix + name.removeprefix(prefix)
    return name


LLAVA = Wrapper(("vision_tower", "multi_modal_projector"))
CONNECTED = Wrapper(("vision_model", "connector"))
VISUAL = ("visual",)

WRAPPERS: dict[str, Wrapper] = {
    "gemma3": LLAVA,
    "gemma4": Wrapper(("vision_tower", "embed_vision", "audio_tower", "embed_audio")),
    "llama4": Wrapper(("vision_model", "multi_modal_projector")),
    "llava": LLAVA,
    "mistral3": LLAVA,
    "internvl": LLAVA,
    "idefics3": CONNECTED,
    "smolvlm": CONNECTED,
    "qwen2_vl": Wrapper(VISUAL, "qwen2"),
    "qwen2_5_vl": Wrapper(VISUAL, "qwen2"),
    "qwen3_vl": Wrapper(VISUAL, "qwen3"),
    "qwen3_5": Wrapper(VISUAL),
    "qwen3_5_moe": Wrapper(VISUAL),
}
"""Wrappers by `model_type`."""
