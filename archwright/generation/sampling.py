"""Plain sampling: one token at a time from the model's distribution, made sharper or cut."""

from collections.abc import Iterator

import torch
from jaxtyping import Float, Int
from torch import Tensor

from archwright.model.decoder import Decoder


@torch.inference_mode()
def sample(
    model: Decoder,
    prompt: Int[Tensor, " length"],
    *,
    max_tokens: int,
    temperature: float = 0.8,
    top_k: int = 0,
    top_p: float = 1.0,
    stop: int | None = None,
    num_tokens: int | None = None,
    seed: int = 0,
) -> Iterator[int]:
    """Yield tokens drawn from softmax(logits / temperature), restricted to the top k and the top p.

    Args:
        prompt: token ids to go on from, at least one.
        temperature: 0 takes the likeliest token.
        top_k: keep the k likeliest tokens; 0 keeps all.
        top_p: keep the likeliest tokens that hold this much probability (Holtzman et al., 2019).
        stop: end before this token.
        num_tokens: tokens that exist; a vocabulary rounded up has rows without a token.

    Raises:
        ValueError: an empty prompt, or a setting out of its limits.
    """
    _check(prompt, temperature, top_k, top_p)
    generator = torch.Generator(prompt.device).manual_seed(seed)
    context = model.spec.context_length
    model.eval()
    tokens = prompt[None]
    for _ in range(max_tokens):
        logits = model(tokens[:, -context:]).logits[0, -1, :num_tokens].float()
        token = draw(logits, temperature, top_k, top_p, generator)
        if token == stop:
            return
        yield token
        tokens = torch.cat((tokens, tokens.new_tensor([[token]])), dim=1)


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


def _check(prompt: Tensor, temperature: float, top_k: int, top_p: float) -> None:
    if len(prompt) == 0:
        raise ValueError("prompt: found no token; expected at least one to go on from")
    if temperature < 0:
        raise ValueError(f"temperature: found {temperature}; expected 0 or more")
    if top_k < 0:
        raise ValueError(f"top_k: found {top_k}; expected 0 (all) or more")
    if not 0 < top_p <= 1:
        raise ValueError(f"top_p: found {top_p}; expected more than 0, at most 1")
