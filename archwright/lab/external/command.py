"""Command templates with placeholders, and secrets in them."""

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass

from archwright.spec.errors import UserError, nearest

PLACEHOLDERS = ("variant", "seed", "lr", "steps", "out")
REQUIRED = ("variant", "seed", "out")
PIECE = re.compile(r"\{\{|\}\}|\{([^{}]*)\}")
SHELL = ("/bin/sh", "-c")
SECRET = re.compile(r"(?:^|[-_.]|(?<=[a-z])(?=[A-Z]))(?i:token|key|password|secret)$")
"""End of the name of a secret option: `--hub-token`, `WANDB_API_KEY`, `apiKey`."""


@dataclass(frozen=True)
class Template:
    """A command with placeholders.

    The text is split into words first and filled afterwards, so that a value with spaces stays one word.

    Args:
        shell: Run the text by `/bin/sh`, with quoted values.

    Raises:
        UserError: Open quotation, or an unknown or missing placeholder.
    """

    text: str
    shell: bool = False

    def __post_init__(self) -> None:
        for name in self.names:
            if name not in PLACEHOLDERS:
                known = ", ".join(f"{{{known}}}" for known in PLACEHOLDERS)
                raise UserError(
                    f"--command: found {{{name}}}; expected one of {known}, or {{{{ for a brace."
                    f"{nearest(name, PLACEHOLDERS)}"
                )
        for name in REQUIRED:
            if name not in self.names:
                raise UserError(f"--command: found no {{{name}}}; expected it in the command")

    @property
    def words(self) -> tuple[str, ...]:
        """Words of the command, not filled."""
        if self.shell:
            return (*SHELL, self.text)
        try:
            return tuple(shlex.split(self.text))
        except ValueError as error:
            raise UserError(f"--command: {error} in: {self.text}") from None

    @property
    def names(self) -> set[str]:
        """Names of the placeholders."""
        found = (PIECE.finditer(word) for word in self.words)
        return {match[1] for matches in found for match in matches if match[1] is not None}

    def fill(self, values: Mapping[str, object]) -> tuple[str, ...]:
        """Return the words with values; a placeholder without a value stays."""

        def value(match: re.Match[str]) -> str:
            if match[1] not in values:
                return match[0] if match[1] else match[0][0]
            return shlex.quote(f"{values[match[1]]}") if self.shell else f"{values[match[1]]}"

        return tuple(PIECE.sub(value, word) for word in self.words)


def masked(text: str, words: tuple[str, ...]) -> str:
    """Return a text without the values of options with secrets in a command."""
    if words[:2] == SHELL:
        words = tuple(words[2].split())
    found = set()
    for word, after in zip(words, (*words[1:], ""), strict=True):
        name, equals, value = word.partition("=")
        if SECRET.search(name) and (equals or word.startswith("-")):
            found.add(value.strip("'\"") if equals else after.strip("'\""))
    for secret in sorted(filter(None, found), key=len, reverse=True):
        text = text if PIECE.search(secret) else text.replace(secret, "***")
    return text
