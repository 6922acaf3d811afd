"""Numbers as people read them: short, with their unit, rounded to what they carry."""

import math


def count(value: float) -> str:
    """Return a number of things in three digits: 3_412_992 is `3.41M`."""
    if abs(value) < 1000:
        return f"{value:.0f}"
    for power, letter in enumerate("kMBT", start=1):
        scaled = float(f"{value / 1000**power:.3g}")
        if abs(scaled) < 1000 or letter == "T":
            break
    return f"{scaled:.3g}{letter}" if abs(scaled) < 1000 else f"{value:.2e}"


def exact(value: float) -> str:
    """Return a whole number with its thousands set apart: `3,412,992`."""
    return f"{value:,.0f}"


def duration(seconds: float) -> str:
    """Return a time in its two largest units: `2 min 50 s`."""
    if seconds < 9.95:
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
    for unit in ("bytes", "kB", "MB", "GB", "TB"):
        scaled = num_bytes if unit == "bytes" else float(f"{num_bytes:.3g}")
        if scaled < 1000 or unit == "TB":
            break
        num_bytes /= 1000
    return f"{scaled:.3g} {unit}"


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


def printable(text: str) -> str:
    """Return text without control characters, which could steer a terminal or break a page."""
    return "".join(c if c.isprintable() or c in "\n\t" else "\N{REPLACEMENT CHARACTER}" for c in text)
