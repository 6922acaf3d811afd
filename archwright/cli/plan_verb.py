"""archwright plan"""

import json
import sys
from argparse import Namespace
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from archwright import presets
from archwright.cli.parser import Parser
from archwright.format import columns
from archwright.spec.errors import UserError

if TYPE_CHECKING:
    from archwright.planning.workload import Workload
    from archwright.reporting.document import Page
    from archwright.reporting.estimates import Here

SERVER = 8
"""Devices that a plan is for where none are given."""
OF_A_PLAN = (
    "hardware",
    "devices",
    "precision",
    "tokens",
    "batch",
    "context",
    "mfu",
    "price",
    "split",
    "micro_batch",
)
"""Options of what is to be planned, which a run that has trained has settled."""

ABOUT = """\
Say what a model costs before anything is spent: parameters, FLOPs, memory, whether a training fits and
how it would have to be split, its days, energy and price, and how fast it prefills and decodes.

WHAT is a model or several, which then stand side by side. As in compare, a variant is a model's name, and
after colons what it changes; without a name it changes the first. KEY=VALUE holds for all.

Parameters, FLOPs and caches are counted from the model, built without memory. Activations, splits and
times are estimated: times from the stated utilisation of published peaks (--mfu). Speeds of serving are
bounds, by the roofline: bytes over bandwidth and FLOPs over peak.

Weights, gradients and moments are in 32 bits; activations, and the copy of weights that autocast or FSDP
computes with, in 16. A plan fills 90 % of a device's memory.
DDP keeps all of a model on each device, FSDP its share; experts shares out those of mixtures, tensor the
matrices of layers, pipeline the layers, context the tokens of a text. The first way that fits is named: of
DDP, DDP with experts or tensor, FSDP, FSDP with experts, with tensor, with pipeline, with context. Or the
one of --split is planned: tensor=N, pipeline=N, context=N and experts=N, one of ddp, zero1, zero2 and fsdp
for the devices that are left, and no-sequence where norms are not shared by tokens.
A group of devices reads as many sequences at once as fit, or those of --micro-batch, until it has read its
share of the batch. Checkpointing computes again: selective all of a layer but products with weights and
attention, full whole layers (machine.activation_checkpointing of a run). Keys of --json: docs/planning.md

WHAT may be a run: what was estimated for its steps then stands beside what they took, and of the options
--json and --html are for it. With --hardware this, speeds are measured on this machine, kept for a week,
and memory and time of its steps are estimated too.

devices: this, {devices}"""

EXAMPLES = """\
  archwright plan llama-3-70b --hardware h200 --devices 64 --tokens 15T --context 8192 --batch 4M
  archwright plan llama-3-8b --hardware rtx-4090 --devices 1 --tokens 20xparams --price 0.5
  archwright plan llama-3-70b :attention.num_kv_heads=64 :attention.num_kv_heads=1
  archwright plan llama-3-8b gemma-2-9b --html costs.html
  archwright plan llama-3-405b --devices 16384 --batch 16M --context 8192 --split tensor=8,pipeline=16,fsdp
  archwright plan modern dim=256 num_layers=4 --hardware this
  archwright plan runs/modern
  archwright plan mine.toml optimizer.kind=muon --mfu 0.35-0.45 --json"""


def run(words: Sequence[str]) -> int:
    """Print a model's costs, or those of several side by side."""
    parser = _parser()
    options, _ = parser.parse_with_parts(words)
    from archwright.spec.read import is_run

    if len(options.what) == 1 and is_run(options.what[0]):
        _refuse_beside_a_run(options.what[0], options, parser)
        return _beside(options.what[0], options)
    work = _workload(options)
    from archwright.cli.plan_page import page, side_by_side
    from archwright.cli.plan_variants import variants
    from archwright.planning.plans import Plan, plan

    found: dict[str, Plan] = {}
    lines: list[str] = []
    runs = variants(options.what)
    for name, each in runs.items():
        try:
            found[name] = plan(each, work)
        except UserError as error:
            lines += (line if len(runs) == 1 else f"{name}: {line}" for line in error.lines)
    if lines:
        raise UserError(*lines)
    here: list[Here] = []
    if options.hardware == presets.THIS and len(found) == 1:
        from archwright.cli.plan_measured import on_this_machine

        try:
            here = [*on_this_machine(next(iter(runs.values())), options.context)]
        except UserError as error:
            for line in error.lines:
                print(f"archwright: warning: {line}", file=sys.stderr)
    if options.json:
        from archwright.reporting.estimates import record_of_this_machine

        records = [{**each.record(), "name": name} for name, each in found.items()]
        if here:
            records[0]["this_machine"] = record_of_this_machine(here)
        print(json.dumps(records if len(records) > 1 else records[0], indent=2))
    else:
        lines = [*(side_by_side(found) if len(found) > 1 else page(*found.values()))]
        if here:
            lines += _rows("on this machine", [each.row() for each in here])
        print("\n".join(lines))
    if options.html:
        from archwright.reporting.costs import cost_page

        _write(options, cost_page(found, here))
    return 0


def _parser() -> Parser:
    devices = sorted(path.stem for path in (presets.FOLDER / "hardware").glob("*.toml"))
    parser = Parser("plan", ABOUT.format(devices=", ".join(devices)), EXAMPLES)
    parser.add_argument("what", nargs="+", metavar="WHAT", help="models, variants, KEY=VALUE")
    add = parser.add_argument
    add("--hardware", default="h100", metavar="NAME", help="a device (default: h100)")
    add("--devices", type=int, metavar="N", help="how many of them (default: 8)")
    add("--precision", default="bf16", metavar="P", help="of matrix products (default: bf16)")
    add("--tokens", default="20xparams", metavar="N", help="15T, 300B (default: 20xparams)")
    add("--batch", metavar="N", help="tokens of a step (default: 4M, or a text)")
    add("--context", type=int, metavar="N", help="tokens of a text (default: the model's)")
    add("--mfu", default="0.3-0.5", metavar="X", help="share of the peak (default: 0.3-0.5)")
    add("--price", type=float, metavar="X", help="of a device for an hour")
    add("--split", default="auto", metavar="S", help="how to train (default: what fits first)")
    add("--micro-batch", type=int, metavar="N", help="sequences at once (default: what fits)")
    add("--html", metavar="FILE", help="write a page with charts, too")
    add("--json", action="store_true", help="print JSON: of several models a list")
    return parser


def _workload(options: Namespace) -> "Workload":
    """Return what a plan is for.

    Raises:
        UserError: what cannot be, one line each.
    """
    from archwright.planning.workload import workload

    hardware = options.hardware
    if options.devices is None:
        options.devices = 1 if hardware == presets.THIS else SERVER
    if hardware == presets.THIS:
        if options.devices != 1:
            raise UserError(
                f"devices: found {options.devices}; expected 1 with --hardware this, which measures one machine"
            )
        from archwright.cli.plan_measured import this_machine

        hardware = this_machine()
        if options.precision == "bf16" and "bf16" not in hardware.peak_flops:
            options.precision = "fp32"
    return workload(
        hardware=hardware,
        devices=options.devices,
        precision=options.precision,
        tokens=options.tokens,
        batch=options.batch,
        context=options.context,
        mfu=options.mfu,
        price=options.price,
        split=options.split,
        micro_batch=options.micro_batch,
    )


def _rows(title: str, rows: Iterable[Sequence[str]]) -> list[str]:
    return ["", title, *(f"  {line}" for line in columns([*rows], first_width=20))]


def _beside(name: str, options: Namespace) -> int:
    """Print what was estimated for the steps of a run beside what they took."""
    from archwright.cli.plan_measured import beside_a_run
    from archwright.machine.decide import cpu_name
    from archwright.reporting.estimates import HEAD, estimates_page, record
    from archwright.runs import RunFolder

    folder = RunFolder.open(name)
    found = beside_a_run(folder)
    if options.json:
        print(json.dumps(record(name, found), indent=2))
    else:
        rows = [HEAD, *(each.row() for each in found.values())]
        print("\n".join(columns(rows, right=(1, 2, 3))))
    if options.html:
        _write(options, estimates_page(name, cpu_name(), [*found.values()]))
    return 0


def _refuse_beside_a_run(name: str, options: Namespace, parser: Parser) -> None:
    """Refuse options that a run has settled.

    Raises:
        UserError: those that are given, on one line.
    """
    given = [
        f"--{key.replace('_', '-')}"
        for key in OF_A_PLAN
        if getattr(options, key) != parser.get_default(key)
    ]
    if options.hardware == presets.THIS and "--hardware" in given:
        given.remove("--hardware")
    if given:
        raise UserError(
            f"plan {name}: found {', '.join(given)}; expected none, as a run has trained: its steps stand beside their "
            "estimate. A model, not its folder, is planned with them"
        )


def _write(options: Namespace, page: "Page") -> None:
    from archwright.files import atomic_write

    atomic_write(Path(options.html), page.html())
    print(f"\npage  {options.html}", file=sys.stderr if options.json else sys.stdout)
