"""Options of `archwright compare` for training runs of other programs."""

import argparse
import math
import shlex
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from archwright.cli.parser import Parser

ABOUT = """\
Compare variants of any trainer: tuned learning rates, paired seeds, interim looks and a page, on any
hardware. Each run is a command:

  archwright compare --command 'torchrun --standalone train.py --config {variant} --lr {lr} --seed {seed}
      --steps {steps} --out {out}' --variants a.yaml b.yaml --steps 2000 --lr 1e-3
      --metric 'jsonl:metrics.jsonl:val_loss'

{variant}, {seed} and {out} are required. Without {lr}, learning rates are not tuned. Without {steps}, there
are no shorter horizons. {steps} must also set the end of the learning-rate schedule. The options are also
keys of a TOML file: archwright compare study.toml. Losses of finished runs: archwright compare losses.csv,
with the columns variant, seed and loss, and optionally lr, step and tokens."""

FIELDS = (
    *("command", "variants", "metric", "steps", "lr", "maximize", "unit", "timeout"),
    *("diverged_exit", "cost_per_step", "code", "shell", "check_steps"),
)
"""Options that are fields of a study."""


def add_options(parser: Parser) -> None:
    """Add the group of options."""
    group = parser.add_argument_group("your own trainer", ABOUT.replace("%", "%%"))
    add = group.add_argument
    add(
        "--command",
        metavar="TEXT",
        help="command of a run; split into words, then filled, without a shell; {{ is {",
    )
    add("--variants", nargs="+", metavar="VALUE", help="values of {variant}, the baseline first")
    add(
        "--metric",
        metavar="PLACE",
        help="the loss: stdout:REGEX, jsonl:FILE:KEY or csv:FILE:COLUMN; FILE is inside "
        "{out}, the last match counts; groups or fields called step and tokens give curves",
    )
    add("--steps", type=int, metavar="N", help="steps of a run")
    add("--lr", type=float, metavar="X", help="learning rate at which tuning starts")
    add(
        "--maximize",
        action="store_true",
        default=None,
        help="higher values of the metric are better",
    )
    add("--unit", metavar="TEXT", help="unit of the metric, such as 'nats per token'")
    add(
        "--timeout",
        metavar="TIME",
        help="time after which a run has failed, such as 90m; failed runs are tried twice",
    )
    add(
        "--diverged-exit",
        type=int,
        metavar="N",
        help="exit status of a diverged run; nan and inf mean the same",
    )
    add(
        "--cost-per-step",
        action="append",
        metavar="VARIANT=X",
        help="compute of a step, for each variant",
    )
    add(
        "--code",
        nargs="+",
        metavar="FILE",
        help="files of the trainer; a change of them, of files in the command or "
        "of the git commit refuses to continue",
    )
    add("--mix-code", action="store_true", help="count runs of changed code")
    add("--shell", action="store_true", default=None, help="run the command by /bin/sh")
    add(
        "--check-steps",
        type=int,
        metavar="N",
        help="steps of the run before the study that looks for the metric "
        "(default: a twentieth of the steps; 0: none)",
    )
    add("--twin", action="store_true", help="run one seed twice and report the difference")
    add("--max-runs", type=int, metavar="N", help="most runs; --budget TIME bounds the time")
    add(
        "--jobs",
        type=int,
        default=0,
        metavar="N",
        help="concurrent runs (default: 1, or one per group of GPUs)",
    )
    add(
        "--gpus-per-job",
        type=int,
        default=0,
        metavar="N",
        help="GPUs of a run, by CUDA_VISIBLE_DEVICES",
    )


def is_asked(options: argparse.Namespace) -> bool:
    """True if the words ask for a study of another trainer.

    Raises:
        UserError: Options of such a study without a command.
    """
    what: list[str] = options.what
    if options.command is None and not any(word.endswith((".toml", ".csv")) for word in what):
        if extra := [name for name in FIELDS if getattr(options, name) is not None]:
            from archwright.spec.errors import UserError

            raise UserError(f"--{extra[0].replace('_', '-')}: expected --command beside it")
        return False
    from archwright.lab.external.spec import is_external

    only = what[0] if len(what) == 1 else ""
    return options.command is not None or only.endswith(".csv") or is_external(only)


def run(options: argparse.Namespace, settings: Mapping[str, Any], words: Sequence[str]) -> int:
    """Run a study of another trainer, or print its commands."""
    from archwright.lab.compare import Interrupted
    from archwright.lab.external import study
    from archwright.lab.report.terminal import as_json, print_results
    from archwright.lab.running.where import Where
    from archwright.spec.errors import UserError

    ours = ("out", "runs", "parts", "on", "workers", "slurm", "add_seeds")
    values = {name: value for name, value in settings.items() if name not in ours}
    values |= {name: getattr(options, name) for name in FIELDS}
    what = options.what
    if what and (options.command is not None or len(what) > 1):
        raise UserError(f"{what[-1]}: not used with --command; give variants with --variants")
    if options.add_seeds or options.parts:
        raise UserError("--add-seeds, --parts: not for another trainer; give --seeds at the start")
    file = what[0] if what else ""
    if options.dry_run:
        for line in study.dry_run(file, twin=options.twin, out=options.out, **values):
            print(line)
        return 0
    if file.endswith(".csv"):
        results = study.compare_losses(file, options.out, **values)
    else:
        where = Where(options.on or "", options.workers, ",".join(options.slurm))
        try:
            results = study.compare_command(
                file,
                out=options.out,
                jobs=options.jobs,
                gpus_per_job=options.gpus_per_job,
                max_runs=options.max_runs or math.inf,
                where=where,
                twin=options.twin,
                mix_code=options.mix_code,
                quiet=options.quiet,
                again=shlex.join(["archwright", "compare", *words]),
                **values,
            )
        except Interrupted as stop:
            print(f"archwright: {stop}", file=sys.stderr)
            return 128 + stop.signal
    if options.json:
        print(as_json(results))
    else:
        print_results(results, quiet=options.quiet)
    return 0
