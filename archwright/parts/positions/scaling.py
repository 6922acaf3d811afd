"""The frequencies of rotary positions, and what is done to them for texts longer than those trained on."""

import math

import torch
from jaxtyping import Float, Int
from torch import Tensor

from archwright.spec import positions as spec


def frequencies(rope: spec.RoPE, head_dim: int) -> Float[Tensor, " pairs"]:
    """Return theta^(-2i/r) after the scaling, as far as that does not depend on the text's length."""
    rotary = spec.rotary_dim(rope, head_dim)
    plain = 1.0 / rope.theta ** (torch.arange(0, rotary, 2, dtype=torch.float32) / rotary)
    match rope.scaling:
        case spec.LinearScaling(factor=factor):
            return plain / factor
        case spec.YaRN():
            return _yarn(rope.scaling, plain, rope.theta)
        case spec.Llama3Scaling():
            return _llama3(rope.scaling, plain)
        case spec.Proportional():
            turning = int(rope.fraction * head_dim / 2)
            return torch.where(torch.arange(len(plain)) < turning, plain, 0.0)
    return plain


def at_length(
    rope: spec.RoPE, plain: Float[Tensor, " pairs"], spans: Int[Tensor, "rows length"]
) -> Float[Tensor, "rows length pairs"]:
    """Return the frequencies of tokens whose text is `spans` long so far."""
    scaling = rope.scaling
    if isinstance(scaling, spec.DynamicNTK):
        return _dynamic(scaling, plain, spans)
    assert isinstance(scaling, spec.LongRoPE)
    assert scaling.original_length != "auto"
    short, long = (
        plain / torch.tensor(d or [1.0] * len(plain), dtype=plain.dtype, device=plain.device)
        for d in (scaling.short, scaling.long)
    )
    return torch.where((spans > scaling.original_length)[..., None], long, short)


def _dynamic(scaling: spec.DynamicNTK, plain: Tensor, spans: Tensor) -> Tensor:
    """theta' = theta g^(r / (r - 2)), g = s n / L - (s - 1), which multiplies frequency i by
    g^(-2i / (r - 2))."""
    assert scaling.original_length != "auto"
    ratio = spans.clamp(min=scaling.original_length).to(plain.dtype) / scaling.original_length
    growth = scaling.factor * ratio - (scaling.factor - 1)
    pairs = torch.arange(len(plain), device=plain.device, dtype=plain.dtype)
    return plain * growth[..., None] ** (-pairs / max(1, len(plain) - 1))


def _yarn(scaling: spec.YaRN, plain: Tensor, theta: float) -> Tensor:
    """Blend f / s and f over the pairs between those that turn beta_fast and beta_slow times within the
    original length (Peng et al., 2023, eq. 19 to 21)."""
    assert scaling.original_length != "auto"
    rotary = 2 * len(plain)

    def pair_turning(times: float) -> float:
        wavelength = scaling.original_length / (times * 2 * math.pi)  # type: ignore[operator]
        return rotary * math.log(wavelength) / (2 * math.log(theta))

    low, high = pair_turning(scaling.beta_fast), pair_turning(scaling.beta_slow)
    if scaling.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, rotary - 1)
    pairs = torch.arange(len(plain), dtype=plain.dtype)
    ramp = ((pairs - low) / max(high - low, 1e-3)).clamp(0, 1)
    return plain / scaling.factor * ramp + plain * (1 - ramp)


def _llama3(scaling: spec.Llama3Scaling, plain: Tensor) -> Tensor:
    """Keep wavelengths below L / high, divide those above L / low, blend linearly in L / wavelength between;
    equal ends make a step."""
    assert scaling.original_length != "auto"
    turns = scaling.original_length * plain / (2 * math.pi)
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    kept = ((turns - low) / max(high - low, 1e-9)).clamp(0, 1)
    return plain / scaling.factor * (1 - kept) + plain * kept
