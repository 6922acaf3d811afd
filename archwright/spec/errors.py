"""User errors and suggestions of similar names."""

import re
from collections.abc import Iterable
from pathlib import Path

from archwright.format import one_line

LONGEST = 100
"""Longest name to compare, in characters; longer ones are no typing mistakes."""


class UserError(ValueError):
    """A mistake in the user's input; the command line prints its lines and exits with code 2.

    Each line is complete, safe to print to a terminal, and quotes only the ends of a long text.
    """

    def __init__(self, *lines: str) -> None:
        self.lines = tuple(map(one_line, lines))
        super().__init__("\n".join(self.lines))

    def _render_traceback_(self) -> list[str]:
        """Return the lines that a notebook shows instead of a traceback (an IPython hook)."""
        return [f"archwright: {line}" for line in self.lines]


def nearest(word: str, choices: Iterable[str], most: int = 1) -> str:
    """Return ` Did you mean "x"?` for the choice closest to `word`, or the closest `most`.

    The string is empty if more than a third of the letters of every choice differ. Choices that start with `word`,
    ignoring punctuation, are close: llama3 -> llama-3-8b, cos -> cosine. A single choice that continues `word` after a
    dash is closest: a100 -> a100-80gb, not h100.
    """
    word = str(word)
    if not 0 < len(word) <= LONGEST:
        return ""
    import difflib  # rarely needed

    names = {choice.lower(): choice for choice in choices if len(choice) <= LONGEST}
    if same := names.get(word.lower()):
        return f' Did you mean "{same}"?'
    alike = difflib.get_close_matches(word.lower(), names, n=3 * most, cutoff=0.5)
    close = [
        name for name in alike if _differing(word.lower(), name) <= max(map(len, (word, name))) / 3
    ]
    onwards = [name for name in names if _goes_on(_letters(word), name)]
    dashed = [name for name in names if name.startswith(f"{word.lower()}-")]
    closest = dashed if len(dashed) == 1 else []
    found = [*dict.fromkeys([*closest, *close, *onwards])][:most]
    *first, last = (f'"{names[name]}"' for name in found) if found else ("",)
    return f" Did you mean {', '.join(first)}{' or ' * bool(first)}{last}?" if found else ""


def hub_hint(
    name: str, advice: str = "fetch it and give its folder: hf download {0} --local-dir {1}"
) -> str:
    """Return advice if a name looks like OWNER/NAME on the Hugging Face Hub; else an empty string."""
    file = r"(?<!\.[a-z]{3})(?<!\.[a-z]{5})"  # .txt, .jsonl
    like = re.fullmatch(rf"(?!runs/)(\w[\w.-]*)/(\w[\w.-]*){file}", name, re.ASCII)
    if not like or Path(like[1]).exists():
        return ""
    return f" If it is on the Hugging Face Hub, {advice.format(name, like[2])}"


def _goes_on(letters: str, name: str) -> bool:
    """Return True if a name begins with `letters`; fewer than three letters must end at a dash: t5 -> t5-small."""
    if len(letters) >= 3:
        return _letters(name).startswith(letters)
    parts = name.split("-")
    return letters in ("".join(map(_letters, parts[:end])) for end in range(1, len(parts)))


def _letters(word: str) -> str:
    return re.sub("[^a-z0-9]", "", word.lower())


def _differing(a: str, b: str) -> int:
    """Return the Damerau-Levenshtein distance: letters to insert, delete, change or swap (Damerau, 1964)."""
    rows: list[list[int]] = [[*range(len(b) + 1)]]
    for i, letter in enumerate(a, 1):
        row = [i]
        for j, other in enumerate(b, 1):
            ways = [rows[-1][j] + 1, row[-1] + 1, rows[-1][j - 1] + (letter != other)]
            if i > 1 and j > 1 and (letter, a[i - 2]) == (b[j - 2], other):
                ways.append(rows[-2][j - 2] + 1)
            row.append(min(ways))
        rows.append(row)
    return rows[-1][-1]
