"""From a prompt to text."""

from collections.abc import Iterator
from dataclasses import asdict

import torch

from archwright.generation.defaults import sampling
from archwright.generation.sampling import sample
from archwright.model.language_model import LanguageModel
from archwright.runs.load import OpenRun
from archwright.text.tokenizer import Tokenizer


def generate(
    run: OpenRun,
    prompt: str = "",
    *,
    max_tokens: int = 256,
    temperature: float | None = None,
    top_k: int | None = None,
    top_p: float | None = None,
    seed: int = 0,
) -> str:
    """Return a text that begins with `prompt` and goes on as the run's model would; see `stream`.

    Raises:
        UserError: settings out of their limits, one line each.
    """
    return prompt + "".join(
        stream(
            run.model,
            run.tokenizer,
            prompt,
            max_tokens=max_tokens,
            temperature=temperature,
            top_k=top_k,
            top_p=top_p,
            seed=seed,
        )
    )


def stream(
    model: LanguageModel,
    tokenizer: Tokenizer,
    prompt: str = "",
    *,
    max_tokens: int = 256,
    temperature: float | None = None,
    top_k: int | None = None,
    top_p: float | None = None,
    seed: int = 0,
) -> Iterator[str]:
    """Return an iterator over what follows `prompt`, in parts as soon as their characters are whole.

    The model reads the token that begins a text first, as in training, and stops before the next one, and
    before any that ends a text.

    Args:
        temperature, top_k, top_p: as for `sample`; None: as the generation_config.json of an imported checkpoint
            says, otherwise 0.8, 0 and 1.

    Raises:
        UserError: settings out of their limits, one line each.
    """
    device = next(model.parameters()).device
    start = [tokenizer.begin_of_text, *tokenizer.encode(prompt).tolist()]
    tokens = sample(
        model,
        torch.tensor(start, device=device),
        max_tokens=max_tokens,
        **asdict(sampling(tokenizer, temperature, top_k, top_p)),
        stop=tokenizer.stop_ids,
        num_tokens=tokenizer.vocab_size,
        seed=seed,
    )
    return _characters(tokenizer, start[1:], tokens)


def _characters(tokenizer: Tokenizer, written: list[int], tokens: Iterator[int]) -> Iterator[str]:
    """Yield the text of tokens that come after `written`; a character may be spread over tokens."""
    shown = len(tokenizer.decode(written))
    for token in tokens:
        written.append(token)
        text = tokenizer.decode(written)
        if not text.endswith("\N{REPLACEMENT CHARACTER}"):
            yield text[shown:]
            shown = len(text)
    yield tokenizer.decode(written)[shown:]
