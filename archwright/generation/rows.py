"""Sampling of several sequences in a batch."""

from collections.abc import Callable, Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

from archwright.generation.reader import Reader
from archwright.generation.sampling import Sampler
from archwright.model.model import Decoder
from archwright.parts.masks import prefix_size


class Rows:
    """Computes the next-token logits of sequences of unequal length, padded on the left, with a cache.

    Each sequence restarts at `context_length` from its last half, as in `Reader`. The cache is then filled again for
    all sequences.
    """

    def __init__(self, model: Decoder, prompts: Sequence[Tensor]) -> None:
        self._model = model
        self._texts = [prompt.tolist() for prompt in prompts]
        self._device = prompts[0].device
        self._cache = model.new_cache() if model.can_cache else None
        self._endless = self._cache is not None and model.can_generate_indefinitely

    def read_prompts(self) -> Float[Tensor, "rows vocab"]:
        """Return the logits after each prompt; of a prompt beyond the context, its end is read."""
        if not self._endless:
            self._texts = [text[-self._model.spec.context_length :] for text in self._texts]
        return self._read_texts()

    def read_rows(self, tokens: Int[Tensor, "rows 1"]) -> Float[Tensor, "rows vocab"]:
        """Return the logits after the next token of each sequence."""
        for text, token in zip(self._texts, tokens[:, 0].tolist(), strict=True):
            text.append(token)
        context, cache = self._model.spec.context_length, self._cache
        lengths = [len(text) for text in self._texts]
        is_full = not self._endless and max(lengths) > context
        if cache is None or is_full or {n - 1 for n in lengths} & {*self._model.switch_lengths}:
            if is_full:
                most = context if cache is None else max(1, context // 2)
                self._texts = [t[-most:] if len(t) > context else t for t in self._texts]
            self._cache = None if cache is None else self._model.new_cache()
            return self._read_texts()
        logits: Tensor = self._model.head(self._model.hidden(tokens, cache=cache)[:, -1])
        return logits

    def reorder(self, rows: Int[Tensor, " new_rows"]) -> None:
        """Reorder the sequences by index; indices may repeat or be missing."""
        self._texts = [[*self._texts[i]] for i in rows.tolist()]
        if self._cache is not None:
            self._cache.reorder(rows)

    def _read_texts(self) -> Tensor:
        longest = max(map(len, self._texts))
        padding = [longest - len(text) for text in self._texts]
        padded = [[0] * n + text for n, text in zip(padding, self._texts, strict=True)]
        tokens = torch.tensor(padded, device=self._device)  # [rows, longest]
        starts = torch.tensor(padding, device=self._device)[:, None]
        real = torch.arange(longest, device=self._device) >= starts
        mask = real if any(padding) else None
        hidden = self._model.hidden(tokens, padding_mask=mask, cache=self._cache)
        logits: Tensor = self._model.head(hidden[:, -1])
        return logits


def can_pad(model: Decoder) -> bool:
    """True if prompts of unequal length can be read side by side: no mask has a prefix."""
    return not any(prefix_size(mask) for mask in model.masks.values())


@torch.inference_mode()
def sample_rows(
    rows: Reader | Rows,
    logits: Float[Tensor, "rows vocab"],
    samplers: Sequence[Sampler],
    take: Sequence[Callable[[int], bool]],
) -> None:
    """Draw tokens for each sequence from `logits` on, until its `take` returns False."""
    left = [*zip(samplers, take, strict=True)]
    while True:
        tokens = [sampler(row) for (sampler, _), row in zip(left, logits, strict=True)]
        goes_on = [take(token) for (_, take), token in zip(left, tokens, strict=True)]
        live = [i for i, goes in enumerate(goes_on) if goes]
        if not live:
            return
        if len(live) < len(left):
            left = [left[i] for i in live]
            rows.reorder(torch.tensor(live, device=logits.device))
        logits = rows.read_rows(torch.tensor([[tokens[i]] for i in live], device=logits.device))
