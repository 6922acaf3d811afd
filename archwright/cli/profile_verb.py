"""The command `archwright profile`: print the time, FLOPs and bytes of each part of a training step."""

import argparse
import json
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from archwright import format as fmt
from archwright.cli.parser import Parser
from archwright.spec.errors import UserError, nearest

if TYPE_CHECKING:
    from archwright.spec.run_spec import RunSpec
    from archwright.training.profiling import PartProfile, Profile

ABOUT = """\
Measure the time of a training step part by part: forward, backward and update of a model on random tokens,
with the FLOPs and the bytes of each part. Parts that move many bytes for few FLOPs, such as norms, have a
larger share of the time than of the FLOPs.

Times are medians over steps. A multiplication and an addition count as two FLOPs; attention counts only
visible keys. Bytes are the reads and writes of each operation, without caching. "other" is the sums of
gradients of values that are used twice, and the time between operations.

KEY=VALUE changes the model, or the objective, optimizer and data.tokenizer.special_tokens of a run. Further
models, or variants as in compare (:norm.kind=layer), are also measured and printed side by side.

With --dry-run, nothing is measured: FLOPs and bytes by part are counted for a model of any size, in the
precision of --precision (default: bf16). With --kernel eager, attention writes its scores to memory."""

EXAMPLES = """\
  archwright profile modern dim=256 num_layers=4
  archwright profile textbook dim=256 num_layers=4 --length 1024 --batch-size 2
  archwright profile modern norm.kind=layer --precision bf16 --seconds 30
  archwright profile modern optimizer.kind=muon
  archwright profile modern :norm.kind=layer dim=256 num_layers=4
  archwright profile llama-3-70b --dry-run
  archwright profile mine.toml --kernel eager --json"""

MOST = 2**30
"""Maximum batch size, and maximum length of a sequence."""
PRECISIONS = ("auto", "fp32", "bf16", "fp16", "fp8")
KERNELS = ("auto", "eager", "sdpa", "blockwise")


def run(words: Sequence[str]) -> int:
    """Print the time, FLOPs and bytes of a training step by part, for each model."""
    parser = Parser("profile", ABOUT, EXAMPLES)
    parser.add_argument("model", metavar="MODEL", help="a model or a TOML file")
    parser.add_argument("assignments", nargs="*", metavar="KEY=VALUE", help="values to change")
    parser.add_argument("--batch-size", type=int, default=4, metavar="N", help="(default: 4)")
    parser.add_argument("--length", type=int, metavar="T", help="tokens (default: the context)")
    parser.add_argument(
        "--precision", default="auto", metavar="P", help="fp32, bf16, fp16, fp8 (default: by rule)"
    )
    parser.add_argument(
        "--kernel", default="auto", metavar="K", help="eager, sdpa, blockwise (default: by rule)"
    )
    parser.add_argument(
        "--seconds", type=float, default=10.0, metavar="S", help="time of measurement (default: 10)"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--dry-run", action="store_true", help="only count FLOPs and bytes")
    options, _ = parser.parse_with_parts(words)
    runs = _all_requested(options)
    if options.dry_run:
        from archwright.cli.profile_tables import counted_step

        steps = [
            counted_step(
                name, run, options.batch_size, options.length, options.precision, options.kernel
            )
            for name, run in runs.items()
        ]
        if options.json:
            records = [step.record() for step in steps]
            print(json.dumps(records if len(records) > 1 else records[0], indent=2))
        else:
            print("\n\n".join("\n".join(step.table()) for step in steps))
        return 0
    from archwright.cli.profile_tables import side_by_side

    measured = {name: _measured(run, options) for name, run in runs.items()}
    (first, *others) = measured.values()
    if options.json:
        records = [{"name": name, **profile.record()} for name, profile in measured.items()]
        print(json.dumps(records if others else first.record(), indent=2))
    else:
        print("\n".join(side_by_side(measured) if others else _report(first)))
    return 0


def _measured(run: "RunSpec", options: argparse.Namespace) -> "Profile":
    from archwright.progress import Progress
    from archwright.spec.machine import MachineSpec
    from archwright.training.profiling import profile

    with Progress("Measuring", 1.0) as progress:
        return profile(
            run,
            batch_size=options.batch_size,
            length=options.length,
            machine=MachineSpec(precision=options.precision, kernel=options.kernel),
            seconds=options.seconds,
            on_progress=progress.reached,
        )


def _all_requested(options: argparse.Namespace) -> "dict[str, RunSpec]":
    """Return the requested runs by name."""
    from archwright.lab.design.variants import is_variant

    variants = [word for word in options.assignments if is_variant(word)]
    if not variants:
        return {options.model: _requested(options)}
    from archwright.cli.plan_variants import variants as named

    first = argparse.Namespace(**{**vars(options), "assignments": []})
    _requested(first)  # checks the other options
    return named([options.model, *options.assignments])


def _requested(options: argparse.Namespace) -> "RunSpec":
    """Return the requested run, or raise a UserError with all mistakes."""
    from archwright.spec.read import load, preset_names
    from archwright.spec.rules import enforce
    from archwright.spec.run_rules import enforce_run
    from archwright.spec.run_spec import RunSpec

    lines = [
        f"--{name}: found {value}; expected 1 to {MOST:,}"
        for name, value in (("batch-size", options.batch_size), ("length", options.length))
        if value is not None and not 1 <= value <= MOST
    ]
    if not 0 < options.seconds < 86400:
        lines.append(f"--seconds: found {options.seconds:g}; expected more than 0")
    for name, choices in (("precision", PRECISIONS), ("kernel", KERNELS)):
        if (value := getattr(options, name)) not in choices:
            expected = f"expected one of {', '.join(choices)}.{nearest(value, choices)}"
            lines.append(f'--{name}: found "{value}"; {expected}')
    if options.model in preset_names("runs"):
        lines.append(f'"{options.model}" is a recipe; profile its model')
    if lines:
        raise UserError(*lines)
    model = load(options.model)
    run = RunSpec(model=model).override(*options.assignments)
    enforce(run.model)
    if run != RunSpec(model=run.model):  # with defaults, the model need not be causal
        enforce_run(run)
    return run


def _report(profile: "Profile") -> Iterator[str]:
    """Yield the table of parts, and remarks."""
    machine, total = profile.machine, profile.total
    yield (
        f"{fmt.count(profile.num_parameters)} parameters, {profile.batch_size} sequences of "
        f"{profile.length} tokens, {machine.precision}, {machine.kernel} kernel, {machine.device}, "
        f"{machine.threads} thread{'s' * (machine.threads != 1)}"
    )
    yield ""
    head = ("part", "ms", "share", "forward", "backward", "FLOPs", "bytes", "FLOP/s", "bytes/s")
    parts = [part for part in profile.parts if part.seconds or part.num_bytes]
    rows = [head, *(_row(part, total) for part in (*parts, total))]
    yield from fmt.columns(rows, right=range(1, len(head)))
    yield ""
    share = fmt.NO_UTILISATION
    if profile.peak:
        used = fmt.percent(total.products / profile.step / profile.peak)
        share = f"{used} of the measured peak of matrix products, {fmt.rate(profile.peak)}"
    yield (
        f"A plain step takes {1e3 * profile.step:.4g} ms, "
        f"{fmt.count(profile.batch_size * profile.length / profile.step)} tokens/s; {share}. "
        f"Medians of {profile.num_steps} steps."
    )
    yield from _compared(profile)


def _row(part: "PartProfile", total: "PartProfile") -> tuple[str, ...]:
    def speed(amount: float) -> str:
        return fmt.count(amount / part.seconds) if part.seconds and amount else "-"

    return (
        part.name,
        f"{1e3 * part.seconds:.2f}",
        fmt.percent(part.seconds / total.seconds),
        f"{1e3 * part.forward:.2f}",
        f"{1e3 * part.backward:.2f}",
        fmt.count(part.flops),
        fmt.count(part.num_bytes),
        speed(part.flops),
        speed(part.num_bytes),
    )


def _compared(profile: "Profile") -> Iterator[str]:
    """Yield the shares of norms, and of parts that take more time than their FLOPs suggest."""
    total = profile.total
    for part in profile.parts[:-1]:  # the last is the rest
        time, flops = part.seconds / total.seconds, part.flops / total.flops
        if (part.name == "norms" and part.seconds) or (flops and time > 0.03 and time > 2 * flops):
            yield (
                f"{part.name}: {fmt.percent(flops)} of the FLOPs, "
                f"{fmt.percent(part.num_bytes / total.num_bytes)} of the bytes, "
                f"{fmt.percent(time)} of the time"
            )
