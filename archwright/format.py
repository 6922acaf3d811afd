"""Values as text that a terminal may be given. A run, a checkpoint, a file's name or a model's own words may hold
characters that move the cursor, set the clipboard or turn what follows around."""

import math
import re
from collections.abc import Iterable
from typing import Any, TextIO

QUOTED = 200
"""Most characters of what an error quotes."""
LINE = 1000
"""Most characters of an error."""
DIGITS = 40
"""Most digits of an integer that is written out."""

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


class PrintableStream:
    """A stream of text that passes on what is printable; in all else it is the stream beneath."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream
        self.rich_proxied_file = stream
        """Where rich writes, whose colours steer; the text it is given must be printable already."""

    def write(self, text: str) -> int:
        """Write text."""
        self.stream.write(printable(text))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        """Write lines."""
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)
