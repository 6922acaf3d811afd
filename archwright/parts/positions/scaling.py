"""Scalings of rotary frequencies for texts longer than the training texts."""

import math
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from archwright.parts.registry import Registry
from archwright.spec import positions as spec

Frequencies = Float[Tensor, " pairs"]


class RoPEScaling:
    """Base of the scalings of RoPE's frequencies f; the identity.

    Args:
        rope: spec of the position encoding.
    """

    follows_length: bool = False
    """True if frequencies depend on the length of the text, so that caches store unrotated keys."""
    attention_factor: float = 1.0
    """Factor of cosines and sines."""

    def __init__(self, spec: Any, rope: spec.RoPE) -> None:
        self.spec, self.rope = spec, rope

    def frequencies(self, plain: Frequencies, head_dim: int) -> Frequencies:
        """Scale the frequencies theta^(-2i/r) independently of the text's length."""
        return plain

    def at_length(
        self, frequencies: Frequencies, lengths: Int[Tensor, "rows length"]
    ) -> Float[Tensor, "rows length pairs"]:
        """Return the frequencies of tokens in texts of these lengths; used if `follows_length`."""
        return frequencies.expand(*lengths.shape, -1)


class Linear(RoPEScaling):
    """f / factor (Chen et al., 2023)."""

    def frequencies(self, plain: Frequencies, head_dim: int) -> Frequencies:
        return plain / float(self.spec.factor)


class DynamicNTK(RoPEScaling):
    """theta' = theta g^(r / (r - 2)), g = s n / L - (s - 1), which multiplies frequency i by
    g^(-2i / (r - 2)) (Peng et al., 2023, section 3.3)."""

    follows_length = True

    def at_length(
        self, frequencies: Frequencies, lengths: Int[Tensor, "rows length"]
    ) -> Float[Tensor, "rows length pairs"]:
        original, factor = self.spec.original_length, self.spec.factor
        ratio = lengths.clamp(min=original).to(frequencies.dtype) / original
        # g = s n / L - (s - 1), at least 1: texts up to L keep their frequencies.
        growth = factor * ratio - (factor - 1)
        pairs = torch.arange(len(frequencies), device=frequencies.device, dtype=frequencies.dtype)
        # g^(-2i / (r - 2)) with r = 2 * pairs: [rows, length, pairs]
        powers: Tensor = growth[..., None] ** (-pairs / max(1, len(frequencies) - 1))
        return frequencies * powers


class YaRN(RoPEScaling):
    """f for pairs with beta_fast or more turns in the original length, f / s for beta_slow or fewer, linear in the
    pair between (Peng et al., 2023, eq. 19 to 21)."""

    def __init__(self, spec: spec.YaRN, rope: spec.RoPE) -> None:
        super().__init__(spec, rope)
        assert spec.attention_factor != "auto"
        self.attention_factor = spec.attention_factor

    def frequencies(self, plain: Frequencies, head_dim: int) -> Frequencies:
        s, rotary = self.spec, 2 * len(plain)
        low, high = self._pair_turning(s.beta_fast, rotary), self._pair_turning(s.beta_slow, rotary)
        if s.truncate:
            low, high = math.floor(low), math.ceil(high)
        low, high = max(low, 0), min(high, rotary - 1)
        pairs = torch.arange(len(plain), dtype=plain.dtype)
        # No division by 0 if both ends are the same pair.
        ramp = ((pairs - low) / max(high - low, 1e-3)).clamp(0, 1)
        return plain / float(s.factor) * ramp + plain * (1 - ramp)

    def _pair_turning(self, times: float, rotary: int) -> float:
        # The pair i with original_length * theta^(-2i/r) / (2 pi) = times, as a real number.
        wavelength = self.spec.original_length / (times * 2 * math.pi)
        return rotary * math.log(wavelength) / (2 * math.log(self.rope.theta))


class Llama3(RoPEScaling):
    """f for wavelengths below L / high, f / factor above L / low, linear in L / wavelength between; a step if high =
    low (Llama 3.1)."""

    def frequencies(self, plain: Frequencies, head_dim: int) -> Frequencies:
        turns = self.spec.original_length * plain / (2 * math.pi)
        low, high = self.spec.low_freq_factor, self.spec.high_freq_factor
        # Share of the unscaled frequency.
        unscaled: Tensor = ((turns - low) / max(high - low, 1e-9)).clamp(0, 1)
        return plain / float(self.spec.factor) * (1 - unscaled) + plain * unscaled


class LongRoPE(RoPEScaling):
    """f / short_i up to the original length, f / long_i beyond (Ding et al., 2024)."""

    follows_length = True

    def __init__(self, spec: spec.LongRoPE, rope: spec.RoPE) -> None:
        super().__init__(spec, rope)
        assert spec.original_length != "auto"
        assert spec.attention_factor != "auto"
        self.attention_factor = spec.attention_factor

    def at_length(
        self, frequencies: Frequencies, lengths: Int[Tensor, "rows length"]
    ) -> Float[Tensor, "rows length pairs"]:
        dtype, device = frequencies.dtype, frequencies.device
        short, long = (
            frequencies / torch.tensor(d or [1.0] * len(frequencies), dtype=dtype, device=device)
            for d in (self.spec.short, self.spec.long)
        )
        return torch.where((lengths > self.spec.original_length)[..., None], long, short)


class Proportional(RoPEScaling):
    """f as in a fully rotated head for the first pairs, 0 for the rest (Gemma 4)."""

    def frequencies(self, plain: Frequencies, head_dim: int) -> Frequencies:
        turning = int(self.rope.fraction * head_dim / 2)
        return torch.where(torch.arange(len(plain)) < turning, plain, 0.0)


SCALINGS = Registry(
    spec.Scaling,
    "(spec, rope)",
    RoPEScaling,
    {
        spec.NoScaling: RoPEScaling,
        spec.LinearScaling: Linear,
        spec.DynamicNTK: DynamicNTK,
        spec.YaRN: YaRN,
        spec.Llama3Scaling: Llama3,
        spec.LongRoPE: LongRoPE,
        spec.Proportional: Proportional,
    },
)
"""Subclasses of `RoPEScaling`, by the class of their spec."""
