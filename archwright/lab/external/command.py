"""Command templates with placeholders, and secrets in them."""

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from archwright.spec.errors import UserError, nearest

PLACEHOLDERS = ("variant", "seed", "lr", "steps", "out")
REQUIRED = ("variant", "seed", "out")
PIECE = re.compile(r"\{\{|\}\}|\{([^{}]*)\}")
SECRET = re.compile(r"(?:^|[-_.]|(?<=[a-z])(?=[A-Z]))(?:token|key|password|secret)$", re.IGNORECASE)
"""End of the name of an option with a secret value: `--hub-token`, `WANDB_API_KEY`, `apiKey`."""
MASK = "***"


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

    @cached_property
    def words(self) -> tuple[str, ...]:
        """Words of the command, not filled."""
        if self.shell:
            return ("/bin/sh", "-c", self.text)
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
            if match[1] is None:
                return match[0][0]
            text = str(values.get(match[1], match[0]))
            return shlex.quote(text) if self.shell and match[1] in values else text

        return tuple(PIECE.sub(value, word) for word in self.words)

    @property
    def masked(self) -> str:
        """Text without the values of secrets."""
        text = self.text
        for secret in secrets(self.words):
            text = text.replace(secret, MASK)
        return text


def secrets(words: tuple[str, ...]) -> list[str]:
    """Return the values of options with secret values, the longest first."""
    if words[:2] == ("/bin/sh", "-c"):
        try:
            words = tuple(shlex.split(words[2]))
        except ValueError:
            words = tuple(words[2].split())
    found = set()
    for word, after in zip(words, (*words[1:], ""), strict=True):
        name, equals, value = word.partition("=")
        if SECRET.search(name) and (equals or word.startswith("-")):
            found.add(value if equals else after)
    return sorted((f for f in found if f and not PIECE.search(f)), key=len, reverse=True)


def masked(text: str, hidden: list[str]) -> str:
    """Return a text without secret values."""
    for secret in hidden:
        text = text.replace(secret, MASK)
    return text
