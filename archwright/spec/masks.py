"""Masks: which keys a query may see. Documents and padding come with the batch and narrow them."""

from typing import ClassVar, Literal

from pydantic import Field

from archwright.spec.choice import Choice


class Mask(Choice):
    """The axis of attention masks."""

    axis: ClassVar[str] = "mask"


class Causal(Mask):
    """Every key up to the query itself."""

    kind: Literal["causal"] = "causal"


class Window(Mask):
    """The last `size` keys, the query's own included (Child et al., 2019; Mistral 7B)."""

    kind: Literal["window"] = "window"
    size: int = Field(4096, ge=1)
    """Number of visible keys, in tokens."""
