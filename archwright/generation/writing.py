"""Text generation from prompts, conversations or sources."""

import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import groupby
from typing import Any, TypedDict, Unpack, overload

import torch
from torch import Tensor

from archwright.generation.beams import EarlyStopping, beam_search_many
from archwright.generation.defaults import DRAWING, Searching, max_new_tokens, sampling, searching
from archwright.generation.lookup import greedy
from archwright.generation.reader import Reader, can_pad, check_readable
from archwright.generation.sampling import (
    Sampler,
    Sampling,
    check_settings,
    sample,
    sample_rows,
)
from archwright.generation.text_stream import Characters, StopStrings
from archwright.hf.import_export import open_any
from archwright.runs.load import OpenRun, Run
from archwright.spec.errors import UserError, nearest
from archwright.text.tokenizer import Tokenizer

BATCH_SIZE = 64
SEARCHING = ("num_beams", "length_penalty", "early_stopping")

Message = Mapping[str, Any]
"""A message of a conversation, such as {"role": "user", "content": "Hello"}."""
Prompt = str | Sequence[Message]
"""A text to continue, or a conversation to answer: `[{"role": "user", "content": "Hello"}]`."""


class Settings(TypedDict, total=False):
    """Generation settings; an import's generation_config.json replaces missing or None values."""

    max_new_tokens: int | None
    """Maximum number of tokens; default 256."""
    temperature: float | None
    """Sampling temperature; default 0.8, or 0 (greedy) for the answer to a source. See `sample`."""
    top_k: int | None
    """Number of most likely tokens to draw from; default 0 (all). See `sample`."""
    top_p: float | None
    """Total probability of the tokens to draw from; default 1 (all). See `sample`."""
    min_p: float | None
    """Least probability of a token, relative to the most likely one; default 0 (all). See `sample`."""
    repetition_penalty: float | None
    """Penalty on tokens of the prompt and the text so far; default 1 (none). See `sample`."""
    stop: str | Sequence[str] | None
    """Strings that end the text; not part of it."""
    lookup: int | None
    """Tokens per guess of greedy decoding, from earlier text; default 0. See `greedy`."""
    seed: int
    """Random seed of sampling; default 0. Sample i of a prompt has the seed `seed + i`."""
    num_beams: int | None
    """Number of beams; default 1 (no beam search). See `beam_search_many`."""
    length_penalty: float | None
    """Exponent of the length in beam search; default 1. See `beam_search_many`."""
    early_stopping: EarlyStopping | None
    """Stopping rule of beam search; default False. See `beam_search_many`."""


@dataclass(frozen=True)
class Timings:
    """Tokens and seconds of a batch, for all its texts together."""

    prefill_tokens: int
    """Tokens of the prompts."""
    prefill_seconds: float
    """Time until the first new tokens; 0 for beam search, which counts as decoding."""
    decode_tokens: int
    """New tokens after the first of each text."""
    decode_seconds: float


@dataclass(frozen=True)
class Generated:
    """A generated text. `str` and `print` give a prompt with its continuation, or the answer to a conversation."""

    text: str
    """New text, without the prompt and without the stop string."""
    prompt: Prompt
    source: str | None
    finish_reason: str
    """"stop" (end-of-text or a stop string), "length" (max_new_tokens), or "interrupted"."""
    num_prompt_tokens: int
    tokens: list[int] = field(repr=False)
    """New tokens, without the end-of-text token."""
    timings: Timings = field(repr=False, compare=False)

    def __str__(self) -> str:
        return self.prompt + self.text if isinstance(self.prompt, str) else self.text


@dataclass(frozen=True)
class Request:
    """A prompt, or a prompt and a source, with settings."""

    prompt: Prompt = ""
    source: str | None = None
    settings: Settings = field(default_factory=Settings)
    num_samples: int = 1
    place: str = ""
    """File and line, for errors."""


@overload
def generate(
    run: Run, prompt: Prompt = "", *, source: str | None = None, **settings: Unpack[Settings]
) -> Generated: ...


@overload
def generate(
    run: Run,
    prompt: Prompt | list[str] | list[Sequence[Message]] = "",
    *,
    source: str | Sequence[str] | None = None,
    num_samples: int | None = None,
    batch_size: int = BATCH_SIZE,
    **settings: Unpack[Settings],
) -> list[Generated]: ...


def generate(
    run: Run,
    prompt: Any = "",
    *,
    source: Any = None,
    num_samples: int | None = None,
    batch_size: int = BATCH_SIZE,
    **settings: Unpack[Settings],
) -> Generated | list[Generated]:
    """Return the text that the run's model generates; see `stream` for text as it comes.

    Batches do not change texts, up to rounding: each sample has its own random generator.

    Args:
        prompt: A text to continue, a conversation to answer by the checkpoint's chat template, or a list of them.
        source: Text for the encoder of an encoder-decoder, or a list of texts.
        num_samples: Number of texts for each prompt, which is read once.
        batch_size: Maximum number of texts in a batch.

    Returns:
        A text; or a list of them if `prompt` or `source` is a list or `num_samples` is set.

    Raises:
        UserError: settings out of range, or no chat template for a conversation.
    """
    is_one = isinstance(prompt, str) or (bool(prompt) and isinstance(prompt[0], dict))
    prompts = [prompt] if is_one else [*prompt]
    sources = [source] if source is None or isinstance(source, str) else [*source]
    if len(prompts) == 1:
        prompts *= len(sources)
    elif len(sources) == 1:
        sources *= len(prompts)
    if len(prompts) != len(sources):
        numbers = f"{len(sources)} for {len(prompts)} prompts"
        raise UserError(f"source: found {numbers}; expected one for each")
    count = 1 if num_samples is None else num_samples
    requests = [Request(p, s, settings, count) for p, s in zip(prompts, sources, strict=True)]
    results = [*generate_each(open_any(run), requests, batch_size)]
    is_one = is_one and num_samples is None and (source is None or isinstance(source, str))
    return results[0] if is_one else results


def generate_each(
    run: OpenRun, requests: Iterable[Request], batch_size: int = BATCH_SIZE
) -> Iterator[Generated]:
    """Return an iterator over the texts of each request, in order; consecutive requests share batches.

    Raises:
        UserError: settings out of range.
    """
    tasks = []
    for request in requests:
        try:
            tasks.append(_task(run, request))
        except UserError as error:
            lines = (f"{request.place}: {line}" if request.place else line for line in error.lines)
            raise UserError(*lines) from None
    return _results(run, tasks, batch_size)


class TextStream(Iterator[str]):
    """Iterator over a text in complete characters. `result` is the text so far, as `generate` returns it."""

    def __init__(self, run: OpenRun, task: "_Task") -> None:
        self._text, self._clock = _Text(run.tokenizer, task), _Clock()
        self._parts = self._written(run, task)

    def __next__(self) -> str:
        return next(self._parts)

    @property
    def result(self) -> Generated:
        """The text so far."""
        return self._text.generated(self._clock.timings([self._text]))

    def _written(self, run: OpenRun, task: "_Task") -> Iterator[str]:
        shown, self._clock = 0, _Clock()
        if task.search.num_beams > 1:
            self._clock.tick()
        for token in _tokens(run, task):
            self._clock.tick()
            goes_on = self._text.take(token)
            yield self._text.text[shown:]
            shown = len(self._text.text)
            if not goes_on:
                break
        self._text.end()
        yield self._text.text[shown:]


def stream(
    run: Run, prompt: Prompt = "", *, source: str | None = None, **settings: Unpack[Settings]
) -> TextStream:
    """Return an iterator over the continuation of `prompt`, in complete characters.

    Generation starts from the begin-of-text token, as in training, and stops before any of `tokenizer.stop_ids`. A
    conversation starts as its chat template prescribes.

    Args:
        source: Text for the encoder; special tokens, such as sentinels, are spelled by name.

    Raises:
        UserError: settings out of range, or no chat template for a conversation.
    """
    run = open_any(run)
    return TextStream(run, _task(run, Request(prompt, source, settings)))


def source_tokens(tokenizer: Tokenizer, text: str) -> list[int]:
    """Return the encoder token ids of a source, framed by special tokens as in training."""
    prefix, suffix = tokenizer.frame
    return [*prefix, *tokenizer.encode(text, allowed_special="all").tolist(), *suffix]


@dataclass(frozen=True)
class _Task:
    """A request with all settings resolved, as token ids."""

    request: Request
    start: Tensor
    """Ids that the decoder reads first."""
    source: Tensor | None
    sampling: Sampling
    search: Searching
    max_new_tokens: int
    stops: tuple[str, ...]
    num_samples: int
    seed: int
    lookup: int


class _Text:
    """The text of a task as its tokens come."""

    def __init__(self, tokenizer: Tokenizer, task: _Task) -> None:
        self.task, self.tokens, self.text = task, list[int](), ""
        self._ends, self._reason = tokenizer.stop_ids, "interrupted"
        # The answer to a source may contain sentinels.
        self._characters = Characters(
            tokenizer, task.start.tolist(), keep_special=task.source is not None
        )
        self._stops = StopStrings(task.stops)

    def take(self, token: int) -> bool:
        """Append a token; return False at the end of the text."""
        if token in self._ends:
            return self.end()
        self.tokens.append(token)
        self.text += self._stops.add(self._characters.add(token))
        return not (self._stops.found or len(self.tokens) >= self.task.max_new_tokens) or self.end()

    def end(self) -> bool:
        """Append the text held back; return False."""
        if self._reason == "interrupted":
            if not self._stops.found:
                self.text += self._stops.add(self._characters.rest()) + self._stops.rest()
            full = len(self.tokens) >= self.task.max_new_tokens and not self._stops.found
            self._reason = "length" if full else "stop"
        return False

    def generated(self, timings: Timings) -> Generated:
        """Return the text so far."""
        task = self.task
        request, number = task.request, len(task.start)
        return Generated(
            *(self.text, request.prompt, request.source, self._reason, number),
            *([*self.tokens], timings),
        )


class _Clock:
    """Time of the start, of the first token and of the last one."""

    def __init__(self) -> None:
        self._start = self._first = self._last = time.perf_counter()
        self._ticks = False

    def tick(self) -> None:
        """Note the time of a token."""
        self._last = time.perf_counter()
        if not self._ticks:
            self._ticks, self._first = True, self._last

    def timings(self, texts: Sequence[_Text]) -> Timings:
        """Return tokens and seconds of texts that were written together."""
        tasks = {id(text.task): text.task for text in texts}
        return Timings(
            sum(len(task.start) for task in tasks.values()),
            self._first - self._start,
            sum(max(0, len(text.tokens) - 1) for text in texts),
            self._last - self._first,
        )


def _results(run: OpenRun, tasks: Sequence[_Task], batch_size: int) -> Iterator[Generated]:
    pads = can_pad(run.model)

    def kind(task: _Task) -> object:
        """Return a key; equal keys share batches."""
        if task.source is not None:
            return (
                task.search,
                task.max_new_tokens if task.search.num_beams != 1 else 0,
                *task.start.tolist(),
            )
        if task.search.num_beams != 1 or task.lookup or not pads:
            return id(task)
        return "prompts"

    for _, same in groupby(tasks, kind):
        alike = [*same]
        size = max(1, batch_size // max(task.num_samples for task in alike))
        for i in range(0, len(alike), size):
            yield from _written(run, alike[i : i + size])


def _written(run: OpenRun, tasks: Sequence[_Task]) -> list[Generated]:
    """Return the texts of a batch."""
    if len(tasks) == tasks[0].num_samples == 1:
        alone = TextStream(run, tasks[0])
        for _ in alone:
            pass
        return [alone.result]
    clock = _Clock()
    texts = [_Text(run.tokenizer, task) for task in tasks for _ in range(task.num_samples)]
    if tasks[0].search.num_beams != 1:
        clock.tick()
        for text, tokens in zip(texts, _searched(run, tasks), strict=True):
            clock.tick()
            for token in tokens:
                if not text.take(token):
                    break
    else:
        _sample_batch(run, tasks, texts, clock)
    for text in texts:
        text.end()
    timings = clock.timings(texts)
    return [text.generated(timings) for text in texts]


def _tokens(run: OpenRun, task: _Task) -> Iterator[int]:
    """Return the tokens of a single task, without an end-of-text token."""
    if task.search.num_beams != 1:
        return iter(_searched(run, [task])[0])
    common: dict[str, Any] = {
        "max_new_tokens": task.max_new_tokens,
        "stop": run.tokenizer.stop_ids,
        "num_tokens": run.tokenizer.vocab_size,
    }
    if task.lookup:
        return greedy(run.model, task.start, lookup=task.lookup, **common)
    drawing = asdict(task.sampling)
    return sample(run.model, task.start, source=task.source, **drawing, seed=task.seed, **common)


def _searched(run: OpenRun, tasks: Sequence[_Task]) -> list[list[int]]:
    """Return the tokens of beam search for tasks with the same start and settings."""
    sources = [task.source for task in tasks if task.source is not None]
    return beam_search_many(
        run.model,
        tasks[0].start,
        sources or None,
        max_new_tokens=tasks[0].max_new_tokens,
        **asdict(tasks[0].search),
        stop=run.tokenizer.stop_ids,
        num_tokens=run.tokenizer.vocab_size,
    )


@torch.inference_mode()
def _sample_batch(
    run: OpenRun, tasks: Sequence[_Task], texts: Sequence[_Text], clock: _Clock
) -> None:
    """Sample texts side by side. Prompts and sources are read once for all their samples."""
    model, starts = run.model.eval(), [task.start for task in tasks]
    sources = [task.source for task in tasks if task.source is not None]
    reader = Reader(model, sources or None)
    logits = reader.read_prompts(starts)
    live = [n for n, text in enumerate(texts) if text.task.max_new_tokens]
    if not live:
        return
    # (prompt, sample) of each text
    origins = [(row, i) for row, task in enumerate(tasks) for i in range(task.num_samples)]
    origins = [origins[n] for n in live]
    repeated = torch.tensor([row for row, _ in origins], device=logits.device)
    reader.reorder(repeated)
    samplers = [
        Sampler(tasks[row].sampling, tasks[row].seed + i, starts[row], run.tokenizer.vocab_size)
        for row, i in origins
    ]

    def taker(text: _Text) -> Callable[[int], bool]:
        def take(token: int) -> bool:
            clock.tick()
            return text.take(token)

        return take

    sample_rows(reader, logits[repeated], samplers, [taker(texts[n]) for n in live])


def _task(run: OpenRun, request: Request) -> _Task:
    """Resolve the settings of a request, and encode its prompt.

    Raises:
        UserError: an unknown setting, settings out of range, or settings of both sampling and beam search.
    """
    settings, tokenizer, model = request.settings, run.tokenizer, run.model
    for name in sorted(settings.keys() - Settings.__annotations__.keys()):
        hint = nearest(name, Settings.__annotations__)
        raise UserError(f"{name}: not a setting of text generation.{hint}")
    has_source, device = request.source is not None, next(model.parameters()).device
    if isinstance(request.prompt, str):
        first = tokenizer.decoder_start if has_source else (tokenizer.begin_of_text,)
        ids = [*first, *tokenizer.encode(request.prompt).tolist()]
    else:
        from archwright.text.chat import render_chat  # loads jinja2

        chat = render_chat(tokenizer, request.prompt)
        ids = tokenizer.encode(chat, allowed_special="all").tolist()
    source = None
    if request.source is not None:
        source = torch.tensor(source_tokens(tokenizer, request.source), device=device)
    drawn, search = _resolved(tokenizer, request)
    stop = settings.get("stop")
    several = () if stop is None else stop
    stops = tuple(several) if isinstance(several, list | tuple) else (several,)
    if bad := [text for text in stops if not (isinstance(text, str) and text)]:
        raise UserError(f"stop: found {bad[0]!r}; expected a text of one character or more")
    start, seed = torch.tensor(ids, dtype=torch.long, device=device), settings.get("seed", 0)
    most = max_new_tokens(tokenizer, settings.get("max_new_tokens"))
    check_readable(model, has_source=has_source)
    lookup = settings.get("lookup") or 0
    count = {"num_samples": request.num_samples, "max_new_tokens": most, "lookup": lookup}
    check_settings(model, start, **count, **asdict(drawn), seed=seed)
    if len(ids) > (context := model.spec.context_length) and not model.can_generate_indefinitely:
        warnings.warn(
            f"prompt: found {len(ids):,} tokens; the model's context is {context:,}, so it reads the last {context:,} "
            f"and continues from the last {max(1, context // 2):,}",
            stacklevel=3,
        )
    return _Task(
        request, start, source, drawn, search, most, stops, request.num_samples, seed, lookup
    )


def _resolved(tokenizer: Tokenizer, request: Request) -> tuple[Sampling, Searching]:
    """Return the settings of sampling and of beam search.

    Raises:
        UserError: settings of both.
    """
    settings, has_source = request.settings, request.source is not None
    drawing, beams = (
        {name: value for name in names if (value := settings.get(name)) is not None}
        for names in ((*DRAWING, "repetition_penalty"), SEARCHING)
    )
    if drawing:  # overrides generation_config.json
        beams = {"num_beams": 1} | beams
    search = searching(tokenizer, **beams)
    drawn = sampling(tokenizer, has_source=has_source, **drawing)
    several: dict[str, object] = (
        {"num_samples": request.num_samples} if request.num_samples > 1 else {}
    )
    beam_count = f"num_beams = {search.num_beams}"
    if search.num_beams != 1:
        ignored, why = drawing | several, f"{beam_count}, which draws nothing; expected one of them"
    elif drawn.temperature == 0 and several:
        ignored, why = (
            several,
            "temperature = 0, which draws nothing; expected a temperature above 0",
        )
    else:
        ignored = {name: value for name, value in beams.items() if name != "num_beams"}
        why = f"{beam_count}, which ignores it; expected num_beams of 2 or more"
    lookup, penalty = settings.get("lookup"), drawn.repetition_penalty
    if lookup and (has_source or search.num_beams > 1 or drawn.temperature or penalty != 1):
        raise UserError(
            f"lookup: found {lookup}, which guesses greedy text only; expected temperature = 0, and no source, beams "
            "or repetition_penalty"
        )
    if ignored:
        raise UserError(*(f"{name}: found {value} with {why}" for name, value in ignored.items()))
    return drawn, search
