"""Sampling from a model, one token at a time."""

from collections.abc import Callable, Collection, Iterator
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from archwright.generation.reader import Reader
from archwright.model.model import Decoder
from archwright.spec.errors import UserError


def sample(
    model: Decoder,
    prompt: Int[Tensor, " length"],
    *,
    max_new_tokens: int,
    source: Int[Tensor, " source_length"] | None = None,
    temperature: float = 0.8,
    top_k: int = 0,
    top_p: float = 1.0,
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
        stop: Token id or ids that end the sequence; not part of the result.
        num_tokens: Vocabulary size without padding rows.

    Raises:
        UserError: an empty prompt, a missing or unexpected source, or settings out of range.
    """
    drawing = {"temperature": temperature, "top_k": top_k, "top_p": top_p}
    check_settings(prompt, max_new_tokens=max_new_tokens, **drawing, seed=seed)
    generator = torch.Generator(prompt.device).manual_seed(seed)

    def choose(logits: Tensor) -> int:
        return draw(logits[:num_tokens].float(), temperature, top_k, top_p, generator)

    reader = Reader(model, None if source is None else [source])
    return _drawn(reader, prompt, choose, max_new_tokens, {stop} if isinstance(stop, int) else stop)


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


def draw(
    logits: Float[Tensor, " vocab"],
    temperature: float,
    top_k: int,
    top_p: float,
    generator: torch.Generator,
) -> int:
    """Draw one token; see `sample`."""
    if temperature == 0:
        return int(logits.argmax())
    values, order = logits.sort(descending=True)
    if top_k:
        values, order = values[:top_k], order[:top_k]
    weights = (values / temperature).softmax(-1)
    before = weights.cumsum(-1) - weights  # probability of all likelier tokens
    weights = weights.masked_fill(before >= top_p, 0.0)
    return int(order[torch.multinomial(weights, 1, generator=generator)])


MOST_BEAMS = 1024
LIMITS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "max_new_tokens": (lambda x: x >= 0, "0 or more"),
    "temperature": (
        lambda x: x == 0 or 1e-6 <= x <= 1e6,
        "0 (the likeliest token), or 1e-6 to 1e6",
    ),
    "top_k": (lambda x: isinstance(x, int) and x >= 0, "0 (all) or more"),
    "top_p": (lambda x: 0 < x <= 1, "more than 0, at most 1"),
    "seed": (lambda x: 0 <= x < 2**63, "0 to 2^63 - 1"),
    "num_beams": (lambda x: isinstance(x, int) and 1 <= x <= MOST_BEAMS, f"1 to {MOST_BEAMS:,}"),
    "length_penalty": (lambda x: -10 <= x <= 10, "-10 to 10"),
}
"""Valid range of each setting, as a test (nan fails) and in words."""


def check_settings(prompt: Tensor, **settings: Any) -> None:
    """Raise a UserError for an empty prompt or settings out of range."""
    lines = [] if len(prompt) else ["prompt: found no token; expected at least one"]
    for name, value in settings.items():
        allows, expected = LIMITS[name]
        if not allows(value):
            lines.append(f"{name}: found {value}; expected {expected}")
    if lines:
        raise UserError(*lines)
