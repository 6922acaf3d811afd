"""Text generation from a prompt or a source."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from typing import Any, TypedDict, Unpack

import torch

from archwright.generation.beams import EarlyStopping, beam_search, beam_search_many
from archwright.generation.defaults import DRAWING, Searching, sampling, searching
from archwright.generation.sampling import sample
from archwright.model.model import Decoder
from archwright.runs.load import Run, open_run
from archwright.spec.errors import UserError, nearest
from archwright.text.tokenizer import Tokenizer

SIDE_BY_SIDE = 64
"""Sources per batch."""
SEARCHING = ("num_beams", "length_penalty", "early_stopping")


class Settings(TypedDict, total=False):
    """Generation settings; an import's generation_config.json replaces missing or None values."""

    max_new_tokens: int
    """Maximum number of tokens; default 256."""
    temperature: float | None
    """Sampling temperature; default 0.8, or 0 (greedy) for the answer to a source. See `sample`."""
    top_k: int | None
    """Number of most likely tokens to draw from; default 0 (all). See `sample`."""
    top_p: float | None
    """Total probability of the tokens to draw from; default 1 (all). See `sample`."""
    seed: int
    """Random seed of sampling; default 0."""
    num_beams: int | None
    """Number of beams; default 1 (no beam search). See `beam_search_many`."""
    length_penalty: float | None
    """Exponent of the length in beam search; default 1. See `beam_search_many`."""
    early_stopping: EarlyStopping | None
    """Stopping rule of beam search; default False. See `beam_search_many`."""


def generate(
    run: Run, prompt: str = "", *, source: str | None = None, **settings: Unpack[Settings]
) -> str:
    """Return `prompt` and its continuation by the run's model; see `stream`.

    Raises:
        UserError: settings out of range.
    """
    run = open_run(run)
    return prompt + "".join(stream(run.model, run.tokenizer, prompt, source=source, **settings))


def generate_many(
    run: Run, sources: Sequence[str], prompt: str = "", **settings: Unpack[Settings]
) -> list[str]:
    """Return the answers of `generate` to many sources, up to rounding.

    Greedy decoding and beam search process sources in batches; sampling processes them one by one.

    Raises:
        UserError: settings out of range.
    """
    run = open_run(run)
    model, tokenizer = run.model, run.tokenizer
    search, temperature = _resolved(tokenizer, True, settings)
    if search.num_beams == 1 and temperature != 0:
        return [generate(run, prompt, source=source, **settings) for source in sources]
    device = next(model.parameters()).device
    encoded = [torch.tensor(source_tokens(tokenizer, source), device=device) for source in sources]
    start = _start(tokenizer, prompt, has_source=True)
    answers = [""] * len(sources)
    # Sorting sources by length saves padding.
    order = sorted(range(len(sources)), key=lambda i: len(encoded[i]))
    for first in range(0, len(order), SIDE_BY_SIDE):
        batch = order[first : first + SIDE_BY_SIDE]
        sequences = beam_search_many(
            model,
            torch.tensor(start, device=device),
            [encoded[i] for i in batch],
            **_common(tokenizer, settings),
            **asdict(search),
        )
        for i, tokens in zip(batch, sequences, strict=True):
            prompt_ids = tokenizer.encode(prompt).tolist()
            texts = _characters(tokenizer, prompt_ids, iter(tokens), keep_special=True)
            answers[i] = prompt + "".join(texts)
    return answers


def stream(
    model: Decoder,
    tokenizer: Tokenizer,
    prompt: str = "",
    *,
    source: str | None = None,
    **settings: Unpack[Settings],
) -> Iterator[str]:
    """Return an iterator over the continuation of `prompt`, in complete characters.

    Generation starts from the begin-of-text token, as in training, and stops before any of `tokenizer.stop_ids`.

    Args:
        source: Text for the encoder; special tokens, such as sentinels, are spelled by name.

    Raises:
        UserError: settings out of range.
    """
    device = next(model.parameters()).device
    search, _ = _resolved(tokenizer, source is not None, settings)
    source_ids = None
    if source is not None:
        source_ids = torch.tensor(source_tokens(tokenizer, source), device=device)
    common = _common(tokenizer, settings) | {"source": source_ids}
    prefix = torch.tensor(_start(tokenizer, prompt, source is not None), device=device)
    if search.num_beams == 1:
        drawn = sampling(tokenizer, has_source=source is not None, **_subset(settings, DRAWING))
        tokens = sample(model, prefix, **common, **asdict(drawn), seed=settings.get("seed", 0))
    else:
        tokens = iter(beam_search(model, prefix, **common, **asdict(search)))
    # The answer to a source may contain sentinels.
    prompt_ids = tokenizer.encode(prompt).tolist()
    return _characters(tokenizer, prompt_ids, tokens, keep_special=source is not None)


def source_tokens(tokenizer: Tokenizer, text: str) -> list[int]:
    """Return the encoder token ids of a source, framed by special tokens as in training."""
    prefix, suffix = tokenizer.frame
    return [*prefix, *tokenizer.encode(text, allowed_special="all").tolist(), *suffix]


def _start(tokenizer: Tokenizer, prompt: str, has_source: bool) -> list[int]:
    first = tokenizer.decoder_start if has_source else (tokenizer.begin_of_text,)
    return [*first, *tokenizer.encode(prompt).tolist()]


def _common(tokenizer: Tokenizer, settings: Settings) -> dict[str, Any]:
    """Return the settings shared by sampling and beam search."""
    return {
        "max_new_tokens": settings.get("max_new_tokens", 256),
        "stop": tokenizer.stop_ids,
        "num_tokens": tokenizer.vocab_size,
    }


def _subset(settings: Settings, names: Iterable[str]) -> dict[str, Any]:
    return {name: settings.get(name) for name in names}


def _resolved(
    tokenizer: Tokenizer, has_source: bool, settings: Settings
) -> tuple[Searching, float]:
    """Return the settings of beam search and the temperature of sampling.

    Raises:
        UserError: an unknown setting, or settings of both sampling and beam search.
    """
    for name in sorted(settings.keys() - Settings.__annotations__.keys()):
        hint = nearest(name, Settings.__annotations__)
        raise UserError(f"{name}: not a setting of text generation.{hint}")
    drawing, beams = _subset(settings, DRAWING), _subset(settings, SEARCHING)
    draws = any(value is not None for value in drawing.values())
    if draws and beams["num_beams"] is None:  # overrides generation_config.json
        beams["num_beams"] = 1
    search = searching(tokenizer, **beams)
    lines = []
    if search.num_beams != 1:
        lines = [
            f"{name}: found {value} with num_beams = {search.num_beams}, which draws nothing; expected one of them"
            for name, value in drawing.items()
            if value is not None
        ]
    else:
        lines = [
            f"{name}: found {value} with num_beams = 1, which ignores it; expected num_beams of 2 or more"
            for name, value in beams.items()
            if value is not None and name != "num_beams"
        ]
    if lines:
        raise UserError(*lines)
    return search, sampling(tokenizer, has_source=has_source, **drawing).temperature


def _characters(
    tokenizer: Tokenizer, written: list[int], tokens: Iterator[int], *, keep_special: bool
) -> Iterator[str]:
    """Yield the text of tokens after `written`; a character may span several tokens."""
    shown = len(tokenizer.decode(written, keep_special=keep_special))
    for token in tokens:
        written.append(token)
        text = tokenizer.decode(written, keep_special=keep_special)
        if not text.endswith("\N{REPLACEMENT CHARACTER}"):
            yield text[shown:]
            shown = len(text)
    yield tokenizer.decode(written, keep_special=keep_special)[shown:]
