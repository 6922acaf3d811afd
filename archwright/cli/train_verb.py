"""The command `archwright train`: train a model, or resume a run."""

import argparse
import os
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from archwright.cli.parser import Parser, check_parts
from archwright.cpu import prepare_process
from archwright.scale.launch import EndedError, LostError, check_launch, is_first, launched
from archwright.spec.errors import UserError

if TYPE_CHECKING:
    from archwright.runs import RunFolder
    from archwright.scale.layout import Layout
    from archwright.spec.run_spec import RunSpec

ABOUT = """\
Train a model or a recipe, and write a run folder with weights, curves and a page of results.

WHAT is a recipe (demo), a model (modern), a TOML file of either, a run folder (to start from its weights), or
a folder with only a config.json (to train from scratch). KEY=VALUE changes any value:

  model.dim=256 model.num_layers=4          the architecture (archwright show modern lists its keys)
  data.text=FILE                            a file, folder, glob, .jsonl, .parquet, datasets:NAME, - or stdlib
  data.pairs=FILE                           .tsv or .jsonl of sources and targets, or synthetic
  data.tokenizer.kind=bytes                 bpe (trained on the text), bytes, or file
  budget=60s                                or 3m, 400steps, 10Mtokens, 1e15flops
  optimizer.kind=muon optimizer.lr=0.01     batch_size=8 seed=1 schedule.warmup=100
  probes.every=20                           heat maps of gradients, updates, attention, activations
  loggers=csv,tensorboard,wandb             loggers in addition to metrics.jsonl
  early_stop.patience=3                     stop when the held-out loss no longer falls

The same command resumes a stopped run. Ctrl-C saves and exits."""

EXAMPLES = """\
  archwright train demo
  archwright train modern data.text=notes.txt model.dim=256 model.num_layers=4 budget=60s
  archwright train textbook data.text='corpus/*.jsonl' data.field=body --out runs/old-style
  archwright train mixtral-8x7b --tiny       any published model, small enough for a laptop
  archwright train --resume runs/modern
  archwright train demo seed=1 --dry-run"""


def run(words: Sequence[str]) -> int:
    """Train, resume or dry-run a model."""
    since = time.perf_counter() - _age(words)  # start of a time budget
    parser = Parser("train", ABOUT, EXAMPLES)
    parser.add_argument("what", nargs="?", metavar="WHAT", help="recipe, model, or TOML file")
    parser.add_argument("assignments", nargs="*", metavar="KEY=VALUE", help="values to change")
    parser.add_argument("--out", metavar="DIR", help="the run folder (default: runs/NAME)")
    parser.add_argument("--resume", metavar="DIR", help="resume the run in a folder")
    parser.add_argument("--tiny", action="store_true", help="scale the model down, choices and all")
    parser.add_argument(
        "--dry-run", action="store_true", help="print the run and a few measured steps"
    )
    parser.add_argument("--quiet", action="store_true", help="print errors only")
    parser.add_argument(
        "--verbose", action="store_true", help="explain the automatic settings of the machine"
    )
    check_launch()
    if not is_first():
        return _follow(parser, words)
    options, parts = parser.parse_with_parts(words)
    if options.resume:
        if options.what or options.out or options.dry_run or options.tiny:
            arguments = [options.what or "", *options.assignments]
            grid = any(word.startswith("scale.") for word in arguments)
            raise UserError(
                "--resume takes the run as it was started: leave out other words, --out, --tiny and --dry-run"
                + ", or give the whole command again with another scale" * grid
            )
        from archwright.runs import RunFolder

        folder = RunFolder.open(options.resume)
        check_parts(folder, parts, same=True)
        return _run(folder, options, since)
    spec = _requested(options, parts)
    if options.dry_run:
        prepare_process(shares=launched() is not None)
        from archwright.cli.dry_run import dry_run
        from archwright.scale.checks import check_layout
        from archwright.scale.layout import planned_layout

        check_layout(spec, layout := planned_layout(spec.scale, launched()))
        dry_run(spec, layout)
        return 0
    return _train(spec, options, parts, since)


def _age(words: Sequence[str]) -> float:
    """Return the age of this command's process in seconds; 0 if unknown."""
    if sys.argv[1:] != ["train", *words] or not hasattr(time, "CLOCK_BOOTTIME"):
        return 0.0
    # The 22nd field, counted after the process's name, which may have blanks: ticks since the machine was started.
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    started = int(fields[19]) / os.sysconf("SC_CLK_TCK")
    return max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - started)


def _requested(options: argparse.Namespace, parts: Mapping[str, str]) -> "RunSpec":
    """Return the requested run; print warnings of suspicious values."""
    from archwright.cli.models import requested_run
    from archwright.spec.read import given_model
    from archwright.spec.rules import suspicions

    spec, before = requested_run("train", options, parts)
    if not options.quiet:
        own_file = options.what.endswith(".toml") and not options.tiny
        original = given_model(options.what) if own_file else before.model
        for line in suspicions(spec.model, original):
            print(f"archwright: warning: model.{line}", file=sys.stderr)
    return spec


def _train(
    spec: "RunSpec", options: argparse.Namespace, parts: Mapping[str, str], since: float
) -> int:
    from archwright.runs import RUNS, RunFolder
    from archwright.scale.checks import check_layout
    from archwright.scale.layout import layout_of

    check_layout(spec, layout := layout_of(spec.scale, launched()))
    path = Path(options.out or RUNS / (spec.name or "run"))
    if RunFolder(path).started:
        check_parts(RunFolder(path), parts, same=True)
    folder = RunFolder.create(path, spec)
    if folder.resolved and not options.quiet:
        _warn_of_ignored(spec, folder.spec)
    return _run(folder, options, since, layout)


def _warn_of_ignored(requested: "RunSpec", resolved: "RunSpec") -> None:
    """Print warnings of settings ignored by a started run."""
    from archwright.spec.overrides import toml_value

    ignored = []
    for name in ("machine", "probes"):
        table, decided = getattr(requested, name), getattr(resolved, name).model_dump()
        for key, value in table.model_dump().items():
            if value not in (type(table).model_fields[key].default, decided[key]):
                ignored.append((f"{name}.{key}: {toml_value(value)}", toml_value(decided[key])))
    if requested.loggers and {*requested.loggers} != {*resolved.loggers}:
        names = ", ".join(requested.loggers)
        ignored.append((f"loggers: {names}", ", ".join(resolved.loggers) or "none"))
    for setting, actual in ignored:
        warning = f"{setting} is ignored: this run already started with {actual}"
        print(f"archwright: warning: {warning}", file=sys.stderr)


def _follow(parser: Parser, words: Sequence[str]) -> int:
    """Run as a rank other than 0; rank 0 reports mistakes."""
    try:
        options, _ = parser.parse_with_parts(words)
    except UserError:
        return 2
    if options.dry_run:
        return 0
    prepare_process(shares=True)
    from archwright.training.train import follow

    try:
        follow()
    except (EndedError, LostError) as error:
        return _ended(error)
    return 0


def _ended(error: EndedError | LostError) -> int:
    if error.is_first:
        print(f"archwright: {error}", file=sys.stderr)
    return 1


def _run(
    folder: "RunFolder", options: argparse.Namespace, since: float, layout: "Layout | None" = None
) -> int:
    prepare_process(shares=launched() is not None)
    from archwright.runs.load import open_run
    from archwright.training.loop import DivergedError
    from archwright.training.train import Stopped, complete

    was_finished = folder.finished
    try:
        complete(folder, quiet=options.quiet, verbose=options.verbose, since=since, layout=layout)
        if was_finished:
            open_run(folder.path)  # reports missing or damaged weights
    except Stopped as stop:
        print(f"archwright: {stop}", file=sys.stderr)
        return 128 + stop.signal
    except DivergedError as error:
        print(f"archwright: {error}", file=sys.stderr)
        return 1
    except (EndedError, LostError) as error:
        return _ended(error)
    if not options.quiet:
        from archwright.reporting.terminal import print_result

        if was_finished:
            print(f"{folder.path} is finished already; its results:", file=sys.stderr)
        print_result(folder)
    return 0
