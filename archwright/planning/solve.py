"""Solve for one dimension of a model, given a target cost."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

from archwright.model.build import build
from archwright.model.model import Decoder
from archwright.planning.cost import flops_per_token
from archwright.planning.memory import cache_bytes
from archwright.planning.serving import decode_seconds
from archwright.spec.errors import UserError
from archwright.spec.hardware import Hardware
from archwright.spec.model_spec import ModelSpec

MOST = 2**22
"""Upper bound of the search."""


@dataclass(frozen=True)
class Solution:
    """The model closest to the target."""

    spec: ModelSpec
    value: int
    found: float
    """Quantity of the model, close to the target."""


def match(
    spec: ModelSpec,
    free: str,
    *,
    step: int = 1,
    parameters: float | None = None,
    flops: float | None = None,
    cache_size: float | None = None,
    decode_time: float | None = None,
    hardware: Hardware | None = None,
) -> Solution:
    """Choose one dimension of a model to match a target cost.

    Args:
        free: dotted path of an integer with which the quantity grows, such as `feedforward.hidden_dim`.
        step: the dimension is a multiple of this.
        parameters: target number of parameters.
        flops: target training FLOPs per token at the model's context.
        cache_size: target bytes of a cache with context_length tokens, in 16 bits.
        decode_time: target seconds to decode one token after the context, at best; needs `hardware`.

    Raises:
        UserError: not exactly one target, an invalid path, a dimension without influence, or a target out of reach;
            the message has the closest value and the relative difference.
    """
    targets = {
        "parameters": parameters,
        "flops": flops,
        "cache_size": cache_size,
        "decode_time": decode_time,
    }
    (name, target), *extra = [(k, v) for k, v in targets.items() if v is not None] or [("", 0.0)]
    if not name or extra or target is None or (name == "decode_time") != (hardware is not None):
        raise UserError(
            "match: expected one of parameters, flops, cache_size, and decode_time with hardware"
        )
    if not target > 0:
        raise UserError(f"match: {name}: found {target:g}; expected more than 0")
    measure = _measures(spec.context_length, hardware)[name]

    @cache
    def amount(multiple: int) -> float | None:
        """Return the quantity at a multiple of `step`; None if a rule rejects it."""
        try:
            return measure(build(spec.override(f"{free}={step * multiple}"), device="meta"))
        except UserError:
            return None

    spec.override(f"{free}={step}")  # raises if the path is invalid
    sizes = _search(amount, target, step)
    least, most = min(sizes.values(), default=0.0), max(sizes.values(), default=0.0)
    if least == most:
        raise UserError(f'match: "{free}" has no influence on {name}, or no allowed value')
    best = min(sizes, key=lambda n: abs(sizes[n] / target - 1))
    value, closest = step * best, sizes[best]
    if not least <= target <= most:
        raise UserError(
            f"match: {name}: found {target:,.6g}, which no value of {free} that was tried comes to; the nearest is "
            f"{value}, with {closest:,.6g}, {closest / target - 1:+.1%}"
        )
    return Solution(spec.override(f"{free}={value}"), value, closest)


def _search(amount: Callable[[int], float | None], target: float, step: int) -> dict[int, float]:
    """Return the allowed multiples that were tried, with their quantities, by bisection between powers of two."""
    sizes: dict[int, float] = {}

    def size(multiple: int) -> float | None:
        if (found := amount(multiple)) is not None:
            sizes[multiple] = found
        return found

    for multiple in _powers(step):
        if (found := size(multiple)) is not None and found >= target and len(sizes) > 1:
            break
    if sizes and not min(sizes.values()) <= target <= max(sizes.values()):
        first, last = min(sizes), max(sizes)
        more = (odd * n for odd in (3, 5, 7) for n in _powers(odd * step))
        for multiple in more:
            if not first < multiple < last:
                size(multiple)
    below = max((n for n in sizes if sizes[n] <= target), default=min(sizes, default=0))
    above = min((n for n in sizes if sizes[n] >= target), default=below)
    while above - below > 1:
        middle = (below + above) // 2
        valid = next((n for n in _around(middle, below, above) if size(n) is not None), None)
        if valid is None:
            break
        below, above = (valid, above) if sizes[valid] < target else (below, valid)
    return sizes


def _powers(step: int) -> list[int]:
    """Return the powers of two up to `MOST` / step."""
    return [2**i for i in range(MOST.bit_length()) if step * 2**i <= MOST]


def _around(middle: int, below: int, above: int) -> list[int]:
    """Return up to 63 values strictly between `below` and `above`, closest to `middle` first."""
    inside = range(below + 1, above)
    near = [middle + sign * i for i in range(32) for sign in (1, -1)]
    return [n for n in dict.fromkeys(near) if n in inside]


def _measures(length: int, hardware: Hardware | None) -> dict[str, Callable[[Decoder], float]]:
    def decode_time(model: Decoder) -> float:
        assert hardware is not None
        return decode_seconds(model, hardware, length, "bf16")

    return {
        "parameters": lambda model: float(model.num_parameters()),
        "flops": lambda model: flops_per_token(model, length),
        "cache_size": lambda model: float(cache_bytes(model, length)),
        "decode_time": decode_time,
    }
