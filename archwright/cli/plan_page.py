"""Output of `archwright plan`: a page on one model, or several side by side."""

import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from archwright import format as fmt
from archwright.cli.parser import terminal_width
from archwright.planning.advice import advice
from archwright.planning.cost import BACKWARD
from archwright.planning.plans import FEW_SEQUENCES, Plan, Range, larger_numbers
from archwright.planning.training_memory import Setup

PARTS = ("weights", "gradients", "optimizer", "copies", "gathered", "activations", "logits")
Row = tuple[str, str, str]


def page(found: Plan) -> Iterator[str]:
    """Yield the lines of a page on one model."""
    yield _title(found)
    yield from _section("model", _model(found))
    yield from _section("a device", _device(found))
    yield from ("", *_parts(found))
    yield from _section("training", _training(found))
    yield from _section("memory on each device", _memory(found))
    if len(found.ways) > 1 or found.workload.split is not None:
        yield from ("", "ways to split", *_ways(found))
    yield from _section("serving, at best", _serving(found))
    if lines := [*advice(found)]:
        yield from ("", "change first", *_wrapped(lines))
    if found.suspicions:
        lines = [each.line for each in found.suspicions]
        yield from ("", "unusual, by rules of thumb", *_wrapped(lines))


def side_by_side(found: Mapping[str, Plan]) -> Iterator[str]:
    """Yield a table with a column for each model."""
    yield _title(next(iter(found.values())), name="")
    yield ""
    columns = {
        name: [*_model(each), *_training(each), *_serving(each)] for name, each in found.items()
    }
    labels = _merged([label for label, _, _ in rows] for rows in columns.values())
    texts = {name: {label: text for label, text, _ in rows} for name, rows in columns.items()}
    table = [["", *found]]
    table += [[label, *(texts[name].get(label, "-") for name in found)] for label in labels]
    yield from fmt.columns(table, right=range(1, len(found) + 1))
    if lines := [f"{name}: {s.line}" for name, each in found.items() for s in each.suspicions]:
        yield from ("", "unusual, by rules of thumb", *_wrapped(lines))


def _merged(columns: Iterable[Sequence[str]]) -> list[str]:
    """Return the labels of all columns, each once, those of one alone behind what they follow there."""
    found: list[str] = []
    for labels in columns:
        at = 0
        for label in labels:
            if label not in found:
                found.insert(at, label)
            at = found.index(label) + 1
    return found


def _title(found: Plan, name: str | None = None) -> str:
    work = found.workload
    devices = f"{work.devices:,} x {work.hardware.title}, {work.precision}"
    name = found.name if name is None else name
    return ": ".join(filter(None, (name, devices)))


def _model(found: Plan) -> Iterator[Row]:
    yield "parameters", fmt.count(found.counts.total), "counted"
    if found.counts.active != found.counts.total:
        yield "active parameters", fmt.count(found.counts.active), "counted"
    yield "context", f"{found.context:,} tokens", ""
    if found.target_length is not None:
        yield "target", f"{found.target_length:,} tokens", "of each source, in training"
    yield "FLOPs per token", fmt.flops(found.flops_per_token), "counted, forward and backward"
    if found.writes:
        yield "cache per token", fmt.size(found.kv_cache_bytes_per_token), "counted, in 16 bits"
        yield "cache per text", fmt.size(found.cache_bytes_per_text), "counted, in 16 bits"


def _device(found: Plan) -> Iterator[Row]:
    hardware, precision = found.workload.hardware, found.workload.precision
    known = hardware.source if hardware.evidence == "measured" else hardware.evidence
    yield "memory", fmt.size(hardware.memory_bytes), known.partition(",")[0]
    yield "reads", f"{fmt.size(hardware.memory_bandwidth)}/s", known
    yield "multiplies", fmt.rate(hardware.peak(precision)), f"{known}, {precision}"
    if hardware.interconnect_bandwidth != "none":
        yield "sends", f"{fmt.size(hardware.interconnect_bandwidth)}/s", known


def _parts(found: Plan) -> Iterator[str]:
    """Yield a table of parts: parameters, and FLOPs per token forward and backward, with their shares."""
    total = sum(found.forward_flops.values())
    rows = [("part", "parameters", "share", "forward", "backward", "share")]
    for part in dict.fromkeys([*found.counts.parts, *found.forward_flops]):
        number, flops = found.counts.parts.get(part, 0), found.forward_flops.get(part, 0.0)
        rows.append(
            (
                part,
                fmt.count(number) if number else "-",
                fmt.percent(number / found.counts.total) if number else "-",
                fmt.flops(flops) if flops else "-",
                fmt.flops(BACKWARD * flops) if flops else "-",
                fmt.percent(flops / total) if flops else "-",
            )
        )
    yield from fmt.columns(rows, right=range(1, 6))


def _training(found: Plan) -> Iterator[Row]:
    work, training = found.workload, found.training
    least, most = (fmt.percent(share) for share in work.mfu)
    at = f"estimated, at {least}" if least == most else f"estimated, at {most} to {least}"
    peak = "measured peak" if work.hardware.evidence == "measured" else "peak"
    if work.training_precision != work.precision:
        yield (
            "precision",
            work.training_precision,
            f"training in {work.precision} is not planned, serving is",
        )
    yield "tokens", fmt.count(training.tokens), f"{fmt.exact(training.steps)} steps"
    yield "FLOPs", fmt.flops(training.flops), "counted"
    yield (
        "step at the peak",
        fmt.duration(training.bound),
        f"a bound, by FLOPs and the {work.hardware.evidence} peak",
    )
    if training.exchange is not None:
        yield "links in a step", fmt.duration(training.exchange), "a bound, inside one server"
    if training.exchange_bytes:
        sizes = (f"{name} {fmt.size(size)}" for name, size in training.exchange_bytes.items())
        yield "sent in a step", ", ".join(sizes), "estimated, by a device"
    if training.bubble:
        yield "stages wait", fmt.percent(training.bubble), "estimated, of the time they compute"
    yield "step", _between(training.step, fmt.duration), f"{at} of the {peak}"
    yield "days", _between(training.days, fmt.significant), "estimated"
    yield "device hours", _between(training.device_hours, fmt.amount), "estimated"
    if training.energy is not None:
        text = _between(training.energy.times(1000), fmt.energy)
        yield "energy", text, "estimated, of devices alone at full power"
    if training.cost is not None:
        yield "price", _between(training.cost, fmt.amount), f"estimated, at {work.price:g} an hour"
    yield "fits", _fit(found), "estimated"
    if found.setup is not None:
        how = "the largest that fits" if work.micro_batch is None else "as asked for"
        yield "micro-batch", _micro_batch(found.setup), f"estimated, {how}"


def _micro_batch(way: Setup) -> str:
    """Say how many texts a group of devices reads at once, and how often in a step."""
    micro, number = way.batch.micro, way.batch.number
    sequences = f"{micro:,} sequence{'s' * (micro > 1)}"
    return f"{sequences}, {number:,} accumulated" if number > 1 else sequences


def _fit(found: Plan) -> str:
    if found.setup is not None:
        return f"{found.setup.split.name}, checkpointing {found.setup.checkpointing}"
    groups, micro, texts = found.smallest.split.ranks, found.smallest.batch.micro, found.texts
    if groups * micro > texts:
        number = "one text" if texts == 1 else f"{texts:.0f} texts"
        each = "" if micro == 1 else f" with {micro:,} each"
        return f"no: {groups} groups of devices{each} for {number} a step; give a larger --batch"
    if found.fewest_devices is None:
        *_, most = (0, *larger_numbers(found.workload.devices))
        return f"no, nor on more devices with this batch, up to {most:,}" if most else "no"
    return f"no, but on {found.fewest_devices:,} devices"


def _memory(found: Plan) -> Iterator[Row]:
    setup = found.setup or found.smallest
    for name in PARTS:
        number = float(getattr(setup.memory, name))
        if number:
            yield name, fmt.size(number), "counted" if name in PARTS[:3] else "estimated"
    total = setup.memory.total
    share = fmt.percent(total / found.workload.hardware.memory_bytes)
    yield "all", fmt.size(total), f"{share} of {fmt.size(found.workload.hardware.memory_bytes)}"


def _ways(found: Plan) -> Iterator[str]:
    """Yield a table of the ways to split: bytes on the device with most, what a device sends, and which fit."""
    rows = [
        (
            *("  split", "checkpointing", "micro-batch"),
            *("state", "other", "all", "sent", "on links", "fits"),
        )
    ]
    for way in found.ways:
        memory, sent = way.memory, sum(way.exchange.values())
        state = memory.weights + memory.gradients + memory.optimizer
        rows.append(
            (
                f"  {way.split.name}",
                way.checkpointing,
                f"{way.batch.micro:,} x {way.batch.number:,}",
                fmt.size(state),
                fmt.size(memory.total - state),
                fmt.size(memory.total),
                fmt.size(sent) if sent else "-",
                "-" if (seconds := found.exchange(way)) is None else fmt.duration(seconds),
                f"no: {why}" if (why := found.why_not(way)) else "yes",
            )
        )
    yield from fmt.columns(rows, right=range(2, 8))
    yield "  micro-batch: sequences of a group of devices at once, and how often in a step"
    if any(found.why_not(way) == FEW_SEQUENCES for way in found.ways):
        number = "one" if found.texts == 1 else fmt.significant(found.texts)
        yield f"  {FEW_SEQUENCES}: {number} a step, less than a micro-batch for each group of devices"
    yield (
        "  state: weights, gradients, moments in 32 bits, counted; other bytes, and those sent in a step, are estimated"
    )


def _serving(found: Plan) -> Iterator[Row]:
    serving = found.serving
    if serving is None:
        devices = f"{found.workload.devices:,} of these devices"
        why = f"does not fit on {devices}" if found.can_cache else "none: the model keeps no cache"
        yield "serving", why, ""
        return
    yield (
        "devices for one copy",
        f"{serving.devices:,}",
        f"weights: {fmt.size(serving.weight_bytes)}",
    )
    is_measured = found.workload.hardware.evidence == "measured"
    bound = "a bound, by measured rates" if is_measured else "a bound"
    alone = found.target_length is None
    speeds = {
        "prefill": (serving.prefill_tokens_per_second, "one text" if alone else "one source"),
        "decode": (
            serving.decode_tokens_per_second,
            f"one text, after {'the context' if alone else 'a source and a text of the context'}",
        ),
        "decode, full batch": (
            serving.decode_tokens_per_second_at_largest_batch,
            f"{serving.largest_batch:,} texts, the most whose caches fit",
        ),
    }
    for name, (speed, of) in speeds.items():
        if name != "prefill" and not found.decodes:
            continue
        yield name, f"{fmt.count(speed)} tokens/s", f"{bound}: {of}"


def _between(found: Range, text: Callable[[float], str]) -> str:
    ends = dict.fromkeys((text(found.least), text(found.most)))
    return " to ".join(ends)


def _wrapped(lines: Iterable[str]) -> Iterator[str]:
    for line in lines:
        yield from textwrap.wrap(
            line, terminal_width(), initial_indent="  ", subsequent_indent="    "
        )


def _section(title: str, rows: Iterator[Row]) -> Iterator[str]:
    yield from ("", title)
    yield from (f"  {line}" for line in fmt.columns([*rows], first_width=20))
