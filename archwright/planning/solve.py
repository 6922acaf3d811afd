"""Solving for one number of a model: the value at which it has as many parameters, FLOPs or bytes as asked for."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

from archwright.model.build import build
from archwright.model.decoder import Decoder
from archwright.planning.cost import flops_per_token
from archwright.planning.memory import cache_bytes
from archwright.planning.serving import decode_seconds
from archwright.spec.errors import UserError
from archwright.spec.hardware import Hardware
from archwright.spec.model_spec import ModelSpec

MOST = 2**22
"""Largest value that is tried."""


@dataclass(frozen=True)
class Solution:
    """A model at the value that comes nearest."""

    spec: ModelSpec
    value: int
    found: float
    """What the model has of what was asked for."""


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
    """Return the model at the value of one dimension at which it comes nearest to what is asked for.

    Args:
        free: the dotted path of a whole number, with which the quantity grows, such as `feedforward.hidden_dim`.
        step: of which it is a multiple.
        parameters: how many.
        flops: of training on one token, at the model's context.
        cache_size: bytes of the cache of a text of the context, in 16 bits.
        decode_time: seconds of one more token behind the context, at best; needs `hardware`.

    Raises:
        UserError: not one quantity, a path that is no dimension of the model, one without influence, or more or less
            than with any value that was tried; the line has the nearest, and what is left over.
    """
    asked = {
        "parameters": parameters,
        "flops": flops,
        "cache_size": cache_size,
        "decode_time": decode_time,
    }
    (name, wanted), *others = [(k, v) for k, v in asked.items() if v is not None] or [("", 0.0)]
    if not name or others or wanted is None or (name == "decode_time") != (hardware is not None):
        raise UserError(
            "match: expected one of parameters, flops, cache_size, and decode_time with hardware"
        )
    if not wanted > 0:
        raise UserError(f"match: {name}: found {wanted:g}; expected more than 0")
    measure = _measures(spec.context_length, hardware)[name]

    @cache
    def amount(multiple: int) -> float | None:
        """Return what the model has at a value; None where rules refuse it."""
        try:
            return measure(build(spec.override(f"{free}={step * multiple}"), device="meta"))
        except UserError:
            return None

    spec.override(f"{free}={step}")  # says what is wrong with the path
    allowed: list[int] = []
    for multiple in _powers(step):
        if (size := amount(multiple)) is not None:
            allowed.append(multiple)
            if size >= wanted and len(allowed) > 1:
                break
    if allowed and not (amount(allowed[0]) or 0) <= wanted <= (amount(allowed[-1]) or 0):
        more = (odd * n for odd in (3, 5, 7) for n in _powers(odd * step))
        outside = (n for n in more if not allowed[0] < n < allowed[-1])
        allowed = sorted({*allowed} | {n for n in outside if amount(n) is not None})
    if not allowed or amount(allowed[0]) == amount(allowed[-1]):
        raise UserError(f'match: "{free}" has no influence on {name}, or no allowed value')
    below = max((n for n in allowed if (amount(n) or 0) <= wanted), default=allowed[0])
    above = min((n for n in allowed if (amount(n) or 0) >= wanted), default=allowed[-1])
    tried = {*allowed} & {below, above}
    while above - below > 1:
        middle = (below + above) // 2
        known = next((n for n in _around(middle, below, above) if amount(n) is not None), None)
        if known is None:
            break
        tried.add(known)
        if (amount(known) or 0) < wanted:
            below = known
        else:
            above = known
    best = min(tried, key=lambda n: abs((amount(n) or 0) / wanted - 1))
    found = amount(best)
    assert found is not None
    value = step * best
    least, most = (amount(n) or 0 for n in (allowed[0], allowed[-1]))
    if not least <= wanted <= most:
        raise UserError(
            f"match: {name}: found {wanted:,.6g}, which no value of {free} that was tried comes to; the nearest is "
            f"{value}, with {found:,.6g}, {found / wanted - 1:+.1%}"
        )
    return Solution(spec.override(f"{free}={value}"), value, found)


def _powers(step: int) -> list[int]:
    """Return the powers of two that a step may be taken times."""
    return [2**i for i in range(MOST.bit_length()) if step * 2**i <= MOST]


def _around(middle: int, below: int, above: int) -> list[int]:
    """Return the values between two others, those near the middle first, as many as are worth trying."""
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
