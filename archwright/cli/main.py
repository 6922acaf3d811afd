"""The command `archwright`: finds the verb, runs it, and shows a user's mistakes as lines, not tracebacks."""

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
from archwright.scale.launch import is_first, launched
from archwright.spec.errors import UserError, nearest

VERBS = {
    "train": "train a model or a recipe on text, or go on with a run",
    "compare": "find out which architecture is better, and how sure that is",
    "generate": "generate text with a trained model",
    "eval": "measure a trained model on text: nats per token, perplexity, bits per byte",
    "import": "take a checkpoint in Hugging Face's layout in as a run",
    "export": "write a run's model as a folder that transformers loads",
    "verify": "compare a checkpoint's logits here with those of transformers",
    "plan": "say what a model costs before it is trained: FLOPs, memory, days, price, speed",
    "profile": "measure where the time of a training step goes, part by part",
    "report": "write a run's page of curves and numbers",
    "list": "list published models, recipes, runs, or all choices of every axis",
    "explain": "explain a choice: formula, source, users, and numbers that show what it does",
    "show": "show what a model chose, and where each value comes from",
    "diff": "show what differs between two models",
    "prepare": "make the tokens that training reads, by many processes if need be",
    "cache": "show what is kept to be used again, or empty it",
    "schema": "print the JSON schema of model or run files",
    "new": "write a file of your own to start from: a norm, a mixer, an optimizer, a model",
    "check": "check a TOML file of a model or a run, or a Python file of choices of your own",
    "completion": "print what lets bash, zsh or fish complete verbs, options, models and keys",
}

HELP = """\
usage: archwright VERB ...

The workbench for transformer language-model architectures.

{verbs}

start here:
  archwright train demo                      three minutes on your CPU, with a page of results
  archwright train modern data.text=FILE model.dim=256 budget=60s
  archwright list                            what there is to choose from

`archwright VERB --help` says more. Values are set as dotted keys: model.dim=256 optimizer.lr=0.01
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
"""Commands, by the verbs that others have for them."""

QUICK = {"report", "list", "show", "diff", "cache", "schema", "new", "completion"}
"""Verbs that never import torch."""
PATIENCE = 1.5
"""Seconds after which another verb says that it is at work, if it has printed nothing."""

LEAST_MEMORY = 1 << 30
"""Bytes of address space that loading torch takes."""

MOST_LINES = 20
"""Most mistakes that are shown of one command."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; return 0, 2 for a mistake of the user, 1 for a failed run, 128 + n for signal n."""
    if "_ARGCOMPLETE" in os.environ:  # a shell asks what the line can become
        from archwright.cli.completion import complete

        complete()
    code = _main(arguments)
    with contextlib.suppress(UserError):  # which was printed
        if arguments is None and launched():
            # What connects processes may abort one that ends in the usual way, though all is done.
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
            # Whatever PYTHONWARNINGS says: what is worth a line is no traceback.
            warnings.simplefilter("default", UserWarning)
            # Only a process of our own: what else goes on in another one is not known here.
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
    except BrokenPipeError:  # as in `archwright list | head`; nothing is left to write to
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
            f'"{verb}": torchrun starts several processes, which train alone can use; leave torchrun out, or unset '
            "WORLD_SIZE if it is left over"
        )
    if verb not in VERBS:
        known = OTHER_VERBS.get(verb)
        hint = f" Did you mean {known}?" if known else nearest(verb, VERBS)
        raise UserError(f'"{verb}": no such verb; there are {", ".join(VERBS)}.{hint}')
    if verb not in QUICK and sys.platform != "win32":
        import resource

        limit = resource.getrlimit(resource.RLIMIT_AS)[0]
        if 0 <= limit < LEAST_MEMORY:  # libraries abort while they are loaded
            least = f"{LEAST_MEMORY >> 10:,}, to load torch"
            raise UserError(f"ulimit -v: found {limit >> 10:,} kB; expected at least {least}")
    # For compilers' processes, too: nothing of the current folder is imported.
    os.environ["PYTHONSAFEPATH"] = "1"
    module = importlib.import_module(f"archwright.cli.{verb}_verb")
    code: int = module.run(rest)
    return code


def _open_closed_streams() -> None:
    """Let what was closed, as by `>&-`, lead nowhere: else the next file that is opened takes its number."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open("w", encoding="utf-8"))  # noqa: SIM115


@contextlib.contextmanager
def _printable_output() -> Iterator[tuple[PrintableStream, PrintableStream]]:
    """Let nothing that verbs print steer the terminal, whatever files and models are called or say."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a model may write what a console cannot show
    out, err = PrintableStream(sys.stdout), PrintableStream(sys.stderr, may_fail=True)
    with (
        contextlib.redirect_stdout(cast(Any, out)),
        contextlib.redirect_stderr(cast(Any, err)),
    ):
        yield out, err


@contextlib.contextmanager
def _sign_of_life(verb: str, streams: tuple[PrintableStream, PrintableStream]) -> Iterator[None]:
    """Say on standard error that a verb is at work, if after a while nothing was printed."""
    import threading

    def say() -> None:
        if not any(stream.is_used for stream in streams):
            doing = "preparing" if verb == "prepare" else f"preparing to {verb}"
            print(f"archwright: {doing}", file=streams[1].stream, flush=True)

    timer = threading.Timer(PATIENCE, say)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _mistake(*lines: str) -> int:
    stream = WatchedStream(sys.stderr, may_fail=True)
    for line in lines[:MOST_LINES]:
        stream.write(f"archwright: {line}\n")
    if lines[MOST_LINES:]:
        stream.write(f"archwright: and {len(lines) - MOST_LINES} more mistakes\n")
    return 2


def _each_once() -> Callable[..., None]:
    """Return what prints warnings: a line for each, though the same was met in many places."""
    printed: set[str] = set()

    def show(message: Warning | str, *_: object, **__: object) -> None:
        if (line := one_line(str(message))) not in printed:
            printed.add(line)
            print(f"archwright: warning: {line}", file=sys.stderr)

    return show
