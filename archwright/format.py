"""Values as text: printable, rounded to what they carry, with their unit, in columns.

A run, a checkpoint, a file's name or a model's own words may hold characters that move the cursor, set the clipboard
or turn what follows around. Texts that are given to a terminal go through `printable`.
"""

import itertools
import math
import os
import re
import textwrap
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any, TextIO

QUOTED = 200
"""Most characters of what an error quotes."""
LINE = 1000
"""Most characters of an error."""
DIGITS = 40
"""Most digits of an integer that is written out."""
NARROWEST = 16
"""Least characters of a column in which cells are broken."""
NO_UTILISATION = "share of the peak unknown, as that was measured next to other work"

STEERING = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f"  # controls, ESC and BEL among them, but tab and the end of a line
    "\u2028\u2029"  # ends of lines to few programs
    "\u202a-\u202e\u2066-\u2069"  # which turn the direction of what follows
    "\u200b\u2060\ufeff"  # which are not seen
    "\ud800-\udfff]"  # halves of characters
)
LONG = re.compile(rf'"(?:[^"\\]|\\.){{{QUOTED - 1},}}"|\S{{{QUOTED + 1},}}')


def printable(text: str) -> str:
    """Return text with U+FFFD in the place of what steers a terminal; tabs and ends of lines stay."""
    return STEERING.sub("\N{REPLACEMENT CHARACTER}", text.replace("\r\n", "\n"))


def one_line(text: str) -> str:
    """Return text as one printable line, with long words and quotations shortened in the middle."""
    text = printable(text).replace("\n", "\\n").replace("\t", " ")
    text = "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)
    return shortened(LONG.sub(lambda found: shortened(found[0]), text), LINE)


def shortened(text: str, most: int = QUOTED) -> str:
    """Return text of at most `most` characters, with dots for the middle of a longer one."""
    if len(text) <= most:
        return text
    before = (most - 3) // 2
    return f"{text[:before]}...{text[before + 3 - most :]}"


def number_text(number: int | float) -> str:
    """Return a number as it stands in a file, or how many digits it has where these are many."""
    digits = number.bit_length() * math.log10(2) if isinstance(number, int) else 0
    return f"about 1e{digits:.0f}" if digits > DIGITS else str(number)


def count(value: float) -> str:
    """Return a number of things in three digits: 3_412_992 is `3.41M`."""
    number, prefix = _scaled(value, ("", "k", "M", "B", "T"))
    return f"{number}{prefix}"


def amount(value: float) -> str:
    """Return what need not be whole, in three digits: 6_310_000 is `6.31M`, 0.1462 is `0.146`."""
    return count(value) if value >= 100 else significant(value)


def exact(value: float) -> str:
    """Return a whole number with its thousands set apart: `3,412,992`."""
    return f"{value:,.0f}"


def duration(seconds: float) -> str:
    """Return a time in its two largest units: `2 min 50 s`, `4.2 ms`."""
    if 0 < seconds < 0.0995:
        return f"{1e3 * seconds:.2g} ms"
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


def time_span(least: float, most: float) -> str:
    """Return a range of seconds in the unit that fits its end, `24.2 to 40.3 days`; one time where both look alike."""
    unit, seconds = next((u for u in UNITS if most >= u[1]), UNITS[-1])
    ends = dict.fromkeys(significant(end / seconds) for end in (least, most))
    return f"{' to '.join(ends)} {unit}"


UNITS = (("days", 86400.0), ("hours", 3600.0), ("minutes", 60.0), ("s", 1.0), ("ms", 1e-3))
"""Units of time, the longest first."""


def parameters(number: int) -> str:
    """Return a number of parameters in three digits of millions or billions: `21.0M`, `27.0B`."""
    unit, letter = (1e9, "B") if number >= 0.9995e9 else (1e6, "M")
    digits = max(0, 3 - len(str(int(number / unit))))
    return f"{number / unit:.{digits}f}{letter}"


def size(num_bytes: float) -> str:
    """Return a number of bytes in decimal units: `1.04 MB`."""
    number, unit = _scaled(num_bytes, ("bytes", "kB", "MB", "GB", "TB"))
    return f"{number} {unit}"


def rate(flops_per_second: float) -> str:
    """Return a speed of computation: `435 GFLOP/s`."""
    number, prefix = _scaled(flops_per_second, ("", "k", "M", "G", "T", "P"))
    return f"{number} {prefix}FLOP/s"


def energy(watt_hours: float) -> str:
    """Return an energy: `2.65 GWh`."""
    number, prefix = _scaled(watt_hours, ("", "k", "M", "G", "T"))
    return f"{number} {prefix}Wh"


def flops(value: float) -> str:
    """Return a number of FLOPs as a budget is written: `1.23e15`."""
    mantissa, exponent = f"{value:.2e}".split("e")
    return f"{mantissa}e{int(exponent)}"


def percent(fraction: float) -> str:
    """Return a share in per cent: `38 %`, and `3.8 %` where a digit more is worth it."""
    digits = 0 if abs(fraction) >= 0.0995 or fraction == 0 else 1
    return f"{100 * fraction:.{digits}f} %"


def accuracy(share: float) -> str:
    """Return a share of right answers in per cent, `99.6 %`: what is not all of them does not look so; `–` where none
    is known."""
    if math.isnan(share):
        return "–"
    digits = 1 if share == 1 or share < 0.9995 else 2
    return f"{min(100 * share, 99.99 if share < 1 else 100):.{digits}f} %"


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


def columns(
    rows: Sequence[Sequence[str]],
    *,
    right: Collection[int] = (),
    wrapped: Collection[int] = (),
    width: int = 0,
    first_width: int = 0,
    break_on_hyphens: bool = True,
) -> Iterator[str]:
    """Yield the lines of a table, its columns two blanks apart.

    Args:
        right: numbers of the columns that are set to the right.
        wrapped: numbers of those that share what the others leave of `width`, in which long cells are broken.
        first_width: least width of the first column.
        break_on_hyphens: whether cells may be broken behind a hyphen.
    """
    widths = [max(map(len, cells)) for cells in zip(*rows, strict=True)]
    widths[:1] = [max(first_width, width) for width in widths[:1]]
    if wrapped:
        others = sum(width for i, width in enumerate(widths) if i not in wrapped)
        share = (width - others - 2 * (len(widths) - 1)) // len(wrapped)
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
    """A stream of text that passes on what is printable; in all else it is the stream beneath."""

    def __init__(self, stream: TextIO, *, may_fail: bool = False) -> None:
        self.rich_proxied_file = WatchedStream(stream, may_fail)
        """Where rich writes, whose colours steer; the text it is given must be printable already."""

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
    """A stream of text that knows whether anything was written, and drops it where it `may_fail` and the disk is full;
    in all else it is the stream beneath."""

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
    """Return three digits of a value and the prefix of the thousands they count."""
    for prefix in prefixes:
        short = f"{value:.0f}" if prefix == prefixes[0] else f"{float(f'{value:.3g}'):g}"
        if abs(float(short)) < 1000 or prefix == prefixes[-1]:
            break
        value /= 1000
    return short, prefix
