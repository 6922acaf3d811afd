"""Positions: how a token knows where it stands."""

from typing import ClassVar, Literal

from pydantic import Field

from archwright.spec.choice import Choice


class Position(Choice):
    """The axis of position encodings."""

    axis: ClassVar[str] = "position"
    absolute: ClassVar[bool] = False
    """Added to the embedding once, for the whole model, instead of acting inside attention."""


class NoPosition(Position):
    """No encoding: only the causal mask tells order (Kazemnejad et al., 2023)."""

    kind: Literal["none"] = "none"


class Sinusoidal(Position):
    """Fixed sines and cosines added to the embedding (Vaswani et al., 2017, section 3.5)."""

    kind: Literal["sinusoidal"] = "sinusoidal"
    absolute: ClassVar[bool] = True
    theta: float = Field(10_000.0, gt=1)
    """Base of the wavelengths, which run from 2 pi to 2 pi theta tokens."""


class Learned(Position):
    """A trained vector per position, added to the embedding (Gehring et al., 2017; GPT-2)."""

    kind: Literal["learned"] = "learned"
    absolute: ClassVar[bool] = True


class RoPE(Position):
    """Rotate pairs of query and key coordinates by position times frequency (Su et al., 2021)."""

    kind: Literal["rope"] = "rope"
    theta: float = Field(10_000.0, gt=1)
    """Base of the frequencies theta^(-2i/r)."""
    fraction: float = Field(1.0, gt=0, le=1)
    """Share of each head's coordinates that rotate (the first ones)."""
    pairing: Literal["half", "interleaved"] = "half"
    """Which coordinates form a pair: (i, i + r/2) as in Llama, or (2i, 2i + 1) as in the paper."""
