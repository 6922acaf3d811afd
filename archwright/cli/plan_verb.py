"""The command `archwright plan`: print the costs of training and serving a model."""

import json
import sys
from argparse import Namespace
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from archwright import presets
from archwright.cli.parser import Parser
from archwright.cpu import prepare_process
from archwright.spec.errors import UserError

if TYPE_CHECKING:
    from archwright.planning.plans import Plan
    from archwright.planning.workload import Workload
    from archwright.reporting.plan_rows import Figure
    from archwright.spec.run_spec import RunSpec
    from archwright.training.measured_step import MeasuredStep

ABOUT = """\
Estimate the costs of a model before training: parameters, FLOPs, memory, the parallelism that fits, time,
energy and price, and the speeds of prefill and decoding.

WHAT is one model, or several to print side by side. As in compare, a variant is a model's name with changes
after colons; without a name, it changes the first model. KEY=VALUE applies to all. Layers of several kinds,
such as five with a window to one without, are set in a file, or as in the last example.

Parameters, FLOPs and caches are counted from the model, built without memory. Activations, parallelism and
times are estimated; times use the given MFU, the share of peak compute (--mfu). Serving speeds are upper
bounds by the roofline model: bytes over memory bandwidth and FLOPs over peak compute.

Memory and traffic are those of archwright train with machine.precision=bf16: weights, gradients and moments
in 32 bits, activations and gathered weights in 16 (scale.param_dtype). A plan fills 90 % of the memory.
DDP replicates the model on each device, FSDP shards it, and HSDP shards it within groups of devices. In
addition, experts splits the experts of mixtures, tensor the matrices of layers, pipeline the layers, and
context the tokens of a sequence. A step lasts at least as long as its compute, or as the links inside or
between servers need. Of the strategies that fit, the plan takes the first with about the shortest step: DDP,
DDP with tensor, FSDP, FSDP with experts, HSDP, FSDP with tensor, pipeline or context. --split sets another:
tensor=N, pipeline=N, context=N and experts=N; ddp, zero1, zero2 or fsdp for the remaining devices, or shard=N
for HSDP; chunks=N for interleaved stages; and no-sequence for no sequence parallelism. The line "archwright
train" has the keys of the run; zero1, zero2 and more than two chunks are for other trainers.
A microbatch has as many sequences as fit, or --micro-batch. Activation checkpointing recomputes activations:
"selective" all of a layer except products with weights and attention, "full" whole layers
(machine.activation_checkpointing of a run). Keys of --json: docs/planning.md

With --hardware this, the peaks of this machine, or of its GPU, are measured. A few training steps of a single
model are run on random tokens if they fit into 80 % of the free memory and take at most about a minute each;
peak memory and the median time are printed.

hardware.KEY=VALUE changes the device: hardware.network_bandwidth=25e9 are bytes per second of each device to
other servers, and hardware.devices_per_server=4 is the size of a server. A file, --hardware mine.toml, has
such keys for a device of your own.

devices: this, {devices}"""

EXAMPLES = """\
  archwright plan llama-3-70b --hardware h200 --devices 64 --tokens 15T --context 8192 --batch 4M
  archwright plan llama-3-8b --hardware rtx-4090 --devices 1 --tokens 20xparams --price 0.5
  archwright plan llama-3-70b :attention.num_kv_heads=64 :attention.num_kv_heads=1
  archwright plan llama-3-8b gemma-2-9b --html costs.html
  archwright plan llama-3-405b --devices 16384 --batch 16M --context 8192 --split tensor=8,pipeline=16,fsdp
  archwright plan llama-3-70b --devices 64 --split shard=32 hardware.network_bandwidth=25e9
  archwright plan modern dim=256 num_layers=4 --hardware this
  archwright plan mine.toml optimizer.kind=muon --mfu 0.35-0.45 --json
  archwright plan llama-3-8b layer_kinds.local.attention.mask.kind=window \\
    layer_kinds.local.attention.mask.size=1024 \\
    'layers.cycle=["local","local","local","local","local","default"]'"""

HARDWARE = "hardware."
"""Prefix of keys of the device on the command line."""
SETTINGS = (
    *("devices", "precision", "tokens", "batch", "context"),
    *("mfu", "price", "split", "micro_batch"),
)


def run(words: Sequence[str]) -> int:
    """Print the costs of one model, or of several side by side."""
    options, _ = _parser().parse_with_parts(words)
    if options.hardware == presets.THIS:
        prepare_process()
    from archwright.cli.plan_variants import variants

    runs = variants([word for word in options.what if not word.startswith(HARDWARE)])
    work = _workload(options)
    step = None
    if options.hardware == presets.THIS:
        from archwright.cli.this_machine import with_bandwidth

        # Measure steps first: the tensors of the bandwidth test would raise their peak memory.
        step = _measured(next(iter(runs.values())), work) if len(runs) == 1 else None
        work = with_bandwidth(work)
    plans = _plans(runs, work)
    here: list[Figure] = []
    if step is not None:
        from archwright.cli.this_machine import rows

        here = [*rows(step, next(iter(plans.values())).training.tokens)]
    _print(plans, step, here, as_json=options.json)
    if options.html:
        from archwright.reporting.costs import cost_page
        from archwright.reporting.document import write_page

        write_page(cost_page(plans, here), Path(options.html))
        print(f"\npage  {options.html}", file=sys.stderr if options.json else sys.stdout)
    return 0


def _plans(runs: "Mapping[str, RunSpec]", work: "Workload") -> "dict[str, Plan]":
    """Return a plan for each run, by name."""
    from archwright.planning.plans import plan

    plans: dict[str, Plan] = {}
    lines: list[str] = []
    for name, run in runs.items():
        try:
            plans[name] = plan(run, work)
        except UserError as error:
            lines += (line if len(runs) == 1 else f"{name}: {line}" for line in error.lines)
    if lines:
        raise UserError(*lines)
    return plans


def _measured(run: "RunSpec", work: "Workload") -> "MeasuredStep | None":
    """Return a measured step, or None after a warning."""
    from archwright.cli.this_machine import step_of_a_plan

    try:
        return step_of_a_plan(run, work)
    except UserError as error:
        for line in error.lines:
            print(f"archwright: warning: no step was measured: {line}", file=sys.stderr)
        return None


def _print(
    plans: "Mapping[str, Plan]",
    step: "MeasuredStep | None",
    here: "Sequence[Figure]",
    *,
    as_json: bool,
) -> None:
    if as_json:
        records = [{**plan.record(), "name": name} for name, plan in plans.items()]
        if step is not None:
            from archwright.cli.this_machine import record

            (plan,) = plans.values()
            records[0]["this_machine"] = record(step, plan.training.tokens)
        print(json.dumps(records if len(records) > 1 else records[0], indent=2))
        return
    from archwright.cli.plan_page import page, section, side_by_side

    lines = [*(side_by_side(plans) if len(plans) > 1 else page(*plans.values()))]
    if here:
        lines += section("a step on this machine", here)
    print("\n".join(lines))


def _parser() -> Parser:
    devices = sorted(path.stem for path in (presets.FOLDER / "hardware").glob("*.toml"))
    parser = Parser("plan", ABOUT.format(devices=", ".join(devices)), EXAMPLES)
    parser.add_argument(
        "what", nargs="+", metavar="WHAT", help="models, variants, KEY=VALUE, hardware.KEY=VALUE"
    )
    add = parser.add_argument
    add(
        "--hardware",
        default="h100",
        metavar="NAME",
        help="a device, its file, or this machine (default: h100)",
    )
    add(
        "--devices",
        type=int,
        metavar="N",
        help="number of devices (default: 1 or 8, as in a usual machine)",
    )
    add("--precision", default="bf16", metavar="P", help="of matrix products (default: bf16)")
    add("--tokens", default="20xparams", metavar="N", help="15T, 300B (default: 20xparams)")
    add("--batch", metavar="N", help="tokens per step (default: 4M, or a sequence)")
    add("--context", type=int, metavar="N", help="tokens per sequence (default: the model's)")
    add("--mfu", default="0.3-0.5", metavar="X", help="share of peak compute (default: 0.3-0.5)")
    add("--price", type=float, metavar="X", help="price of a device per hour")
    add("--split", default="auto", metavar="S", help="parallelism (default: the fastest that fits)")
    add("--micro-batch", type=int, metavar="N", help="sequences at once (default: all that fit)")
    add("--html", metavar="FILE", help="also write a page with tables and charts")
    add("--json", action="store_true", help="print JSON; a list for several models")
    return parser


def _workload(options: Namespace) -> "Workload":
    """Return the workload given by the options."""
    from archwright.planning.workload import workload

    hardware = options.hardware
    if hardware == presets.THIS:
        if options.devices not in (None, 1):
            raise UserError(
                f"devices: found {options.devices}; expected 1 with --hardware this, which measures one machine"
            )
        from archwright.cli.this_machine import this_machine

        hardware = this_machine()
        if options.precision == "bf16" and "bf16" not in hardware.peak_flops:
            options.precision = "fp32"
    keys = [word.removeprefix(HARDWARE) for word in options.what if word.startswith(HARDWARE)]
    return workload(
        hardware=hardware, hardware_keys=keys, **{name: getattr(options, name) for name in SETTINGS}
    )
