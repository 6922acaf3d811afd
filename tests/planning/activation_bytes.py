"""Bytes of activations in 16 bits, as tests compare them."""

from archwright.model.language_model import LanguageModel
from archwright.planning.activations import activations, amount, layers_of
from archwright.planning.memory import PER_ACTIVATION


def activation_bytes(
    model: LanguageModel, length: int, checkpointing: str, target_length: int | None = None
) -> float:
    """Return the bytes that a sequence leaves for the backward pass on one device."""
    kept, again = activations([*layers_of(model)], length, checkpointing, target_length)
    return PER_ACTIVATION * length * (amount(kept) + amount(again))
