"""What a plan says, as rows of words: those of the terminal and of the page are the same."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from archwright import format as fmt
from archwright.catalogue.part_titles import MEMORY, part_title
from archwright.planning.cost import BACKWARD
from archwright.planning.plans import FEW_SEQUENCES, Plan, Range, larger_numbers
from archwright.planning.training_memory import Setup

STATE = ("weights", "gradients", "optimizer")
"""Parts of the memory of a training that are counted: model states."""
PARTS = ("part", "parameters", "share", "forward", "backward", "share of FLOPs")
STRATEGIES = (
    "parallelism",
    "checkpointing",
    "micro-batch",
    "model states",
    "activations, buffers",
    "all",
    "sent in a step",
    "communication time",
    "fits",
)


class Figure(NamedTuple):
    """A number of a plan in words."""

    label: str
    text: str
    how: str = ""
    """Where it comes from: given, counted, estimated, published or measured, or an upper or a lower bound."""
    note: str = ""

    @property
    def remark(self) -> str:
        """Where it comes from, and what it is of."""
        return ", ".join(filter(None, (self.how, self.note)))


SAME = {"cache past windows": "cache per token"}
"""Labels whose number, where a model has none, is that of another."""
Rows = Callable[[Plan], Iterator[Figure]]


def model_rows(found: Plan) -> Iterator[Figure]:
    """Yield what is counted of the model."""
    yield Figure("parameters", fmt.count(found.counts.total), "counted")
    if found.counts.active != found.counts.total:
        yield Figure("active parameters", fmt.count(found.counts.active), "counted", "of a token")
    yield Figure("context", f"{found.context:,} tokens", "given")
    if found.target_length is not None:
        text = f"{found.target_length:,} tokens"
        yield Figure("target", text, "given", "for each source, in training")
    text = fmt.flops(found.flops_per_token)
    yield Figure("FLOPs per token", text, found.flops_evidence, "forward and backward")
    if not found.writes:
        return
    per_token, later = found.kv_cache_bytes_per_token, found.cache_bytes_per_later_token
    has_windows = later != per_token
    note = f"in 16 bits{', while no window is full' if has_windows else ''}"
    yield Figure("cache per token", fmt.size(per_token), "counted", note)
    if has_windows:
        note = "of each further token when all windows are full"
        yield Figure("cache past windows", fmt.size(later), "counted", note)
    yield Figure(
        "cache per sequence", fmt.size(found.cache_bytes_per_text), "counted", "in 16 bits"
    )


def device_rows(found: Plan) -> Iterator[Figure]:
    """Yield what is known of a device."""
    hardware, precision = found.workload.hardware, found.workload.precision
    known = hardware.source if hardware.evidence == "measured" else hardware.evidence
    memory = fmt.size(hardware.memory_bytes)
    yield Figure("memory", memory, known.partition(",")[0])
    yield Figure("memory bandwidth", f"{fmt.size(hardware.memory_bandwidth)}/s", known)
    yield Figure("peak compute", fmt.rate(hardware.peak(precision)), known, precision)
    if hardware.interconnect_bandwidth != "none":
        text = f"{fmt.size(hardware.interconnect_bandwidth)}/s"
        yield Figure("interconnect bandwidth", text, known, "one way, inside a server")


def training_rows(found: Plan) -> Iterator[Figure]:
    """Yield what a training takes."""
    work, training = found.workload, found.training
    least, most = (fmt.percent(share) for share in work.mfu)
    at = f"at {least} MFU" if least == most else f"at {most} to {least} MFU"
    if work.training_precision != work.precision:
        note = f"training in {work.precision} is not planned, serving is"
        yield Figure("precision", work.training_precision, "", note)
    steps = f"{fmt.exact(training.steps)} steps"
    yield Figure("tokens", fmt.count(training.tokens), "given", steps)
    yield Figure("FLOPs", fmt.flops(training.flops), found.flops_evidence)
    peak = f"{work.hardware.evidence} peak compute"
    yield Figure("step at 100 % MFU", fmt.duration(training.bound), "lower bound", f"by {peak}")
    if training.exchange is not None:
        text = fmt.duration(training.exchange)
        yield Figure("communication time", text, "lower bound", "of a step, inside one server")
    if sizes := training.exchange_bytes:
        each = ", ".join(f"{name} {fmt.size(size)}" for name, size in sizes.items())
        text = fmt.size(sum(sizes.values()))
        yield Figure("sent in a step", text, "estimated", f"by a device: {each}")
    if training.bubble:
        text = fmt.percent(training.bubble)
        yield Figure("pipeline bubble", text, "estimated", "of the compute time")
    at += " of the measured peak" if work.hardware.evidence == "measured" else ""
    yield Figure("step", between(training.step, fmt.duration), "estimated", at)
    seconds = training.days.times(86400)
    yield Figure("training time", fmt.time_span(seconds.least, seconds.most), "estimated", at)
    yield Figure("device hours", between(training.device_hours, fmt.amount), "estimated")
    if training.energy is not None:
        text = between(training.energy.times(1000), fmt.energy)
        yield Figure("energy", text, "estimated", "of devices alone at full power")
    if training.cost is not None:
        text, price = between(training.cost, fmt.amount), f"at {work.price:g} an hour"
        yield Figure("price", text, "estimated", price)


def memory_rows(found: Plan) -> Iterator[Figure]:
    """Yield whether a training fits, and what it takes of each device in all."""
    setup = found.setup or found.smallest
    limit = found.workload.hardware.memory_bytes
    yield Figure("fits", *_fit(found))
    yield Figure(
        "parallelism",
        setup.split.name,
        "estimated",
        "the first that fits" if found.setup else "least memory",
    )
    yield Figure("checkpointing", setup.checkpointing, "estimated", "of activations")
    how = "the largest that fits" if found.workload.micro_batch is None else "as asked for"
    yield Figure("micro-batch", _micro_batch(setup), "estimated", how if found.setup else "")
    text = fmt.size(setup.memory.total)
    share = f"{fmt.percent(setup.memory.total / limit)} of {fmt.size(limit)}"
    yield Figure("memory on each device", text, "estimated", share)


def _micro_batch(way: Setup) -> str:
    """Say how many sequences a data-parallel group reads at once, and how often in a step."""
    micro, number = way.batch.micro, way.batch.number
    sequences = f"{micro:,} sequence{'s' * (micro > 1)}"
    return f"{sequences}, {number:,} accumulated" if number > 1 else sequences


def _fit(found: Plan) -> tuple[str, str, str]:
    if found.setup is not None:
        return "yes", "estimated", ""
    groups, micro, texts = found.smallest.split.ranks, found.smallest.batch.micro, found.texts
    if groups * micro > texts:
        number = "one sequence" if texts == 1 else f"{texts:.0f} sequences"
        each = "" if micro == 1 else f" with {micro:,} each"
        why = f"{groups} data-parallel groups{each} for {number} a step; give a larger --batch"
    elif found.fewest_devices is None:
        *_, most = (0, *larger_numbers(found.workload.devices))
        why = f"nor on more devices with this batch, up to {most:,}" if most else ""
    else:
        why = f"but on {found.fewest_devices:,} devices"
    return "no", "estimated", why


def memory_by_part(setup: Setup) -> Iterator[tuple[str, float, str]]:
    """Yield what fills a device, its bytes, and where they come from."""
    for name, title in MEMORY.items():
        if number := float(getattr(setup.memory, name)):
            if name == "gathered" and setup.split.data == "fsdp":
                title = "FSDP all-gather buffers"
            yield title, number, "counted" if name in STATE else "estimated"


def serving_rows(found: Plan) -> Iterator[Figure]:
    """Yield how fast the model reads and writes at most."""
    serving = found.serving
    if serving is None:
        devices = f"{found.workload.devices:,} of these devices"
        why = f"does not fit on {devices}" if found.can_cache else "none: the model keeps no cache"
        yield Figure("serving", why)
        return
    weights = f"weights: {fmt.size(serving.weight_bytes)}"
    yield Figure("devices per replica", f"{serving.devices:,}", "estimated", weights)
    is_measured = found.workload.hardware.evidence == "measured"
    by = "by measured rates: " if is_measured else ""
    alone = found.target_length is None
    behind = "the context" if alone else "a source and a target of the context"
    speeds = {
        "prefill": (serving.prefill_tokens_per_second, "one sequence" if alone else "one source"),
        "decode": (serving.decode_tokens_per_second, f"one sequence, after {behind}"),
        "decode, full batch": (
            serving.decode_tokens_per_second_at_largest_batch,
            f"{serving.largest_batch:,} sequences, the most whose caches fit",
        ),
    }
    for name, (speed, of) in speeds.items():
        if name == "prefill" or found.decodes:
            yield Figure(name, f"{fmt.count(speed)} tokens/s", "upper bound", by + of)


def part_rows(found: Plan) -> Iterator[tuple[str, ...]]:
    """Yield of each part its parameters, and its FLOPs per token forward and backward, with their shares."""
    total = sum(found.forward_flops.values())
    for part in dict.fromkeys([*found.counts.parts, *found.forward_flops]):
        number, flops = found.counts.parts.get(part, 0), found.forward_flops.get(part, 0.0)
        yield (
            part_title(part),
            fmt.count(number) if number else "-",
            fmt.percent(number / found.counts.total) if number else "-",
            fmt.flops(flops) if flops else "-",
            fmt.flops(BACKWARD * flops) if flops else "-",
            fmt.percent(flops / total) if flops else "-",
        )


ABOUT_PARTS = (
    "Parameters and FLOPs per token are counted; a backward pass takes twice a forward one."
)
ABOUT_STRATEGIES = (
    "Micro-batch: sequences of a data-parallel group at once, and how often in a step. Model states (weights, "
    "gradients, moments in 32 bits) are counted; activations and buffers, bytes sent and communication time are "
    "estimated."
)


def about_strategies(found: Plan) -> str:
    """Return what the columns of `STRATEGIES` are, and what keeps a strategy from fitting that has memory enough."""
    if all(found.why_not(way) != FEW_SEQUENCES for way in found.ways):
        return ABOUT_STRATEGIES
    number = "one" if found.texts == 1 else fmt.significant(found.texts)
    few = f"{FEW_SEQUENCES.capitalize()}: {number} a step, less than a micro-batch for each data-parallel group."
    return f"{ABOUT_STRATEGIES} {few}"


def strategy_rows(found: Plan) -> Iterator[tuple[Setup, tuple[str, ...]]]:
    """Yield each parallelism strategy in the columns of `STRATEGIES`, for the device with most memory in use."""
    for way in found.ways:
        memory, sent = way.memory, sum(way.exchange.values())
        state = memory.weights + memory.gradients + memory.optimizer
        yield (
            way,
            (
                way.split.name,
                way.checkpointing,
                f"{way.batch.micro:,} x {way.batch.number:,}",
                fmt.size(state),
                fmt.size(memory.total - state),
                fmt.size(memory.total),
                fmt.size(sent) if sent else "-",
                "-" if (seconds := found.exchange(way)) is None else fmt.duration(seconds),
                f"no: {why}" if (why := found.why_not(way)) else "yes",
            ),
        )


def side_by_side_rows(found: Mapping[str, Plan], rows: Sequence[Rows]) -> Iterator[list[str]]:
    """Yield a row for each label, with a cell for each model, and where its numbers come from."""
    columns = {name: [row for each in rows for row in each(plan)] for name, plan in found.items()}
    labels = _merged([row.label for row in column] for column in columns.values())
    by_label = {name: {row.label: row for row in column} for name, column in columns.items()}
    for label in labels:
        cells = [
            by_label[name].get(label) or by_label[name].get(SAME.get(label, ""), Figure(label, "-"))
            for name in found
        ]
        texts = [_brief(cell) for cell in cells]
        yield [label, *texts, next((cell.how for cell in cells if cell.how), "")]


def _brief(cell: Figure) -> str:
    """Return the words of a cell that has no room for its note but where this is the point."""
    return f"{cell.text}, {cell.note}" if cell.label == "fits" and cell.note else cell.text


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


def between(found: Range, text: Callable[[float], str]) -> str:
    """Return a range in words, or one number where both ends look alike."""
    ends = dict.fromkeys((text(found.least), text(found.most)))
    return " to ".join(ends)
