"""Errors of the user, in one line each."""

import re
from collections.abc import Iterable
from pathlib import Path

from archwright.format import one_line

LONGEST = 100
"""Most letters of what is compared with names; nobody mistypes a longer one."""


class UserError(ValueError):
    """A mistake in what the user wrote or has; the command line shows its lines and exits with 2.

    Each line is complete in itself, may be given to a terminal, and quotes no more than the ends of a long text.
    """

    def __init__(self, *lines: str) -> None:
        self.lines = tuple(map(one_line, lines))
        super().__init__("\n".join(self.lines))

    def _render_traceback_(self) -> list[str]:
        """Return what a notebook shows in place of a traceback; IPython asks for it by this name."""
        return [f"archwright: {line}" for line in self.lines]


def nearest(word: str, choices: Iterable[str], most: int = 1) -> str:
    """Return ` Did you mean "x"?` for the choice closest to `word`, or the `most` closest; an empty string
    where more than a third of the letters of each differ. A choice that goes on where `word` ends is close, with or
    without marks between its letters: llama3 -> llama-3-8b, cos -> cosine. One that alone goes on behind a dash is
    closest: a100 -> a100-80gb, not h100."""
    word = str(word)
    if not 0 < len(word) <= LONGEST:
        return ""
    import difflib  # seldom wanted

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
    """Return advice for what looks like a name on the Hugging Face Hub, OWNER/NAME; empty for other names."""
    file = r"(?<!\.[a-z]{3})(?<!\.[a-z]{5})"  # .txt, .jsonl
    like = re.fullmatch(rf"(?!runs/)(\w[\w.-]*)/(\w[\w.-]*){file}", name, re.ASCII)
    if not like or Path(like[1]).exists():
        return ""
    return f" If it is on the Hugging Face Hub, {advice.format(name, like[2])}"


def _goes_on(letters: str, name: str) -> bool:
    """Return whether a name begins with some letters, of fewer than three up to one of its dashes: t5 -> t5-small."""
    if len(letters) >= 3:
        return _letters(name).startswith(letters)
    parts = name.split("-")
    return letters in ("".join(map(_letters, parts[:end])) for end in range(1, len(parts)))


def _letters(word: str) -> str:
    return re.sub("[^a-z0-9]", "", word.lower())


def _differing(a: str, b: str) -> int:
    """Return how many letters must be put in, left out, changed, or exchanged with their neighbour (Damerau, 1964)."""
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
