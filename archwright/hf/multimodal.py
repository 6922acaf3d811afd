"""Text models beside others, as of images: which part of a folder is the text model."""

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
"""Prefixes of the text model's names, old and new, and those they have in a folder of its own."""
SHARED = ("quantization_config",)
"""Keys of the whole that count for the text model, where it has none."""


@dataclass(frozen=True)
class Wrapper:
    """Checkpoints of several models, of which one is a text model.

    Args:
        aside: what the names of the other models begin with, with or without "model." before it.
        family: that of the text model; empty: the one that its own config says.
    """

    aside: tuple[str, ...]
    family: str = ""

    def config(self, whole: Mapping[str, object]) -> dict[str, Any]:
        """Return the config of the text model: the table of that name, or the whole, which older files mix.

        Raises:
            UserError: something else stands there.
        """
        text = whole.get("text_config") or (whole if self.family else None)
        if not isinstance(text, Mapping):
            raise UserError(f"config.json: text_config: found {text!r}; expected a table")
        shared = {key: whole[key] for key in SHARED if key in whole}
        return {**shared, **text} | ({"model_type": self.family} if self.family else {})

    def tensors(self, whole: Store) -> tuple[Store, list[str]]:
        """Return the tensors of the text model under its own names, and the models left aside."""
        names, aside = dict[str, str](), dict[str, None]()
        for name in whole.shapes:
            other = name.removeprefix("model.").split(".")[0]
            if other in self.aside:
                aside[other] = None
            else:
                names[own_name(name)] = name
        return whole.renamed(names), list(aside)


def own_name(name: str) -> str:
    """Return what a tensor or module of the text model is called in a folder of its own."""
    for theirs, own in TEXT_NAMES.items():
        if name.startswith(theirs):
            return own + name.removeprefix(theirs)
    return name


LLAVA = Wrapper(("vision_tower", "multi_modal_projector"))
CONNECTED = Wrapper(("vision_model", "connector"))
VISUAL = ("visual",)

WRAPPERS: dict[str, Wrapper] = {
    "gemma3": LLAVA,
    "llama4": Wrapper(("vision_model", "multi_modal_projector")),
    "llava": LLAVA,
    "mistral3": LLAVA,
    "internvl": LLAVA,
    "idefics3": CONNECTED,
    "smolvlm": CONNECTED,
    "qwen2_vl": Wrapper(VISUAL, "qwen2"),
    "qwen2_5_vl": Wrapper(VISUAL, "qwen2"),
    "qwen3_vl": Wrapper(VISUAL, "qwen3"),
}
"""By the `model_type` of their config.json."""
