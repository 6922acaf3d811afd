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


def nearest(word: str, choices: Iterable[str]) -> str:
    """Return ` Did you mean "x"?` for the choice closest to `word`, or an empty string."""
    found = difflib.get_close_matches(str(word).lower(), list(choices), n=1, cutoff=0.55)
    return f' Did you mean "{found[0]}"?' if found else ""
