"""Prompts, output and conversations of `archwright generate`."""

import contextlib
import json
import sys
from argparse import Namespace
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from archwright.generation.writing import (
    Generated,
    Prompt,
    Request,
    Settings,
    TextStream,
    Timings,
    generate_each,
    stream,
)
from archwright.runs.load import OpenRun
from archwright.spec.errors import UserError, nearest
from archwright.spec.files import expanded, read_text
from archwright.text.json_table import parse_table

MOST_BYTES = 1 << 28
"""Maximum size of a file of prompts or sources."""
NAMES = ("prompt", "messages", "source", "num_samples", *Settings.__annotations__)
"""Keys of a line of JSON."""


def requests(options: Namespace, settings: Settings) -> list[Request]:
    """Return the prompts of the options and their files.

    Raises:
        UserError: a file that is missing, empty, or not UTF-8; a line that is not a valid JSON object.
    """
    count = 1 if options.num_samples is None else options.num_samples

    def request(text: str, source: str | None = None) -> Request:
        return Request(_prompt(options, text), source, settings, count)

    name = options.prompt_file
    if name is not None:
        lines = _lines(name, "--prompt-file")
        if not (name.endswith(".jsonl") or (name == "-" and options.json)):
            return [request(line) for line in lines]
        file = "standard input" if name == "-" else name
        places = [(f"{file}, line {i}", line) for i, line in enumerate(lines, 1) if line.strip()]
        return [_from_json(options, place, line, request("")) for place, line in places]
    prompt: str = _standard_input("--prompt") if options.prompt == "-" else options.prompt or ""
    if options.source_file is None:
        return [request(prompt, options.source)]
    lines = _lines(options.source_file, "--source-file")
    return [replace(request(prompt, line), place="--source-file") for line in lines]


def print_all(run: OpenRun, asked: Sequence[Request], options: Namespace) -> None:
    """Print the texts of all requests; a single text as it comes."""
    timings: dict[int, Timings] = {}
    total = sum(request.num_samples for request in asked)
    if total == 1 and not options.json and options.source_file is None:
        request = asked[0]
        parts = stream(run, request.prompt, source=request.source, **request.settings)
        timings[0] = _print_parts(parts).timings
    else:
        results = generate_each(run, asked, options.batch_size)
        for i, result in enumerate(results, 1):
            timings[id(result.timings)] = result.timings
            if options.json:
                line = _as_object(result) | (
                    {"run": str(run.folder.path)} if options.runs[1:] else {}
                )
                print(json.dumps(line), flush=True)
            elif options.source_file is not None:
                print(" ".join(str(result).splitlines()), flush=True)
            else:
                print(f"--- {i} of {total} ---", result, sep="\n", flush=True)
    if not options.quiet:
        _print_speed(timings.values())


def converse(run: OpenRun, options: Namespace, settings: Settings) -> int:
    """Answer prompts from the terminal until its end."""
    with contextlib.suppress(ImportError):
        import readline  # noqa: F401 (edits lines and recalls earlier ones)

    is_terminal = sys.stdin.isatty()
    if is_terminal and not options.quiet:
        print("Ctrl-C ends an answer, Ctrl-D the program.", file=sys.stderr)
    messages, text = _system(options), options.prompt
    for turn in range(sys.maxsize):
        try:
            text = input("> " if is_terminal else "") if text is None else text
        except KeyboardInterrupt:
            print()
            continue
        except EOFError:
            print(end="\n" if is_terminal else "")
            return 0
        except UnicodeDecodeError as error:
            raise UserError(f"standard input: not UTF-8 at byte {error.start}") from None
        messages.append({"role": "user", "content": text})
        # The same text entered again gets another answer.
        drawn = settings | Settings(seed=options.seed + turn)
        parts = stream(run, messages if options.chat else text, **drawn)
        with contextlib.suppress(KeyboardInterrupt):
            _print_parts(parts)
        messages.append({"role": "assistant", "content": parts.result.text})
        text = None
    return 0


def _print_parts(parts: TextStream) -> Generated:
    """Print a text as it comes, and a newline even if it is interrupted."""
    prompt = parts.result.prompt
    try:
        print(prompt if isinstance(prompt, str) else "", end="", flush=True)
        for part in parts:
            print(part, end="", flush=True)
    finally:
        print(flush=True)
    return parts.result


def _print_speed(timings: Iterable[Timings]) -> None:
    """Print the speed of prefill and of decoding."""
    lines = []
    for name, what in (("prefill", "prompt tokens"), ("decode", "new tokens")):
        tokens, seconds = (
            sum(getattr(batch, f"{name}_{unit}") for batch in timings)
            for unit in ("tokens", "seconds")
        )
        if tokens and seconds:
            rate = (
                f"{tokens / seconds:,.0f}" if tokens > 10 * seconds else f"{tokens / seconds:.2g}"
            )
            lines.append(f"{what}: {tokens:,} in {seconds:.2f} s, {rate} tokens/s")
    if lines:
        print("; ".join(lines), file=sys.stderr)


def _as_object(result: Generated) -> dict[str, Any]:
    """Return a text as an object of JSON."""
    prompt = result.prompt
    return {
        **({"prompt": prompt} if isinstance(prompt, str) else {"messages": [*prompt]}),
        **({} if result.source is None else {"source": result.source}),
        "text": result.text,
        "finish_reason": result.finish_reason,
        "num_prompt_tokens": result.num_prompt_tokens,
        "num_new_tokens": len(result.tokens),
        "tokens": result.tokens,
    }


def _system(options: Namespace) -> list[dict[str, str]]:
    return [] if options.system is None else [{"role": "system", "content": options.system}]


def _prompt(options: Namespace, text: str) -> Prompt:
    """Return a text, or with --chat a conversation that begins with it."""
    return [*_system(options), {"role": "user", "content": text}] if options.chat else text


def _from_json(options: Namespace, place: str, line: str, default: Request) -> Request:
    """Return the prompt of a line of JSON. Its settings replace those of the options."""
    record = parse_table(line, Path(place))
    for name in record.keys() - {*NAMES}:
        raise UserError(f"{place}: {name}: unknown key.{nearest(name, NAMES)}")
    text, messages = record.pop("prompt", ""), record.pop("messages", None)
    source, count = (
        record.pop("source", default.source),
        record.pop("num_samples", default.num_samples),
    )
    for name, value, kind, expected in (
        ("prompt", text, str, "a text"),
        ("source", source or "", str, "a text"),
        ("messages", messages or [], list, "a list"),
        ("num_samples", count, int, "a whole number"),
    ):
        if not isinstance(value, kind):
            raise UserError(f"{place}: {name}: found {value!r}; expected {expected}")
    prompt = _prompt(options, text) if messages is None else messages
    return Request(prompt, source, default.settings | cast(Settings, record), count, place)


def _standard_input(option: str) -> str:
    try:
        return sys.stdin.buffer.read().decode("utf-8")
    except UnicodeDecodeError as error:
        raise UserError(f"{option}: standard input: not UTF-8 at byte {error.start}") from None


def _lines(name: str, option: str) -> list[str]:
    """Return the lines of a file, or of standard input."""
    if name == "-":
        text = _standard_input(option)
    else:
        try:
            text = read_text(expanded(name), MOST_BYTES, "a text")
        except OSError as error:
            raise UserError(f'{option}: cannot read "{name}": {error.strerror}') from None
        except UserError as error:
            raise UserError(f"{option}: {error}") from None
    lines = text.removeprefix("\ufeff").split("\n")
    lines = [line.rstrip("\r") for line in (lines if lines[-1] else lines[:-1])]
    if not lines:
        what = option.removeprefix("--").removesuffix("-file")
        raise UserError(f'{option}: "{name}" is empty; expected a {what} in each line')
    return lines
