"""The command `archwright compare`: train variants of a model and compare them."""

import argparse
import sys
import textwrap
import time
from collections.abc import Sequence
from typing import Any

from archwright.cli import own_trainer
from archwright.cli.listings import listing
from archwright.cli.parser import Parser, add_parts_option

ABOUT = """\
Find out which architecture is better for a text and a budget, with confidence intervals.

WHAT is a baseline and one or more variants, or a study. A variant is a model's name with changes after
colons; without a name, it changes the baseline. KEY=VALUE applies to all:

  archwright compare modern modern:norm.kind=layer :feedforward.kind=gelu data.text=FILE

Models are scaled to the budget, unless model.dim or model.num_layers is set, and get equal numbers of
parameters by the width of their hidden layers. A variant has the baseline's heads and widths unless it sets
them. Two seeds tune the learning rate of every variant. Fresh seeds are compared at that rate, in pairs;
variants with a clear early result stop.
Finished runs are never repeated: the same command continues an interrupted study; with a larger --budget, it
uses a folder inside the study's. A run needs at least 500 steps for a verdict.

studies:
{studies}"""

EXAMPLES = """\
  archwright compare modern :position.kind=none --budget 10m
  archwright compare modern :norm.kind=layer :feedforward.kind=gelu data.text=mine.txt --seeds 15
  archwright compare norm-placement --budget 30m --dry-run
  archwright compare norm-placement --budget 30m --add-seeds 6
  archwright compare norm-placement --on ray
  archwright compare norm-placement --on slurm --workers 32 --slurm partition=cpu,time=60
  archwright compare modern :attention.num_kv_heads=1 --no-tune-lr --budget 400steps --size 0.5M"""


def run(words: Sequence[str]) -> int:
    """Compare variants, or print the plan of a comparison."""
    studies = ", ".join(study[0] for study in listing("studies"))
    about = ABOUT.format(studies=textwrap.indent(textwrap.fill(studies), "  "))
    parser = Parser("compare", about, EXAMPLES)
    parser.add_argument("what", nargs="*", metavar="WHAT", help="models, a study, KEY=VALUE")
    names = _add_options(parser)
    parser.add_argument("--out", metavar="DIR", help="the study's folder (default: studies/NAME)")
    parser.add_argument(
        "--runs", metavar="DIR", help="the folder of single runs (default: studies/runs)"
    )
    parser.add_argument(
        "--add-seeds",
        type=int,
        metavar="N",
        help="add N pairs to an inconclusive study; each addition spends half of the remaining false-positive rate",
    )
    _add_places(parser)
    add_parts_option(parser)
    own_trainer.add_options(parser)
    parser.add_argument("--dry-run", action="store_true", help="print the runs and their time")
    parser.add_argument("--quiet", action="store_true", help="print only the verdict")
    parser.add_argument(
        "--json",
        action="store_true",
        help="print the results, or the plan, as JSON; progress goes to stderr",
    )
    options = parser.parse(words)
    settings = {name: v for name in names if (v := getattr(options, name)) is not None}
    if own_trainer.is_asked(options):
        return own_trainer.run(options, settings, words)
    settings |= {"out": options.out, "parts": options.parts}
    settings |= {"runs": options.runs} if options.runs else {}
    settings |= {"on": options.on or "", "workers": options.workers}
    settings |= {"slurm": ",".join(options.slurm), "add_seeds": options.add_seeds}
    if not options.dry_run:
        return _compare(options, settings)
    from archwright.lab.compare import plan
    from archwright.lab.report.summary import announcement
    from archwright.lab.report.terminal import plan_as_json

    planned = plan(*options.what, **settings)
    if options.json:
        print(plan_as_json(planned))
    else:
        print(announcement(planned))
        print("Nothing was trained.")
    return 0


def _add_options(parser: Parser) -> list[str]:
    """Add the options of a study's fields; return their names."""
    options = listing("study_options")
    for option in options:
        flag, about = f"--{option['name'].replace('_', '-')}", option["about"].replace("%", "%%")
        if option["switch"]:
            parser.add_argument(flag, action=argparse.BooleanOptionalAction, help=about)
        else:
            choices = words.split("|") if "|" in (words := option["metavar"]) else None
            parser.add_argument(
                flag, dest=option["name"], choices=choices, metavar=words, help=about
            )
    return [option["name"] for option in options]


def _add_places(parser: Parser) -> None:
    """Add the options for training on other machines."""
    parser.add_argument(
        "--on",
        choices=("ray", "slurm"),
        help="train the runs on other machines, which must share the file system: on the Ray cluster of "
        "RAY_ADDRESS, or a local one (extra ray); or as batch jobs of SLURM (extra slurm). This command waits, "
        "shows progress and writes the page; Ctrl-C also cancels its jobs",
    )
    parser.add_argument(
        "--workers",
        type=int,
        default=0,
        metavar="N",
        help="with --on: concurrent runs (default: as the CPUs or GPUs of the cluster allow; 16 with SLURM)",
    )
    parser.add_argument(
        "--slurm",
        action="append",
        default=[],
        metavar="NAME=VALUE,...",
        help="with --on slurm: options of sbatch by name, time in minutes: partition=gpu,time=60,mem=8G",
    )


def _compare(options: argparse.Namespace, settings: dict[str, Any]) -> int:
    import psutil

    from archwright.lab.compare import Interrupted, run_study
    from archwright.lab.report.terminal import as_json, print_results

    started = time.monotonic() - (time.time() - psutil.Process().create_time())
    try:
        results = run_study(*options.what, started=started, quiet=options.quiet, **settings)
    except Interrupted as stop:
        print(f"archwright: {stop}", file=sys.stderr)
        return 128 + stop.signal
    if options.json:
        print(as_json(results))
    else:
        print_results(results, quiet=options.quiet)
    return 0
