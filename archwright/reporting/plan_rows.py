"""Rows of a plan as text, shared by the terminal and the page."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from archwright import format as fmt
from archwright.catalogue.part_titles import MEMORY, part_title
from archwright.planning.cost import BACKWARD
from archwright.planning.plans import Plan, Range
from archwright.planning.search import larger_numbers
from archwright.planning.training_memory import Setup
from archwright.planning.workload import FEW_SEQUENCES

STATE = ("weights", "gradients", "optimizer")
"""Model states: parts of the memory that are counted, not estimated."""
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
    """Labelled number of a plan, as text."""

    label: str
    text: str
    how: str = ""
    """Basis of the number: given, counted, estimated, published, measured, upper bound or lower bound."""
    note: str = ""

    @property
    def remark(self) -> str:
        """Basis of the number, and the note."""
        return ", ".join(filter(None, (self.how, self.note)))


SAME = {"cache past windows": "cache per token"}
"""Label -> label of the number that replaces it. Models without the first number show the second, which is equal."""
Rows = Callable[[Plan], Iterator[Figure]]


def model_rows(plan: Plan) -> Iterator[Figure]:
    """Yield the counts of a model."""
    yield Figure("parameters", fmt.count(plan.counts.total), "counted")
    if plan.counts.active != plan.counts.total:
        yield Figure("active parameters", fmt.count(plan.counts.active), "counted", "of a token")
    yield Figure("context", f"{plan.context:,} tokens", "given")
    if plan.target_length is not None:
        text = f"{plan.target_length:,} tokens"
        yield Figure("target", text, "given", "for each source, in training")
    text = fmt.flops(plan.flops_per_token)
    yield Figure("FLOPs per token", text, plan.flops_evidence, "forward and backward")
    if not plan.writes:
        return
    per_token, later = plan.kv_cache_bytes_per_token, plan.cache_bytes_per_later_token
    has_windows = later != per_token
    note = f"in 16 bits{', while no window is full' if has_windows else ''}"
    yield Figure("cache per token", fmt.size(per_token), "counted", note)
    if has_windows:
        note = "of each further token when all windows are full"
        yield Figure("cache past windows", fmt.size(later), "counted", note)
    state = plan.state_bytes_per_text
    if state:
        note = "of a sequence of any length, recurrences in 32 bits"
        yield Figure("state", fmt.size(state), "counted", note)
    note = "in 16 bits, with the state" if state else "in 16 bits"
    yield Figure("cache per sequence", fmt.size(plan.cache_bytes_per_text), "counted", note)


def device_rows(plan: Plan) -> Iterator[Figure]:
    """Yield the specification of a device."""
    hardware, precision = plan.workload.hardware, plan.workload.precision
    basis = hardware.source if hardware.evidence == "measured" else hardware.evidence
    memory = fmt.size(hardware.memory_bytes)
    yield Figure("memory", memory, basis.partition(",")[0])
    yield Figure("memory bandwidth", f"{fmt.size(hardware.memory_bandwidth)}/s", basis)
    yield Figure("peak compute", fmt.rate(hardware.peak(precision)), basis, precision)
    if hardware.interconnect_bandwidth != "none":
        text, number = f"{fmt.size(hardware.interconnect_bandwidth)}/s", hardware.devices_per_server
        yield Figure(
            "interconnect bandwidth", text, basis, f"one way, inside a server of {number:,}"
        )
    if hardware.network_bandwidth != "none":
        text = f"{fmt.size(hardware.network_bandwidth)}/s"
        yield Figure("network bandwidth", text, basis, "one way, of a device to other servers")


def training_rows(plan: Plan) -> Iterator[Figure]:
    """Yield the costs of training."""
    work, training = plan.workload, plan.training
    least, most = (fmt.percent(share) for share in work.mfu)
    at = f"at {least} MFU" if least == most else f"at {most} to {least} MFU"
    if work.training_precision != work.precision:
        note = f"training in {work.precision} is not planned, only serving"
        yield Figure("precision", work.training_precision, "", note)
    steps = f"{fmt.exact(training.steps)} steps"
    yield Figure("tokens", fmt.count(training.tokens), "given", steps)
    yield Figure("FLOPs", fmt.flops(training.flops), plan.flops_evidence)
    peak = f"{work.hardware.evidence} peak compute"
    yield Figure("step at 100 % MFU", fmt.duration(training.bound), "lower bound", f"by {peak}")
    if training.exchange is not None:
        text = fmt.duration(training.exchange)
        yield Figure("communication time", text, "lower bound", "of a step, over the slower links")
    if training.links:
        yield Figure("bound by", *_bound_by(plan))
    if sizes := training.exchange_bytes:
        parts = ", ".join(f"{name} {fmt.size(size)}" for name, size in sizes.items())
        text = fmt.size(sum(sizes.values()))
        yield Figure("sent in a step", text, "estimated", f"by a device: {parts}")
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
        yield Figure("energy", text, "estimated", "of devices only, at full power")
    if training.cost is not None:
        text, price = between(training.cost, fmt.amount), f"at {work.price:g} an hour"
        yield Figure("price", text, "estimated", price)


def _bound_by(plan: Plan) -> tuple[str, str, str]:
    """Return what takes longest in a step: compute, or the links and what they carry."""
    training, setup = plan.training, plan.setup
    assert setup is not None
    texts, times = [], {"compute": training.compute}
    for name, seconds in training.links.items():
        kinds = [kind for kind, sent in setup.sent.items() if sent[name == "between servers"]]
        if seconds is None:
            key = "network" if name == "between servers" else "interconnect"
            took = f"unknown without hardware.{key}_bandwidth=BYTES"
        else:
            took, times[f"links {name}"] = fmt.duration(seconds), seconds
        texts.append(f"{name} {took} ({', '.join(kinds)})")
    is_known = None not in training.links.values()
    slowest = max(times, key=lambda name: times[name]) if is_known else "unknown"
    texts.append(f"compute {fmt.duration(training.compute)}")
    return slowest, "lower bound" if is_known else "", "; ".join(texts)


def memory_rows(plan: Plan) -> Iterator[Figure]:
    """Yield the fit, the setup and the memory per device of training."""
    setup = plan.setup or plan.smallest
    limit = plan.workload.hardware.memory_bytes
    yield Figure("fits", *_fit(plan))
    yield Figure(
        "parallelism",
        setup.split.name,
        "estimated",
        "the fastest that fits" if plan.setup else "least memory",
    )
    if setup.split.devices > 1:
        text, keys = _keys(setup)
        yield Figure("archwright train", text, "", keys)
    yield Figure("checkpointing", setup.checkpointing, "estimated", "of activations")
    how = "the largest that fits" if plan.workload.micro_batch is None else "as requested"
    yield Figure("micro-batch", _micro_batch(setup), "estimated", how if plan.setup else "")
    text = fmt.size(setup.memory.total)
    share = f"{fmt.percent(setup.memory.total / limit)} of {fmt.size(limit)}"
    yield Figure("memory on each device", text, "estimated", share)


def _keys(way: Setup) -> tuple[str, str]:
    """Return whether `archwright train` has a setup, and its keys."""
    if way.split.scale is None:
        return "no", "other trainers have such parallelism"
    keys = {f"scale.{name}": value for name, value in way.split.scale.items()}
    keys |= {"grad_accum_steps": way.batch.number} if way.batch.number > 1 else {}
    return "yes", " ".join(f"{name}={str(value).lower()}" for name, value in keys.items())


def _micro_batch(way: Setup) -> str:
    """Return the number of sequences per micro-batch and of micro-batches per step."""
    micro, number = way.batch.micro, way.batch.number
    sequences = f"{micro:,} sequence{'s' * (micro > 1)}"
    return f"{sequences}, {number:,} accumulated" if number > 1 else sequences


def _fit(plan: Plan) -> tuple[str, str, str]:
    if plan.setup is not None:
        return "yes", "estimated", ""
    groups, micro, texts = plan.smallest.split.ranks, plan.smallest.batch.micro, plan.workload.texts
    if groups * micro > texts:
        number = "one sequence" if texts == 1 else f"{texts:.0f} sequences"
        batch = "" if micro == 1 else f" with {micro:,} each"
        why = f"{groups} data-parallel groups{batch} for {number} a step; give a larger --batch"
    elif plan.fewest_devices is None:
        *_, most = (0, *larger_numbers(plan.workload.devices))
        why = f"nor on more devices with this batch, up to {most:,}" if most else ""
    else:
        why = f"but on {plan.fewest_devices:,} devices"
    return "no", "estimated", why


def memory_by_part(setup: Setup) -> Iterator[tuple[str, float, str]]:
    """Yield (title, bytes, basis) of each part of a device's memory."""
    for name, title in MEMORY.items():
        if number := float(getattr(setup.memory, name)):
            if name == "gathered" and setup.split.data == "fsdp":
                title = "FSDP all-gather buffers"
            yield title, number, "counted" if name in STATE else "estimated"


def serving_rows(plan: Plan) -> Iterator[Figure]:
    """Yield upper bounds of the speed of prefill and decode."""
    serving = plan.serving
    if serving is None:
        devices = f"{plan.workload.devices:,} of these devices"
        why = f"does not fit on {devices}" if plan.can_cache else "none: the model keeps no cache"
        yield Figure("serving", why)
        return
    weights = f"weights: {fmt.size(serving.weight_bytes)}"
    yield Figure("devices per replica", f"{serving.devices:,}", "estimated", weights)
    is_measured = plan.workload.hardware.evidence == "measured"
    by = "by measured rates: " if is_measured else ""
    alone = plan.target_length is None
    length = "the context" if alone else "a source and a target of the context"
    speeds = {
        "prefill": (serving.prefill_tokens_per_second, "one sequence" if alone else "one source"),
        "decode": (serving.decode_tokens_per_second, f"one sequence, after {length}"),
        "decode, full batch": (
            serving.decode_tokens_per_second_at_largest_batch,
            f"{serving.largest_batch:,} sequences, the largest batch that fits",
        ),
    }
    for name, (speed, of) in speeds.items():
        if name == "prefill" or plan.decodes:
            yield Figure(name, f"{fmt.count(speed)} tokens/s", "upper bound", by + of)


def part_rows(plan: Plan) -> Iterator[tuple[str, ...]]:
    """Yield the parameters and FLOPs per token of each part, with shares."""
    total = sum(plan.forward_flops.values())
    for part in dict.fromkeys([*plan.counts.parts, *plan.forward_flops]):
        number, flops = plan.counts.parts.get(part, 0), plan.forward_flops.get(part, 0.0)
        yield (
            part_title(part),
            fmt.count(number) if number else "-",
            fmt.percent(number / plan.counts.total) if number else "-",
            fmt.flops(flops) if flops else "-",
            fmt.flops(BACKWARD * flops) if flops else "-",
            fmt.percent(flops / total) if flops else "-",
        )


ABOUT_PARTS = (
    "Parameters and FLOPs per token are counted; a backward pass takes twice a forward pass."
)
ABOUT_STRATEGIES = (
    "Micro-batch: sequences per data-parallel group x micro-batches per step. Model states (weights, "
    "gradients, moments in 32 bits) are counted; activations and buffers, bytes sent and communication time are "
    "estimated."
)


def about_strategies(plan: Plan) -> str:
    """Describe the columns `STRATEGIES` and, if it occurs, a batch with less than one micro-batch per group."""
    if all(plan.workload.why_not(way) != FEW_SEQUENCES for way in plan.ways):
        return ABOUT_STRATEGIES
    number = "one" if plan.workload.texts == 1 else fmt.significant(plan.workload.texts)
    few = f"{FEW_SEQUENCES.capitalize()}: {number} a step, less than a micro-batch for each data-parallel group."
    return f"{ABOUT_STRATEGIES} {few}"


def strategy_rows(plan: Plan) -> Iterator[tuple[Setup, tuple[str, ...]]]:
    """Yield each setup and its cells for `STRATEGIES`. Memory is for the device that uses most."""
    for way in plan.ways:
        memory, sent = way.memory, sum(way.exchange.values())
        state = memory.weights + memory.gradients + memory.optimizer
        yield (
            way,
            (
                way.split.name + ("" if way.split.scale else " (other trainers)"),
                way.checkpointing,
                f"{way.batch.micro:,} x {way.batch.number:,}",
                fmt.size(state),
                fmt.size(memory.total - state),
                fmt.size(memory.total),
                fmt.size(sent) if sent else "-",
                "-" if (seconds := plan.workload.exchange(way)) is None else fmt.duration(seconds),
                f"no: {why}" if (why := plan.workload.why_not(way)) else "yes",
            ),
        )


def side_by_side_rows(plans: Mapping[str, Plan], rows: Sequence[Rows]) -> Iterator[list[str]]:
    """Yield a row for each label: a cell for each model, and the basis of the numbers."""
    columns = {name: [row for make in rows for row in make(plan)] for name, plan in plans.items()}
    labels = _merged([row.label for row in column] for column in columns.values())
    by_label = {name: {row.label: row for row in column} for name, column in columns.items()}
    for label in labels:
        cells = [
            by_label[name].get(label) or by_label[name].get(SAME.get(label, ""), Figure(label, "-"))
            for name in plans
        ]
        # Only `fits` includes its note.
        texts = [f"{c.text}, {c.note}" if c.label == "fits" and c.note else c.text for c in cells]
        yield [label, *texts, next((cell.how for cell in cells if cell.how), "")]


def _merged(columns: Iterable[Sequence[str]]) -> list[str]:
    """Merge the labels of all columns. A new label is inserted after its predecessor in its column."""
    merged: list[str] = []
    for labels in columns:
        at = 0
        for label in labels:
            if label not in merged:
                merged.insert(at, label)
            at = merged.index(label) + 1
    return merged


def between(span: Range, text: Callable[[float], str]) -> str:
    """Return a range as text, or one number if both look equal."""
    ends = dict.fromkeys((text(span.least), text(span.most)))
    return " to ".join(ends)
