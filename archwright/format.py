"""Values as text: printable, rounded, with units, and in columns.

Runs, checkpoints, file names and generated text may contain characters that move the cursor, set the clipboard or
reverse the text direction. All text for a terminal goes through `printable`.
"""

import itertools
import math
import os
import re
import textwrap
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any, TextIO

QUOTED = 200
"""Maximum length of a quotation in an error, in characters."""
LINE = 1000
"""Maximum length of an error, in characters."""
DIGITS = 40
"""Maximum number of digits of an integer printed in full."""
NARROWEST = 16
"""Minimum width of a column with wrapped cells, in characters."""
NO_UTILISATION = "share of the peak unknown: it was measured on a busy machine"

STEERING = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f"  # control characters, such as ESC and BEL, except tab and newline
    "\u2028\u2029"  # line and paragraph separators
    "\u202a-\u202e\u2066-\u2069"  # text direction
    "\u200b\u2060\ufeff"  # zero width
    "\ud800-\udfff]"  # surrogates
)
LONG = re.compile(rf'"(?:[^"\\]|\\.){{{QUOTED - 1},}}"|\S{{{QUOTED + 1},}}')


def printable(text: str) -> str:
    """Return text with U+FFFD for terminal control characters; tabs and newlines stay."""
    return STEERING.sub("\N{REPLACEMENT CHARACTER}", text.replace("\r\n", "\n"))


def one_line(text: str) -> str:
    """Return a single printable line, with long words and quotations shortened."""
    text = printable(text).replace("\n", "\\n").replace("\t", " ")
    text = "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)
    return shortened(LONG.sub(lambda match: shortened(match[0]), text), LINE)


def shortened(text: str, most: int = QUOTED) -> str:
    """Return text of at most `most` characters; dots replace the middle of a longer text."""
    if len(text) <= most:
        return text
    before = (most - 3) // 2
    return f"{text[:before]}...{text[before + 3 - most :]}"


def number_text(number: int | float) -> str:
    """Return a number in full, or as `about 1e50` beyond `DIGITS` digits."""
    digits = number.bit_length() * math.log10(2) if isinstance(number, int) else 0
    return f"about 1e{digits:.0f}" if digits > DIGITS else str(number)


def count(value: float) -> str:
    """Return a count in three digits: 3_412_992 is `3.41M`."""
    number, prefix = _scaled(value, ("", "k", "M", "B", "T"))
    return f"{number}{prefix}"


def amount(value: float) -> str:
    """Return a fractional quantity in three digits: 6_310_000 is `6.31M`, 0.1462 is `0.146`."""
    return count(value) if value >= 100 else significant(value)


def exact(value: float) -> str:
    """Return an integer with thousands separators: `3,412,992`."""
    return f"{value:,.0f}"


def duration(seconds: float) -> str:
    """Return a time in its two largest units: `2 min 50 s`, `4.2 ms`."""
    if 0 < seconds < 0.0995:
        return f"{1e3 * seconds:.2g} ms"
    if 0 < seconds < 9.95:
        return f"{seconds:.1f} s"
    total = round(seconds)
    if total < 60:
        return f"{total} s"
    if total < 3600:
        return f"{total // 60} min {total % 60} s"
    minutes = round(seconds / 60)
    if minutes < 24 * 60:
        return f"{minutes // 60} h {minutes % 60} min"
    hours = round(seconds / 3600)
    return f"{hours // 24} d {hours % 24} h"


def time_span(least: float, most: float) -> str:
    """Return a range of seconds in one unit: `24.2 to 40.3 days`. Ends that look equal are merged."""
    unit, seconds = next((u for u in UNITS if most >= u[1]), UNITS[-1])
    ends = dict.fromkeys(significant(end / seconds) for end in (least, most))
    return f"{' to '.join(ends)} {unit}"


UNITS = (("days", 86400.0), ("hours", 3600.0), ("minutes", 60.0), ("s", 1.0), ("ms", 1e-3))
"""Units of time and their length in seconds, longest first."""


def parameters(number: int) -> str:
    """Return a parameter count in millions or billions with three digits: `21.0M`, `27.0B`."""
    unit, letter = (1e9, "B") if number >= 0.9995e9 else (1e6, "M")
    digits = max(0, 3 - len(str(int(number / unit))))
    return f"{number / unit:.{digits}f}{letter}"


def size(num_bytes: float) -> str:
    """Return a number of bytes in decimal units: `1.04 MB`."""
    number, unit = _scaled(num_bytes, ("bytes", "kB", "MB", "GB", "TB"))
    return f"{number} {unit}"


def rate(flops_per_second: float) -> str:
    """Return a compute rate: `435 GFLOP/s`."""
    number, prefix = _scaled(flops_per_second, ("", "k", "M", "G", "T", "P"))
    return f"{number} {prefix}FLOP/s"


def energy(watt_hours: float) -> str:
    """Return an energy: `2.65 GWh`."""
    number, prefix = _scaled(watt_hours, ("", "k", "M", "G", "T"))
    return f"{number} {prefix}Wh"


def flops(value: float) -> str:
    """Return a number of FLOPs in the format of budgets: `1.23e15`."""
    mantissa, exponent = f"{value:.2e}".split("e")
    return f"{mantissa}e{int(exponent)}"


def percent(fraction: float) -> str:
    """Return a fraction in per cent: `38 %`, or `3.8 %` below 10 %."""
    digits = 0 if abs(fraction) >= 0.0995 or fraction == 0 else 1
    return f"{100 * fraction:.{digits}f} %"


def accuracy(share: float) -> str:
    """Return an accuracy in per cent: `99.6 %`, or `–` for NaN. Only 1 is `100.0 %`."""
    if math.isnan(share):
        return "–"
    digits = 1 if share == 1 or share < 0.9995 else 2
    return f"{min(100 * share, 99.99 if share < 1 else 100):.{digits}f} %"


def decimal(value: float, digits: int = 3) -> str:
    """Return a number with fixed decimals, or `not finite`."""
    return f"{value:.{digits}f}" if math.isfinite(value) else "not finite"


def short(value: float) -> str:
    """Return a number in scientific notation, at most three digits: `3e-3`, `3.35e-3`."""
    mantissa, exponent = f"{value:.2e}".split("e")
    return f"{float(mantissa):g}e{int(exponent)}"


def signed(value: float, digits: int = 4) -> str:
    """Return a difference with its sign: `+0.0123`, `−0.0123`, or `–` if not finite."""
    if not math.isfinite(value):
        return "–"
    return f"{value:+.{digits}f}".replace("-", "\N{MINUS SIGN}")


def probability(value: float) -> str:
    """Return a p-value: `0.031`, `< 0.001`, or `–` if not finite."""
    if not math.isfinite(value):
        return "–"
    return "<\N{NO-BREAK SPACE}0.001" if value < 0.001 else f"{value:.{3 if value < 0.1 else 2}f}"


def loss(nats_per_token: float) -> str:
    """Return a loss with four decimals: `1.9894`."""
    return decimal(nats_per_token, 4)


def significant(value: float, digits: int = 3) -> str:
    """Return a number in significant digits: `11.3`, `1,234`."""
    if not math.isfinite(value):
        return "not finite"
    if abs(value) >= 10**digits:
        return f"{value:,.0f}" if abs(value) < 1e9 else f"{value:.{digits - 1}e}"
    return f"{value:.{digits}g}"


def listed(items: list[str]) -> str:
    """Join words as in a sentence: `a, b and c`."""
    return " and ".join([", ".join(items[:-1]), items[-1]] if len(items) > 1 else items)


def columns(
    rows: Sequence[Sequence[str]],
    *,
    right: Collection[int] = (),
    wrapped: Collection[int] = (),
    width: int = 0,
    first_width: int = 0,
    break_on_hyphens: bool = True,
) -> Iterator[str]:
    """Yield the lines of a table, with two spaces between columns.

    Args:
        right: Indices of right-aligned columns.
        wrapped: Indices of columns with wrapped cells, which share the remaining part of `width`.
        first_width: Minimum width of the first column.
        break_on_hyphens: Whether cells may be wrapped after a hyphen.
    """
    widths = [max(map(len, cells)) for cells in zip(*rows, strict=True)]
    widths[:1] = [max(first_width, width) for width in widths[:1]]
    if wrapped:
        fixed = sum(width for i, width in enumerate(widths) if i not in wrapped)
        share = (width - fixed - 2 * (len(widths) - 1)) // len(wrapped)
        widths = [
            min(w, max(NARROWEST, share)) if i in wrapped else w for i, w in enumerate(widths)
        ]
    for row in rows:
        cells = [
            textwrap.wrap(cell, width, replace_whitespace=False, break_on_hyphens=break_on_hyphens)
            if len(cell) > width
            else [cell]
            for cell, width in zip(row, widths, strict=True)
        ]
        for line in itertools.zip_longest(*cells, fillvalue=""):
            texts = zip(line, widths, range(len(line)), strict=True)
            padded = [text.rjust(w) if i in right else text.ljust(w) for text, w, i in texts]
            yield "  ".join(padded).rstrip()


class PrintableStream:
    """Text stream with a filter for control characters; other methods are forwarded."""

    def __init__(self, stream: TextIO, *, may_fail: bool = False) -> None:
        self.rich_proxied_file = WatchedStream(stream, may_fail)
        """Unfiltered stream for rich, which writes colour codes; its text must be printable."""

    def write(self, text: str) -> int:
        """Write text."""
        self.rich_proxied_file.write(printable(text))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        """Write lines."""
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.rich_proxied_file, name)


class WatchedStream:
    """Text stream that records whether it was used; other methods are forwarded.

    With `may_fail`, output is discarded after a write error such as a full disk."""

    def __init__(self, stream: TextIO, may_fail: bool = False) -> None:
        self.stream, self.may_fail = stream, may_fail
        self.is_used = False

    def write(self, text: str) -> int:
        """Write text."""
        self.is_used = self.is_used or bool(text)
        try:
            self.stream.write(text)
            if self.may_fail:
                self.stream.flush()
        except OSError as error:
            if not self.may_fail or isinstance(error, BrokenPipeError):
                raise
            os.dup2(os.open(os.devnull, os.O_WRONLY), self.stream.fileno())
        return len(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


def _scaled(value: float, prefixes: tuple[str, ...]) -> tuple[str, str]:
    """Return a value in three digits, and its prefix (power of 1000)."""
    for prefix in prefixes:
        short = f"{value:.0f}" if prefix == prefixes[0] else f"{float(f'{value:.3g}'):g}"
        if abs(float(short)) < 1000 or prefix == prefixes[-1]:
            break
        value /= 1000
    return short, prefix
