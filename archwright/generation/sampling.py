"""Sampling from a model, one token at a time."""

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from archwright.generation.reader import Reader
from archwright.model.model import Decoder
from archwright.spec.errors import UserError

SHORT_LIST = 1024
"""Most likely tokens that usually hold the probability `top_p`."""


@dataclass(frozen=True)
class Sampling:
    """Settings of the distribution of a token; see `sample`."""

    temperature: float = 0.8
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0


def sample(
    model: Decoder,
    prompt: Int[Tensor, " length"],
    *,
    max_new_tokens: int,
    source: Int[Tensor, " source_length"] | None = None,
    temperature: float = 0.8,
    top_k: int = 0,
    top_p: float = 1.0,
    min_p: float = 0.0,
    repetition_penalty: float = 1.0,
    stop: int | Collection[int] = (),
    num_tokens: int | None = None,
    seed: int = 0,
) -> Iterator[int]:
    """Return an iterator over tokens drawn from softmax(logits / temperature).

    Args:
        prompt: Token ids, at least one.
        source: Encoder token ids, for a model with an encoder.
        temperature: 0 takes the most likely token.
        top_k: Number of most likely tokens to draw from; 0 for all.
        top_p: Draw from the fewest most likely tokens with this total probability (Holtzman et al., 2019).
        min_p: Draw from tokens with at least `min_p` times the largest probability (Nguyen et al., 2024).
        repetition_penalty: Before all else, positive logits of tokens in the prompt or the text so far are divided
            by it, negative ones multiplied (CTRL: Keskar et al., 2019); 1 changes nothing.
        stop: Token id or ids that end the sequence; not part of the result.
        num_tokens: Vocabulary size without padding rows.

    Raises:
        UserError: an empty prompt, an id without a row in the embedding, a missing or unexpected source, or settings
            out of range.
    """
    settings = Sampling(temperature, top_k, top_p, min_p, repetition_penalty)
    check_settings(model, prompt, max_new_tokens=max_new_tokens, **vars(settings), seed=seed)
    choose = Sampler(settings, seed, prompt, num_tokens)
    reader = Reader(model, None if source is None else [source])
    ends = {stop} if isinstance(stop, int) else stop
    return _drawn(reader, prompt, choose, max_new_tokens, ends)


@torch.inference_mode()
def _drawn(
    reader: Reader,
    prompt: Tensor,
    choose: Callable[[Tensor], int],
    max_new_tokens: int,
    stop: Collection[int],
) -> Iterator[int]:
    reader.model.eval()
    logits = reader.read(prompt)
    for i in range(max_new_tokens):
        token = choose(logits)
        if token in stop:
            return
        yield token
        if i + 1 < max_new_tokens:
            logits = reader.read(prompt.new_tensor([token]))


class Sampler:
    """Draws the tokens of one sequence; see `sample`."""

    def __init__(
        self, settings: Sampling, seed: int, prompt: Tensor, num_tokens: int | None = None
    ) -> None:
        self.settings, self.num_tokens = settings, num_tokens
        self._generator = torch.Generator(prompt.device).manual_seed(seed)
        self._seen = prompt.unique() if settings.repetition_penalty != 1 else None

    def __call__(self, logits: Float[Tensor, " vocab"]) -> int:
        """Draw one token."""
        logits, s = logits[: self.num_tokens].float(), self.settings
        if self._seen is not None:
            seen = logits[self._seen]
            penalty = s.repetition_penalty
            seen = torch.where(seen < 0, seen * penalty, seen / penalty)
            logits = logits.index_copy(0, self._seen, seen)
        token = draw(logits, s.temperature, s.top_k, s.top_p, self._generator, s.min_p)
        if self._seen is not None and token not in self._seen:
            self._seen = torch.cat((self._seen, self._seen.new_tensor([token])))
        return token


@torch.inference_mode()
def sample_rows(
    reader: Reader,
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
            reader.reorder(torch.tensor(live, device=logits.device))
        logits = reader.read_rows(torch.tensor([[tokens[i]] for i in live], device=logits.device))


def draw(
    logits: Float[Tensor, " vocab"],
    temperature: float,
    top_k: int,
    top_p: float,
    generator: torch.Generator,
    min_p: float = 0.0,
) -> int:
    """Draw one token; see `sample`."""
    if temperature == 0:
        return int(logits.argmax())
    weights, order = weights_of(logits, temperature, top_k, top_p, min_p)
    index = torch.multinomial(weights, 1, generator=generator)
    return int(index if order is None else order[index])


def weights_of(
    logits: Float[Tensor, " vocab"], temperature: float, top_k: int, top_p: float, min_p: float
) -> tuple[Float[Tensor, " kept"], Int[Tensor, " kept"] | None]:
    """Return weights proportional to probabilities, and the tokens they belong to; None for all in order.

    Tokens are sorted only if `top_k` or `top_p` needs it, and only as many as it needs.
    """
    order = None
    if top_k:
        logits, order = logits.topk(min(top_k, len(logits)))
    weights = (logits / temperature).softmax(-1)
    if top_p < 1:
        if order is None:
            likely, order = weights.topk(min(SHORT_LIST, len(weights)))
            if len(likely) < len(weights) and likely.sum() < top_p:
                likely, order = weights.sort(descending=True)
            weights = likely
        before = weights.cumsum(-1) - weights  # probability of all likelier tokens
        weights = weights.masked_fill(before >= top_p, 0.0)
    if min_p:
        weights = weights.masked_fill(weights < min_p * weights.max(), 0.0)
    return weights, order


MOST_BEAMS = MOST_SAMPLES = 1024
LIMITS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "max_new_tokens": (lambda x: isinstance(x, int) and x >= 0, "0 or more"),
    "temperature": (
        lambda x: x == 0 or 1e-6 <= x <= 1e6,
        "0 (the likeliest token), or 1e-6 to 1e6",
    ),
    "top_k": (lambda x: isinstance(x, int) and x >= 0, "0 (all) or more"),
    "top_p": (lambda x: 0 < x <= 1, "more than 0, at most 1"),
    "min_p": (lambda x: 0 <= x <= 1, "0 (all) to 1"),
    "repetition_penalty": (lambda x: 1e-3 <= x <= 1e3, "1e-3 to 1e3 (1: none)"),
    "seed": (lambda x: isinstance(x, int) and 0 <= x < 2**63, "0 to 2^63 - 1"),
    "lookup": (lambda x: isinstance(x, int) and 0 <= x <= 64, "0 (none) to 64"),
    "num_samples": (
        lambda x: isinstance(x, int) and 1 <= x <= MOST_SAMPLES,
        f"1 to {MOST_SAMPLES:,}",
    ),
    "num_beams": (lambda x: isinstance(x, int) and 1 <= x <= MOST_BEAMS, f"1 to {MOST_BEAMS:,}"),
    "length_penalty": (lambda x: -10 <= x <= 10, "-10 to 10"),
}
"""Valid range of each setting, as a test (nan fails) and in words."""


def check_settings(model: Decoder, prompt: Tensor, **settings: Any) -> None:
    """Raise a UserError for an empty prompt, ids without a row in the embedding or settings out of range."""
    lines, rows = [], int(model.spec.vocab_size)
    if not len(prompt):
        lines = ["prompt: found no token; expected at least one"]
    elif bad := [i for i in (int(prompt.min()), int(prompt.max())) if not 0 <= i < rows]:
        lines = [f"prompt: found token {bad[0]}; expected 0 to {rows - 1}, the ids of the model"]
    for name, value in settings.items():
        allows, expected = LIMITS[name]
        if type(value) not in (int, float) or not allows(value):
            lines.append(f"{name}: found {value}; expected {expected}")
    if lines:
        raise UserError(*lines)
