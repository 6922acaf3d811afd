"""Numbers as people read them: short, with their unit, rounded to what they carry."""

import math


def count(value: float) -> str:
    """Return a number of things in three digits: 3_412_992 is `3.41M`."""
    number, prefix = _scaled(value, ("", "k", "M", "B", "T"))
    return f"{number}{prefix}"


def exact(value: float) -> str:
    """Return a whole number with its thousands set apart: `3,412,992`."""
    return f"{value:,.0f}"


def duration(seconds: float) -> str:
    """Return a time in its two largest units: `2 min 50 s`."""
    if 0 < seconds < 9.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    minutes = round(seconds / 60)
    if minutes < 24 * 60:
        return f"{minutes // 60} h {minutes % 60} min"
    hours = round(seconds / 3600)
    return f"{hours // 24} d {hours % 24} h"


def size(num_bytes: float) -> str:
    """Return a number of bytes in decimal units: `1.04 MB`."""
    number, unit = _scaled(num_bytes, ("bytes", "kB", "MB", "GB", "TB"))
    return f"{number} {unit}"


def rate(flops_per_second: float) -> str:
    """Return a speed of computation: `435 GFLOP/s`."""
    number, prefix = _scaled(flops_per_second, ("", "k", "M", "G", "T", "P"))
    return f"{number} {prefix}FLOP/s"


def flops(value: float) -> str:
    """Return a number of FLOPs as a budget is written: `1.23e15`."""
    mantissa, exponent = f"{value:.2e}".split("e")
    return f"{mantissa}e{int(exponent)}"


def percent(fraction: float) -> str:
    """Return a share in per cent: `38 %`, and `3.8 %` where a digit more is worth it."""
    digits = 0 if abs(fraction) >= 0.0995 or fraction == 0 else 1
    return f"{100 * fraction:.{digits}f} %"


def decimal(value: float, digits: int = 3) -> str:
    """Return a number with fixed decimals, and `not finite` for infinities and NaN."""
    return f"{value:.{digits}f}" if math.isfinite(value) else "not finite"


def short(value: float) -> str:
    """Return a learning rate or the like in three digits at most: `3e-3`, `3.35e-3`."""
    mantissa, exponent = f"{value:.2e}".split("e")
    return f"{float(mantissa):g}e{int(exponent)}"


def signed(value: float, digits: int = 4) -> str:
    """Return a difference with its sign: `+0.0123`, `−0.0123`, and `–` where there is none."""
    if not math.isfinite(value):
        return "–"
    return f"{value:+.{digits}f}".replace("-", "\N{MINUS SIGN}")


def probability(value: float) -> str:
    """Return a p value: `0.031`, `< 0.001`, and `–` where there is none."""
    if not math.isfinite(value):
        return "–"
    return "<\N{NO-BREAK SPACE}0.001" if value < 0.001 else f"{value:.{3 if value < 0.1 else 2}f}"


def loss(nats_per_token: float) -> str:
    """Return a loss in the digits that two runs may differ in: `1.9894`."""
    return decimal(nats_per_token, 4)


def significant(value: float, digits: int = 3) -> str:
    """Return a number in significant digits: `11.3`, `1,234`."""
    if not math.isfinite(value):
        return "not finite"
    if abs(value) >= 10**digits:
        return f"{value:,.0f}" if abs(value) < 1e9 else f"{value:.{digits - 1}e}"
    return f"{value:.{digits}g}"


def listed(words: list[str]) -> str:
    """Return words as a sentence holds them: `a, b and c`."""
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


def _scaled(value: float, prefixes: tuple[str, ...]) -> tuple[str, str]:
    """Return three digits of a value and the prefix of the thousands they count."""
    for prefix in prefixes:
        short = f"{value:.0f}" if prefix == prefixes[0] else f"{float(f'{value:.3g}'):g}"
        if abs(float(short)) < 1000 or prefix == prefixes[-1]:
            break
        value /= 1000
    return short, prefix
