"""From a prompt, or a source, to text."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from typing import Any, TypedDict, Unpack

import torch

from archwright.generation.beams import EarlyStopping, beam_search, beam_search_many
from archwright.generation.defaults import DRAWING, Searching, sampling, searching
from archwright.generation.sampling import sample
from archwright.model.language_model import LanguageModel
from archwright.runs.load import Run, open_run
from archwright.spec.errors import UserError, nearest
from archwright.text.tokenizer import Tokenizer

SIDE_BY_SIDE = 64
"""Sources that are answered at a time."""
SEARCHING = ("num_beams", "length_penalty", "early_stopping")


class Settings(TypedDict, total=False):
    """Settings of a text; for None or a missing one, generation_config.json of an import counts."""

    max_tokens: int
    """By default 256."""
    temperature: float | None
    """Where nobody says, 0.8; for the answer to a source 0, the likeliest token. See `sample`."""
    top_k: int | None
    """Where nobody says 0, all. See `sample`."""
    top_p: float | None
    """Where nobody says 1. See `sample`."""
    seed: int
    """Of what is drawn, by default 0."""
    num_beams: int | None
    """More than one search for the likeliest text, all of which then comes at once. See `beam_search_many`."""
    length_penalty: float | None
    """Where nobody says 1. See `beam_search_many`."""
    early_stopping: EarlyStopping | None
    """Where nobody says False. See `beam_search_many`."""


def generate(
    run: Run, prompt: str = "", *, source: str | None = None, **settings: Unpack[Settings]
) -> str:
    """Return a text that begins with `prompt` and goes on as the run's model would; see `stream`.

    Raises:
        UserError: settings out of their limits, one line each.
    """
    run = open_run(run)
    return prompt + "".join(stream(run.model, run.tokenizer, prompt, source=source, **settings))


def generate_many(
    run: Run, sources: Sequence[str], prompt: str = "", **settings: Unpack[Settings]
) -> list[str]:
    """Return the answer to each of many sources, each as `generate` has it but for rounding: they are read side by
    side, unless they are drawn.

    Raises:
        UserError: settings out of their limits, one line each.
    """
    run = open_run(run)
    model, tokenizer = run.model, run.tokenizer
    search, temperature = _settled(tokenizer, True, settings)
    if search.num_beams == 1 and temperature != 0:
        return [generate(run, prompt, source=source, **settings) for source in sources]
    device = next(model.parameters()).device
    read = [torch.tensor(source_tokens(tokenizer, source), device=device) for source in sources]
    start = _start(tokenizer, prompt, has_source=True)
    answers = [""] * len(sources)
    # Sources of about one length stand together, so that little is padding.
    order = sorted(range(len(sources)), key=lambda i: len(read[i]))
    for first in range(0, len(order), SIDE_BY_SIDE):
        here = order[first : first + SIDE_BY_SIDE]
        found = beam_search_many(
            model,
            torch.tensor(start, device=device),
            [read[i] for i in here],
            **_common(tokenizer, settings),
            **asdict(search),
        )
        for i, tokens in zip(here, found, strict=True):
            given = tokenizer.encode(prompt).tolist()
            texts = _characters(tokenizer, given, iter(tokens), keep_special=True)
            answers[i] = prompt + "".join(texts)
    return answers


def stream(
    model: LanguageModel,
    tokenizer: Tokenizer,
    prompt: str = "",
    *,
    source: str | None = None,
    **settings: Unpack[Settings],
) -> Iterator[str]:
    """Return an iterator over what follows `prompt`, in parts as soon as their characters are whole.

    The model reads the token that begins a text first, as in training, and stops before the next one, and
    before any that ends a text.

    Args:
        source: the text that the encoder reads, of a model that has one; special tokens, such as sentinels, are written
            by their names.

    Raises:
        UserError: settings out of their limits, one line each.
    """
    device = next(model.parameters()).device
    search, _ = _settled(tokenizer, source is not None, settings)
    read = None
    if source is not None:
        read = torch.tensor(source_tokens(tokenizer, source), device=device)
    common = _common(tokenizer, settings) | {"source": read}
    prefix = torch.tensor(_start(tokenizer, prompt, source is not None), device=device)
    if search.num_beams == 1:
        drawn = sampling(tokenizer, has_source=source is not None, **_asked(settings, DRAWING))
        tokens = sample(model, prefix, **common, **asdict(drawn), seed=settings.get("seed", 0))
    else:
        tokens = iter(beam_search(model, prefix, **common, **asdict(search)))
    # The answer to a source may name its sentinels.
    given = tokenizer.encode(prompt).tolist()
    return _characters(tokenizer, given, tokens, keep_special=source is not None)


def source_tokens(tokenizer: Tokenizer, text: str) -> list[int]:
    """Return the tokens of a source as in training: special tokens by name, and its frame."""
    before, behind = tokenizer.frame
    return [*before, *tokenizer.encode(text, allowed_special="all").tolist(), *behind]


def _start(tokenizer: Tokenizer, prompt: str, has_source: bool) -> list[int]:
    first = tokenizer.decoder_start if has_source else (tokenizer.begin_of_text,)
    return [*first, *tokenizer.encode(prompt).tolist()]


def _common(tokenizer: Tokenizer, settings: Settings) -> dict[str, Any]:
    """Return what drawing and searching are both told."""
    return {
        "max_tokens": settings.get("max_tokens", 256),
        "stop": tokenizer.stop_ids,
        "num_tokens": tokenizer.vocab_size,
    }


def _asked(settings: Settings, names: Iterable[str]) -> dict[str, Any]:
    return {name: settings.get(name) for name in names}


def _settled(tokenizer: Tokenizer, has_source: bool, settings: Settings) -> tuple[Searching, float]:
    """Return how the likeliest text is sought, with one beam where it is not, and the temperature then.

    Refuse what draws a text beside what searches for the likeliest one.
    """
    for name in sorted(settings.keys() - Settings.__annotations__.keys()):
        raise UserError(f"{name}: no setting of a text.{nearest(name, Settings.__annotations__)}")
    drawing, asked = _asked(settings, DRAWING), _asked(settings, SEARCHING)
    draws = any(value is not None for value in drawing.values())
    if draws and asked["num_beams"] is None:  # in place of what a checkpoint says
        asked["num_beams"] = 1
    search = searching(tokenizer, **asked)
    lines = []
    if search.num_beams != 1:
        lines = [
            f"{name}: found {value} beside num_beams = {search.num_beams}, which draws nothing; expected one of them"
            for name, value in drawing.items()
            if value is not None
        ]
    else:
        compares = {
            "length_penalty": "compares no lengths",
            "early_stopping": "has none to wait for",
        }
        lines = [
            f"{name}: found {settings.get(name)} beside num_beams = 1, which {why}; expected num_beams of 2 or more"
            for name, why in compares.items()
            if settings.get(name) is not None
        ]
    if lines:
        raise UserError(*lines)
    return search, sampling(tokenizer, has_source=has_source, **drawing).temperature


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
