"""The command `archwright`: run a verb, and print user errors without tracebacks."""

import contextlib
import importlib
import io
import os
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, cast

from archwright.format import PrintableStream, WatchedStream, one_line
from archwright.progress import reported_late
from archwright.scale.launch import is_first, launched
from archwright.spec.errors import UserError, nearest

VERBS = {
    "train": "train a model or a recipe on text, or resume a run",
    "compare": "find out which architecture is better, with confidence intervals",
    "generate": "generate text with a trained model",
    "eval": "evaluate a trained model on text: nats per token, perplexity, bits per byte",
    "import": "convert a checkpoint in Hugging Face's layout to a run",
    "export": "write a run's model as a folder that transformers loads",
    "verify": "compare the logits of a checkpoint with transformers",
    "plan": "estimate the costs of a model before training: FLOPs, memory, days, price, speed",
    "profile": "measure the time of a training step, part by part",
    "report": "write a run's page of curves and numbers",
    "list": "list published models, recipes, runs, or all choices of every axis",
    "explain": "explain a choice: formula, source, users, and numbers that show what it does",
    "show": "show the choices of a model and their sources",
    "diff": "show the differences between two models",
    "prepare": "tokenize the text of a run, with many processes if needed",
    "cache": "list or clean the cache",
    "schema": "print the JSON schema of model or run files",
    "new": "write a starting file for a norm, a mixer, an optimizer, a model",
    "check": "check a TOML file of a model or a run, or a Python file of your own choices",
    "completion": "print the completion script of bash, zsh or fish",
}

HELP = """\
usage: archwright VERB ...

The workbench for transformer language-model architectures.

{verbs}

start here:
  archwright train demo                      three minutes on your CPU, with a page of results
  archwright train modern data.text=FILE model.dim=256 budget=60s
  archwright list                            models, recipes and studies

`archwright VERB --help` prints details. Values are set as dotted keys: model.dim=256 optimizer.lr=0.01
"""

OTHER_VERBS = {
    "resume": "archwright train --resume RUN",
    "run": "archwright train MODEL",
    "fine-tune": "archwright train RUN data.text=FILE",
    "finetune": "archwright train RUN data.text=FILE",
    "ablate": "archwright compare MODEL :KEY=VALUE",
    "sample": "archwright generate RUN",
    "evaluate": "archwright eval RUN",
    "test": "archwright eval RUN",
    "convert": "archwright export RUN FOLDER",
    "cost": "archwright plan MODEL",
    "estimate": "archwright plan MODEL",
    "info": "archwright show MODEL",
    "describe": "archwright show MODEL",
    "plot": "archwright report RUN",
    "models": "archwright list models",
    "runs": "archwright list runs",
    "studies": "archwright list studies",
    "choices": "archwright list choices",
    "init": "archwright new KIND FILE",
}
"""Suggested commands, by verbs of other programs."""

QUICK = {"report", "list", "show", "diff", "cache", "schema", "new", "completion"}
"""Verbs that are fast because they do not import torch."""
PATIENCE = 1.5
"""Seconds without output before a slow verb reports that it is working."""

LEAST_MEMORY = 1 << 30
"""Minimum address space for loading torch, in bytes."""

MOST_LINES = 20
"""Maximum number of mistakes printed per command."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; return 0, 1 (failed run), 2 (user error) or 128 + signal."""
    if "_ARGCOMPLETE" in os.environ:  # a shell requests completions
        from archwright.cli.completion import complete

        complete(VERBS)
    code = _main(arguments)
    with contextlib.suppress(UserError):  # already printed
        if arguments is None and launched():
            # Communication libraries may abort a process at a normal exit, although all work is done.
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
    return code


def _main(arguments: Sequence[str] | None) -> int:
    words = list(sys.argv[1:] if arguments is None else arguments)
    _open_closed_streams()
    try:
        with warnings.catch_warnings(), _printable_output() as streams:
            warnings.showwarning = _each_once()
            # Overrides PYTHONWARNINGS=error, so that a warning never ends in a traceback.
            warnings.simplefilter("default", UserWarning)
            # Only in a process of our own: the activity of another program is unknown.
            is_slow = (
                arguments is None
                and words[:1]
                and words[0] in VERBS.keys() - QUICK
                and "--quiet" not in words
                and is_first()
            )
            with _sign_of_life(words[0], streams) if is_slow else contextlib.nullcontext():
                code = _run(words)
            sys.stdout.flush()
        return code
    except UserError as error:
        return _mistake(*error.lines)
    except KeyboardInterrupt:
        print("archwright: stopped", file=sys.stderr)
        return 130
    except BrokenPipeError:  # as in `archwright list | head`; no reader is left
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except OSError as error:
        return _mistake(one_line(f"{error.filename or 'the system'}: {error.strerror or error}"))


def _run(words: list[str]) -> int:
    if words[:1] in ([], ["-h"], ["--help"], ["help"]):
        if words[1:2] and words[1] in VERBS:  # archwright help train
            return _run([words[1], "--help"])
        print(
            HELP.format(verbs="\n".join(f"  {verb:<10} {text}" for verb, text in VERBS.items())),
            end="",
        )
        return 0
    if words[0] in ("-V", "--version", "version"):
        from archwright import __version__

        print(f"archwright {__version__}")
        return 0
    verb, *rest = words
    if verb != "train" and launched():
        if not is_first() and "TORCHELASTIC_RUN_ID" in os.environ:
            return 2
        raise UserError(
            f'"{verb}": torchrun starts several processes, but only train supports them; leave torchrun out, or unset '
            "WORLD_SIZE if it is left over"
        )
    if verb not in VERBS:
        command = OTHER_VERBS.get(verb)
        hint = f" Did you mean {command}?" if command else nearest(verb, VERBS)
        raise UserError(f'"{verb}": no such verb; there are {", ".join(VERBS)}.{hint}')
    if verb not in QUICK and sys.platform != "win32":
        import resource

        limit = resource.getrlimit(resource.RLIMIT_AS)[0]
        if 0 <= limit < LEAST_MEMORY:  # loading libraries would abort
            least = f"{LEAST_MEMORY >> 10:,}, to load torch"
            raise UserError(f"ulimit -v: found {limit >> 10:,} kB; expected at least {least}")
    # Never import from the current folder, not even in compiler subprocesses.
    os.environ["PYTHONSAFEPATH"] = "1"
    module = importlib.import_module(f"archwright.cli.{verb}_verb")
    code: int = module.run(rest)
    return code


def _open_closed_streams() -> None:
    """Open closed standard streams on devnull, to reserve their file descriptors."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open("w", encoding="utf-8"))  # noqa: SIM115


@contextlib.contextmanager
def _printable_output() -> Iterator[tuple[PrintableStream, PrintableStream]]:
    """Escape control characters in all output."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # consoles may lack characters of a model's text
    out, err = PrintableStream(sys.stdout), PrintableStream(sys.stderr, may_fail=True)
    with contextlib.redirect_stdout(cast(Any, out)), contextlib.redirect_stderr(cast(Any, err)):
        yield out, err


def _sign_of_life(
    verb: str, streams: tuple[PrintableStream, PrintableStream]
) -> contextlib.AbstractContextManager[None]:
    """Report on standard error that a silent verb is working."""

    def report() -> None:
        if not any(stream.is_used for stream in streams):
            doing = "preparing" if verb == "prepare" else f"preparing to {verb}"
            print(f"archwright: {doing}", file=streams[1].stream, flush=True)

    return reported_late(PATIENCE, report)


def _mistake(*lines: str) -> int:
    stream = WatchedStream(sys.stderr, may_fail=True)
    for line in lines[:MOST_LINES]:
        stream.write(f"archwright: {line}\n")
    if lines[MOST_LINES:]:
        stream.write(f"archwright: and {len(lines) - MOST_LINES} more mistakes\n")
    return 2


def _each_once() -> Callable[..., None]:
    """Return a replacement of `warnings.showwarning` that prints each message once."""
    printed: set[str] = set()

    def show(message: Warning | str, *_: object, **__: object) -> None:
        if (line := one_line(str(message))) not in printed:
            printed.add(line)
            print(f"archwright: warning: {line}", file=sys.stderr)

    return show
