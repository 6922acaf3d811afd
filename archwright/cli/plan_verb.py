"""archwright plan"""

import json
import sys
from argparse import Namespace
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from archwright import presets
from archwright.cli.parser import Parser
from archwright.format import columns
from archwright.spec.errors import UserError

if TYPE_CHECKING:
    from archwright.planning.plans import Plan
    from archwright.planning.workload import Workload
    from archwright.reporting.document import Page
    from archwright.reporting.estimates import Here
    from archwright.spec.run_spec import RunSpec

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
with which parallelism, its time, energy and price, and how fast it prefills and decodes.

WHAT is a model or several, which then stand side by side. As in compare, a variant is a model's name, and
after colons what it changes; without a name it changes the first. KEY=VALUE holds for all. Layers of
several kinds, such as five with a window to one without, are written in a file, or as in the last example.

Parameters, FLOPs and caches are counted from the model, built without memory. Activations, parallelism and
times are estimated: times from the stated MFU, the share of peak compute (--mfu). Speeds of serving are
upper bounds, by the roofline: bytes over memory bandwidth and FLOPs over peak compute.

Weights, gradients and moments are in 32 bits; activations, and the copy of weights that autocast or FSDP
computes with, in 16. A plan fills 90 % of a device's memory.
DDP keeps all of a model on each device, FSDP its share; experts shares out those of mixtures, tensor the
matrices of layers, pipeline the layers, context the tokens of a sequence. The first strategy that fits is
named: of DDP, DDP with experts or tensor, FSDP, FSDP with experts, with tensor, with pipeline, with
context. Or that of --split is planned: tensor=N, pipeline=N, context=N and experts=N, one of ddp, zero1,
zero2 and fsdp for the devices that are left, and no-sequence for no sequence parallelism.
A data-parallel group reads as many sequences at once as fit, or those of --micro-batch, until it has read its
share of the batch. Activation checkpointing computes again: selective all of a layer but products with
weights and attention, full whole layers (machine.activation_checkpointing of a run). Keys of --json:
docs/planning.md

WHAT may be a run: what was estimated for its steps then stands beside what they took, and of the options
--json and --html are for it. With --hardware this, the speeds of this machine's CPU are measured (no GPU
is), kept for a week, and memory and time of its steps are estimated too.

devices: this, {devices}"""

EXAMPLES = """\
  archwright plan llama-3-70b --hardware h200 --devices 64 --tokens 15T --context 8192 --batch 4M
  archwright plan llama-3-8b --hardware rtx-4090 --devices 1 --tokens 20xparams --price 0.5
  archwright plan llama-3-70b :attention.num_kv_heads=64 :attention.num_kv_heads=1
  archwright plan llama-3-8b gemma-2-9b --html costs.html
  archwright plan llama-3-405b --devices 16384 --batch 16M --context 8192 --split tensor=8,pipeline=16,fsdp
  archwright plan modern dim=256 num_layers=4 --hardware this
  archwright plan runs/modern
  archwright plan mine.toml optimizer.kind=muon --mfu 0.35-0.45 --json
  archwright plan llama-3-8b layer_kinds.local.attention.mask.kind=window \\
    layer_kinds.local.attention.mask.size=1024 \\
    'layers.cycle=["local","local","local","local","local","default"]'"""


def run(words: Sequence[str]) -> int:
    """Print a model's costs, or those of several side by side."""
    parser = _parser()
    options, _ = parser.parse_with_parts(words)
    from archwright.spec.read import is_run

    if len(options.what) == 1 and is_run(options.what[0]):
        _refuse_beside_a_run(options.what[0], options, parser)
        return _beside(options.what[0], options)
    work = _workload(options)
    from archwright.cli.plan_variants import variants

    runs = variants(options.what)
    found = _plans(runs, work)
    here: list[Here] = []
    notes: list[str] = []
    if options.hardware == presets.THIS:
        from archwright.cli.plan_measured import notes_of_this_machine

        notes = notes_of_this_machine()
        here = _here(next(iter(runs.values())), options.context) if len(runs) == 1 else []
    _print(found, here, notes, as_json=options.json)
    if options.html:
        from archwright.reporting.costs import cost_page

        _write(options, cost_page(found, here, notes))
    return 0


def _plans(runs: "Mapping[str, RunSpec]", work: "Workload") -> "dict[str, Plan]":
    """Return the plans of runs by name.

    Raises:
        UserError: what cannot be planned, one line each.
    """
    from archwright.planning.plans import plan

    found: dict[str, Plan] = {}
    lines: list[str] = []
    for name, each in runs.items():
        try:
            found[name] = plan(each, work)
        except UserError as error:
            lines += (line if len(runs) == 1 else f"{name}: {line}" for line in error.lines)
    if lines:
        raise UserError(*lines)
    return found


def _here(run: "RunSpec", context: int | None) -> "list[Here]":
    """Return what a run takes on this machine; nothing, and a warning, where that cannot be estimated."""
    from archwright.cli.plan_measured import on_this_machine

    try:
        return [*on_this_machine(run, context)]
    except UserError as error:
        for line in error.lines:
            print(f"archwright: warning: {line}", file=sys.stderr)
        return []


def _print(
    found: "Mapping[str, Plan]", here: "Sequence[Here]", notes: Sequence[str], *, as_json: bool
) -> None:
    if as_json:
        from archwright.reporting.estimates import record_of_this_machine

        records = [{**each.record(), "name": name} for name, each in found.items()]
        if here:
            records[0]["this_machine"] = record_of_this_machine(here)
        print(json.dumps(records if len(records) > 1 else records[0], indent=2))
        return
    from archwright.cli.plan_page import page, side_by_side

    lines = [*(side_by_side(found) if len(found) > 1 else page(*found.values()))]
    if here:
        from archwright.reporting.estimate_errors import HEAD, error_rows

        lines += _rows("on this machine", [each.row() for each in here])
        lines += _rows(HEAD, error_rows())
    print("\n".join([*lines, *(["", *notes] if notes else [])]))


def _parser() -> Parser:
    devices = sorted(path.stem for path in (presets.FOLDER / "hardware").glob("*.toml"))
    parser = Parser("plan", ABOUT.format(devices=", ".join(devices)), EXAMPLES)
    parser.add_argument("what", nargs="+", metavar="WHAT", help="models, variants, KEY=VALUE")
    add = parser.add_argument
    add("--hardware", default="h100", metavar="NAME", help="a device, or this CPU (default: h100)")
    add(
        "--devices",
        type=int,
        metavar="N",
        help="how many of them (default: as a usual machine has, 1 or 8)",
    )
    add("--precision", default="bf16", metavar="P", help="of matrix products (default: bf16)")
    add("--tokens", default="20xparams", metavar="N", help="15T, 300B (default: 20xparams)")
    add("--batch", metavar="N", help="tokens of a step (default: 4M, or a sequence)")
    add("--context", type=int, metavar="N", help="tokens of a sequence (default: the model's)")
    add("--mfu", default="0.3-0.5", metavar="X", help="share of peak compute (default: 0.3-0.5)")
    add("--price", type=float, metavar="X", help="of a device for an hour")
    add("--split", default="auto", metavar="S", help="parallelism (default: what fits first)")
    add("--micro-batch", type=int, metavar="N", help="sequences at once (default: what fits)")
    add("--html", metavar="FILE", help="write a page with tables and charts, too, and its folder")
    add("--json", action="store_true", help="print JSON: of several models a list")
    return parser


def _workload(options: Namespace) -> "Workload":
    """Return what a plan is for.

    Raises:
        UserError: what cannot be, one line each.
    """
    from archwright.planning.workload import workload

    hardware = options.hardware
    if hardware == presets.THIS:
        if options.devices not in (None, 1):
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
    return ["", title, *(f"  {line}" for line in columns([*rows], first_width=23))]


def _beside(name: str, options: Namespace) -> int:
    """Print what was estimated for the steps of a run beside what they took."""
    from archwright.cli.plan_measured import beside_a_run, machines_of
    from archwright.reporting.estimate_errors import HEAD as HEAD_OF_ERRORS
    from archwright.reporting.estimate_errors import TITLES, estimate_errors
    from archwright.reporting.estimates import HEAD, estimates_page, record
    from archwright.runs import RunFolder

    folder = RunFolder.open(name)
    found, machines = beside_a_run(folder), machines_of(folder)
    if options.json:
        print(json.dumps(record(name, found, machines), indent=2))
    else:
        rows = [HEAD, *(each.row() for each in found.values())]
        errors = [(TITLES[kind], estimate_errors()[kind].sentence) for kind in ("step", "memory")]
        lines = [*columns(rows, right=(1, 2, 3)), *_rows(HEAD_OF_ERRORS, errors)]
        print("\n".join([*lines, *(["", machines.note] if machines.note else [])]))
    if options.html:
        _write(options, estimates_page(name, machines, [*found.values()]))
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
