"""Text of a growing sequence of tokens: complete characters, up to a stop string."""

import codecs
from collections.abc import Collection, Sequence

from archwright.text.tokenizer import Tokenizer


class Characters:
    """Decodes tokens one by one. A character may span several tokens.

    Args:
        prompt: Ids of the preceding text, which is not returned.
        keep_special: Return the names of special tokens.
    """

    def __init__(
        self, tokenizer: Tokenizer, prompt: Sequence[int] = (), *, keep_special: bool = False
    ) -> None:
        self._tokenizer, self._keep_special = tokenizer, keep_special
        self._bytes = tokenizer.token_bytes
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")
        self._names = {i: name.encode() for name, i in tokenizer.special_ids.items()}
        # Tokenizers without bytes per token: text depends on neighbours, so the tokens since the last but one
        # complete character are decoded again.
        self._window, self._num_shown = [*prompt], len(prompt)

    def add(self, token: int) -> str:
        """Return the characters that a token completes."""
        if self._bytes is not None:
            content = self._bytes[token]
            if self._keep_special:
                content = self._names.get(token, content)
            return self._utf8.decode(content)
        self._window.append(token)
        text = self._unshown()
        if text.endswith("\N{REPLACEMENT CHARACTER}"):
            return ""
        self._window, self._num_shown = (
            self._window[self._num_shown :] if text else self._window,
            len(self._window) - self._num_shown if text else len(self._window),
        )
        return text

    def rest(self) -> str:
        """Return the incomplete character at the end, as U+FFFD."""
        return self._utf8.decode(b"", final=True) if self._bytes is not None else self._unshown()

    def _unshown(self) -> str:
        before, now = (
            self._tokenizer.decode(ids, keep_special=self._keep_special)
            for ids in (self._window[: self._num_shown], self._window)
        )
        return now[len(before) :]


class StopStrings:
    """Cuts a text before the stop string that is complete first; returns no part of it before."""

    def __init__(self, stops: Collection[str]) -> None:
        self._stops, self._held = stops, ""
        self.found = False

    def add(self, text: str) -> str:
        """Return the text that is certain to come before any stop string."""
        text = self._held + text
        ends = [(at + len(s), at) for s in self._stops if (at := text.find(s)) >= 0]
        if ends:
            self.found, self._held = True, ""
            return text[: min(ends)[1]]
        longest = max((_overlap(text, stop) for stop in self._stops), default=0)
        self._held = text[len(text) - longest :]
        return text[: len(text) - longest]

    def rest(self) -> str:
        """Return the text held back."""
        held, self._held = self._held, ""
        return held


def _overlap(text: str, stop: str) -> int:
    """Return the length of the longest end of `text` that begins `stop`."""
    lengths = range(min(len(text), len(stop) - 1), 0, -1)
    return next((n for n in lengths if text.endswith(stop[:n])), 0)
