"""Prompt lookup: greedy decoding that guesses tokens from earlier text."""

from collections.abc import Collection, Iterator, Sequence

import torch
from jaxtyping import Int
from torch import Tensor

from archwright.generation.reader import Reader
from archwright.model.model import Decoder

LONGEST = 3
"""Maximum length of the match."""


def guess(text: Sequence[int], number: int) -> list[int]:
    """Return the tokens after the latest earlier match of the text's last tokens; none without a match.

    A match near the end repeats: 1 2 1 2 continues as 1 2 1 2 1 2.
    """
    for length in range(min(LONGEST, len(text) - 1), 0, -1):
        last = text[-length:]
        for start in range(len(text) - length - 1, -1, -1):
            if text[start : start + length] == last:
                longer = [*text]
                for i in range(number):
                    longer.append(longer[start + length + i])
                return longer[len(text) :]
    return []


@torch.inference_mode()
def greedy(
    model: Decoder,
    prompt: Int[Tensor, " length"],
    *,
    max_new_tokens: int,
    lookup: int,
    stop: Collection[int] = (),
    num_tokens: int | None = None,
) -> Iterator[int]:
    """Yield the most likely tokens, as `sample` does at temperature 0, with fewer passes over the weights.

    Each pass reads the last token and up to `lookup` guesses, and accepts them up to the first that differs from the
    model's choice. So the text is the same up to rounding. Recurrences and windows cannot forget rejected guesses, and
    decode without guesses.

    Source: Saxena, 2023, Prompt Lookup Decoding; verification: Leviathan et al., 2022.
    """
    model.eval()
    reader = Reader(model)
    text = prompt.tolist()
    logits = reader.read(prompt)[None]
    guessed: list[int] = []
    written = 0
    while written < max_new_tokens:
        # The choice after the last token, and after each guessed one.
        chosen = logits[:, :num_tokens].argmax(-1).tolist()
        agreed = 0
        while agreed < len(guessed) and guessed[agreed] == chosen[agreed]:
            agreed += 1
        if agreed < len(guessed):
            reader.forget(len(guessed) - agreed)
        for token in chosen[: agreed + 1]:
            if token in stop or written == max_new_tokens:
                return
            yield token
            text.append(token)
            written += 1
        room = min(lookup, reader.room - 1, max_new_tokens - written - 1)
        guessed = guess(text, room) if room > 0 else []
        read = prompt.new_tensor([text[-1], *guessed])
        logits = reader.read_all(read) if guessed else reader.read(read)[None]
