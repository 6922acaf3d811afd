"""What the user got wrong, said in one line each."""

import difflib
from collections.abc import Iterable


class UserError(ValueError):
    """A mistake in what the user wrote or has; the command line shows its lines and exits with 2.

    Each line is complete in itself.
    """

    def __init__(self, *lines: str) -> None:
        super().__init__("\n".join(lines))
        self.lines = lines


def nearest(word: str, choices: Iterable[str], most: int = 1) -> str:
    """Return ` Did you mean "x"?` for the choice closest to `word`, or the `most` closest; an empty string
    where none is close."""
    found = difflib.get_close_matches(str(word).lower(), list(choices), n=most, cutoff=0.55)
    *first, last = (f'"{choice}"' for choice in found) if found else ("",)
    return f" Did you mean {', '.join(first)}{' or ' * bool(first)}{last}?" if found else ""
