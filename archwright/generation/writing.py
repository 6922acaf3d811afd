"""From a prompt to text."""

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Any

import torch

from archwright.generation.beams import beam_search
from archwright.generation.defaults import sampling
from archwright.generation.sampling import sample
from archwright.model.language_model import LanguageModel
from archwright.runs.load import OpenRun
from archwright.spec.errors import UserError
from archwright.text.tokenizer import Tokenizer


def generate(
    run: OpenRun,
    prompt: str = "",
    *,
    source: str | None = None,
    max_tokens: int = 256,
    temperature: float | None = None,
    top_k: int | None = None,
    top_p: float | None = None,
    seed: int = 0,
    num_beams: int = 1,
    length_penalty: float | None = None,
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
            source=source,
            max_tokens=max_tokens,
            temperature=temperature,
            top_k=top_k,
            top_p=top_p,
            seed=seed,
            num_beams=num_beams,
            length_penalty=length_penalty,
        )
    )


def stream(
    model: LanguageModel,
    tokenizer: Tokenizer,
    prompt: str = "",
    *,
    source: str | None = None,
    max_tokens: int = 256,
    temperature: float | None = None,
    top_k: int | None = None,
    top_p: float | None = None,
    seed: int = 0,
    num_beams: int = 1,
    length_penalty: float | None = None,
) -> Iterator[str]:
    """Return an iterator over what follows `prompt`, in parts as soon as their characters are whole.

    The model reads the token that begins a text first, as in training, and stops before the next one, and
    before any that ends a text.

    Args:
        source: the text that the encoder reads, of a model that has one; special tokens, such as sentinels, are written
            by their names.
        temperature, top_k, top_p: as for `sample`; None: as the generation_config.json of an imported checkpoint
            says, otherwise 0.8, 0 and 1.
        num_beams, length_penalty: more than one beam searches for the likeliest text, all of which then comes at once;
            see `beam_search`. None: 1.

    Raises:
        UserError: settings out of their limits, one line each.
    """
    device = next(model.parameters()).device
    start = [tokenizer.begin_of_text, *tokenizer.encode(prompt).tolist()]
    read = None
    if source is not None:
        read = torch.tensor(source_tokens(tokenizer, source), device=device)
    common: dict[str, Any] = {
        "source": read,
        "max_tokens": max_tokens,
        "stop": tokenizer.stop_ids,
        "num_tokens": tokenizer.vocab_size,
    }
    prefix = torch.tensor(start, device=device)
    if num_beams == 1 and length_penalty is None:
        drawn = asdict(sampling(tokenizer, temperature, top_k, top_p))
        tokens = sample(model, prefix, **common, **drawn, seed=seed)
    else:
        drawing = {"temperature": temperature, "top_k": top_k, "top_p": top_p}
        _check_beams(drawing, num_beams, length_penalty)
        penalty = 1.0 if length_penalty is None else length_penalty
        found = beam_search(model, prefix, **common, num_beams=num_beams, length_penalty=penalty)
        tokens = iter(found)
    # The answer to a source may name its sentinels.
    return _characters(tokenizer, start[1:], tokens, keep_special=source is not None)


def _check_beams(
    drawing: Mapping[str, float | None], num_beams: int, length_penalty: float | None
) -> None:
    """Refuse to search for the likeliest text and to draw one at once."""
    lines = [
        f"{name}: found {value} beside num_beams = {num_beams}, which draws nothing; expected one of them"
        for name, value in drawing.items()
        if value is not None
    ]
    if num_beams == 1:
        lines.append(
            f"length_penalty: found {length_penalty} beside num_beams = 1, which compares no lengths; expected "
            "num_beams of 2 or more"
        )
    if lines:
        raise UserError(*lines)


def source_tokens(tokenizer: Tokenizer, text: str) -> list[int]:
    """Return the tokens of a source, as an encoder reads it in training: special tokens, such as sentinels, by their
    names, and the one that ends a text behind the last."""
    tokens = tokenizer.encode(text, allowed_special="all").tolist()
    return [*tokens, tokenizer.begin_of_text]


def _characters(
    tokenizer: Tokenizer, written: list[int], tokens: Iterator[int], *, keep_special: bool
) -> Iterator[str]:
    """Yield the text of tokens that come after `written`; a character may be spread over tokens."""
    shown = len(tokenizer.decode(written, keep_special=keep_special))
    for token in tokens:
        written.append(token)
        text = tokenizer.decode(written, keep_special=keep_special)
        if not text.endswith("\N{REPLACEMENT CHARACTER}"):
            yield text[shown:]
            shown = len(text)
    yield tokenizer.decode(written, keep_special=keep_special)[shown:]
