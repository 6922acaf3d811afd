"""Costs of a model before training, counted on the meta device or estimated from counts."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from math import inf
from typing import Any

from archwright.catalogue.parameter_counts import Counts
from archwright.format import flops, parameters, size
from archwright.model.build import build
from archwright.planning.activations import CHECKPOINTING
from archwright.planning.cost import BACKWARD
from archwright.planning.counts import counted, forward_flops_by_part
from archwright.planning.memory import (
    cache_bytes,
    cache_bytes_per_later_token,
    cache_bytes_per_token,
)
from archwright.planning.roofline import PHASES, Operator, Phase, operators
from archwright.planning.rules_of_thumb import Suspicion, suspicions
from archwright.planning.serving import BYTES, Serving, serving
from archwright.planning.split import Split, problems, splits
from archwright.planning.stages import Needs
from archwright.planning.training_memory import USABLE, Setup, TrainingMemory, setup
from archwright.planning.workload import Workload
from archwright.spec.errors import UserError
from archwright.spec.model_spec import ModelSpec
from archwright.spec.run_spec import RunSpec

MOST_ASKED = 2**17
"""Largest number of devices in the search for a setup that fits."""
MOST_BUBBLE = 1.0
"""Largest pipeline bubble: idle time over compute time."""
FEW_SEQUENCES = "few sequences"
"""Reason if a step has fewer micro-batches than groups of devices."""
EVIDENCE = {
    **dict.fromkeys(
        ("name", "devices", "precision", "training_precision", "context", "target_length"), "given"
    ),
    **dict.fromkeys(
        ("parameters", "active_parameters", "parameters_by_part", "flops_per_token"), "counted"
    ),
    **dict.fromkeys(("forward_flops_per_token_by_part", "training_flops"), "counted"),
    **dict.fromkeys(("kv_cache_bytes_per_token", "kv_cache_bytes_per_later_token"), "counted"),
    **dict.fromkeys(("cache_bytes_per_text", "state_bytes_per_text"), "counted"),
    **dict.fromkeys(("fits", "fewest_devices", "split", "checkpointing"), "estimated"),
    **dict.fromkeys(("micro_batch", "micro_batches", "training_memory_bytes"), "estimated"),
    "training_memory_bytes_by_part": "weights, gradients, optimizer: counted; others: estimated",
    "ways": "estimated",
    "training": "estimated",
    "serving": "upper bound",
    "suspicions": "rules of thumb",
    "operators": "counted or estimated, as each says",
}
"""Evidence of each number of a record: given, counted from the built model, or estimated from counts and the speeds of
the hardware."""
TIMES = ("training", "serving")
"""Keys of a record with numbers derived from hardware speeds."""


@dataclass(frozen=True)
class Range:
    """Smallest and largest value of a number."""

    least: float
    most: float

    def times(self, factor: float) -> "Range":
        """Multiply both ends by a factor."""
        return Range(self.least * factor, self.most * factor)


@dataclass(frozen=True)
class Training:
    """Cost of a training run."""

    tokens: float
    flops: float
    """FLOPs of the run, without recomputation."""
    steps: float
    bound: float
    """Seconds per step at peak FLOP/s."""
    exchange: float | None
    """Seconds of communication per step at full bandwidth, as within one server; None: one device, no setup that fits,
    or no published bandwidth."""
    exchange_bytes: dict[str, float]
    """Bytes sent per device and step, by kind of parallelism."""
    bubble: float
    """Idle time of pipeline stages over compute time."""
    step: Range
    """Seconds per step at the stated utilisation."""
    device_hours: Range
    days: Range
    energy: Range | None
    """kWh of the devices at full power; None: no published power."""
    cost: Range | None
    """Cost in the currency of the price; None: no price."""


@dataclass(frozen=True)
class Plan:
    """Costs of a model on some devices."""

    name: str
    workload: Workload
    context: int
    target_length: int | None
    """Decoder tokens in training of an encoder-decoder with a source of the context length; None: no encoder."""
    counts: Counts
    forward_flops: dict[str, float]
    """Forward FLOPs per token by part; the backward pass takes twice these FLOPs."""
    flops_evidence: str
    """Evidence of FLOPs: counted, or an upper bound."""
    kv_cache_bytes_per_token: int
    """Cache bytes of one more token in 16 bits, before any window is full."""
    cache_bytes_per_later_token: int
    """Cache bytes of one more token in 16 bits when all windows are full."""
    cache_bytes_per_text: int
    """Cache bytes of a sequence of the context length in 16 bits, with its state."""
    state_bytes_per_text: int
    """Bytes of a sequence's state, which has one size for all lengths: recurrences in 32 bits."""
    setup: Setup | None
    """The first setup that fits; None: none fits."""
    sends_more: Setup | None
    """`setup` with less recomputation, if it fits with smaller micro-batches, which send more; else None."""
    ways: tuple[Setup, ...]
    """One setup per combination of parallelism: the first that fits, or the one with least memory."""
    smallest: Setup
    """The setup with least memory per device."""
    fewest_devices: int | None
    """Fewest devices with a setup that fits: the stated number, doubled if necessary; None above `MOST_ASKED`."""
    training: Training
    serving: Serving | None
    """None: the model keeps no cache, or does not fit."""
    can_cache: bool
    decodes: bool
    """True if the objective is causal, as the decode speeds of `serving` require; False for BERT."""
    suspicions: tuple[Suspicion, ...]
    """Numbers outside rules of thumb, strongest evidence first."""
    operators: dict[Phase, list[Operator]]
    """FLOPs and bytes of each part, per sequence of the context length, or per last token in decode with a cache.

    With an encoder, training has a source and a target, and prefill has a source and the first target token. Without
    a causal objective, decode is absent."""

    @property
    def parameters(self) -> int:
        """Parameters; a tied table counts once."""
        return self.counts.total

    @property
    def training_memory(self) -> TrainingMemory:
        """Bytes per device by part, of the first setup that fits, or of the smallest."""
        return (self.setup or self.smallest).memory

    @property
    def flops_per_token(self) -> float:
        """Training FLOPs per token, forward and backward."""
        return (1 + BACKWARD) * sum(self.forward_flops.values())

    @property
    def memory(self) -> float:
        """Usable bytes per device."""
        return USABLE * self.workload.hardware.memory_bytes

    @property
    def writes(self) -> bool:
        """True if the model decodes with a cache."""
        return self.can_cache and self.decodes

    @property
    def texts(self) -> float:
        """Sequences per training step."""
        return self.workload.batch_tokens / self.context

    def __repr__(self) -> str:
        where = f"{self.workload.devices} {self.workload.hardware.name}"
        return (
            f"Plan({self.name}: {parameters(self.parameters)} parameters, {flops(self.flops_per_token)} FLOPs per "
            f"token, {size(self.training_memory.total)} per device; {'fits' if self.setup else 'does not fit'} {where})"
        )

    def fits(self, way: Setup) -> bool:
        """True if a setup fits."""
        return fits(way, self.workload, self.texts)

    def why_not(self, way: Setup) -> str:
        """Return the reason why a setup does not fit; empty if it fits."""
        return why_not(way, self.workload, self.texts)

    def exchange(self, way: Setup) -> float | None:
        """Return the seconds of communication per step at full bandwidth, if any."""
        return _seconds_on_links(self.workload, way)

    @property
    def evidence(self) -> dict[str, str]:
        """Evidence of each number of a record; times depend on published or measured speeds."""
        rates = self.workload.hardware.evidence
        flops = dict.fromkeys((key for key in EVIDENCE if "flops" in key), self.flops_evidence)
        evidence = EVIDENCE | flops | {"hardware": rates}
        if rates == "measured":
            evidence |= {key: f"{evidence[key]} from measured rates" for key in TIMES}
        return evidence

    def record(self) -> dict[str, Any]:
        """Return all numbers as plain data."""
        memory = self.training_memory
        return {
            "name": self.name,
            "hardware": self.workload.hardware.name,
            "devices": self.workload.devices,
            "precision": self.workload.precision,
            "context": self.context,
            "target_length": self.target_length,
            "parameters": self.parameters,
            "active_parameters": self.counts.active,
            "parameters_by_part": self.counts.parts,
            "flops_per_token": self.flops_per_token,
            "forward_flops_per_token_by_part": self.forward_flops,
            "kv_cache_bytes_per_token": self.kv_cache_bytes_per_token if self.writes else None,
            "kv_cache_bytes_per_later_token": self.cache_bytes_per_later_token
            if self.writes
            else None,
            "cache_bytes_per_text": self.cache_bytes_per_text if self.writes else None,
            "state_bytes_per_text": self.state_bytes_per_text if self.writes else None,
            "training_flops": self.training.flops,
            "training_precision": self.workload.training_precision,
            "fits": self.setup is not None,
            "fewest_devices": self.fewest_devices,
            "split": (self.setup or self.smallest).split.name,
            "checkpointing": (self.setup or self.smallest).checkpointing,
            "micro_batch": (self.setup or self.smallest).batch.micro,
            "micro_batches": (self.setup or self.smallest).batch.number,
            "training_memory_bytes": memory.total,
            "training_memory_bytes_by_part": asdict(memory),
            "ways": [self._record_of_way(way) for way in self.ways],
            "training": asdict(self.training),
            "serving": None if self.serving is None else self._record_of_serving(self.serving),
            "suspicions": [suspicion.record() for suspicion in self.suspicions],
            "operators": {
                phase: None
                if (parts := self.operators.get(phase)) is None
                else {operator.name: operator.record() for operator in parts}
                for phase in PHASES
            },
            "evidence": self.evidence,
        }

    def _record_of_serving(self, serving: Serving) -> dict[str, Any]:
        record = asdict(serving)
        if not self.decodes:
            record |= dict.fromkeys(("largest_batch", *(key for key in record if "decode" in key)))
            record["by_batch"] = ()
            record["by_context"] = [
                (tokens, prefill, None) for tokens, prefill, _ in serving.by_context
            ]
        return record

    def _record_of_way(self, way: Setup) -> dict[str, Any]:
        return {
            "split": way.split.name,
            **{key: value for key, value in asdict(way.split).items() if key != "devices"},
            "checkpointing": way.checkpointing,
            "micro_batch": way.batch.micro,
            "micro_batches": way.batch.number,
            "layers": way.layers,
            "memory_bytes": way.memory.total,
            "memory_bytes_by_part": asdict(way.memory),
            "exchange_bytes": way.exchange,
            "exchange": self.exchange(way),
            "bubble": way.bubble,
            "fits": self.fits(way),
            "why_not": self.why_not(way) or None,
        }


def plan(run: RunSpec, work: Workload) -> Plan:
    """Plan the training and serving of a run's model.

    Raises:
        UserError: a model that breaks rules, a context longer than its positions, a batch shorter than one sequence,
            or a micro-batch larger than the batch.
    """
    spec = run.model
    context = work.context or spec.context_length
    refuse_positions(spec, context)
    model = build(spec, device="meta")
    target_length = None
    if spec.encoder_model is not None:
        target_length = run.objective.target_length(context)
    counts, forward = counted(model), forward_flops_by_part(model, context, target_length)
    if work.split is not None and (lines := [*problems(work.split, model, context)]):
        raise UserError(*lines)
    work = _with_a_text(work, context)
    needs, texts = Needs(run, model, context), work.batch_tokens / context
    _refuse_micro_batch(needs, work, texts)
    per_token = (1 + BACKWARD) * sum(forward.values())
    ways = [*_ways(needs, work, texts, per_token)]
    fitting = next((way for way in ways if fits(way, work, texts)), None)
    smallest = min(ways, key=lambda way: way.memory.total)
    return Plan(
        name=spec.name,
        workload=work,
        context=context,
        target_length=target_length,
        counts=counts,
        forward_flops=forward,
        flops_evidence=run.flops_evidence,
        kv_cache_bytes_per_token=cache_bytes_per_token(model),
        cache_bytes_per_later_token=cache_bytes_per_later_token(model),
        cache_bytes_per_text=cache_bytes(model, context),
        state_bytes_per_text=cache_bytes(model, 0),
        setup=fitting,
        sends_more=next(
            (way for way in ways if fitting and _spares(way, fitting, work, texts)), None
        ),
        ways=_first_by_sort(ways, work, texts),
        smallest=smallest,
        fewest_devices=work.devices if fitting else _fewest(needs, work, texts),
        training=_training(work, counts, per_token, fitting),
        can_cache=model.can_cache,
        decodes=run.objective.causal,
        serving=serving(model, work.hardware, context, work.precision, work.devices),
        suspicions=tuple(suspicions(run, model, _tokens(work, counts))),
        operators={
            phase: operators(
                model,
                phase,
                texts=1,
                length=context,
                target_length=target_length,
                itemsize=BYTES[work.precision],
                run=run,
                updates=1 / texts,
            )
            for phase in PHASES
            if (phase != "decode" or (run.objective.causal and model.can_cache))
            and (phase != "training" or work.training_precision == work.precision)
        },
    )


def refuse_positions(spec: ModelSpec, context: int) -> None:
    """Check that a model has positions for a context.

    Raises:
        UserError: the context is longer than the positions.
    """
    beside = (spec.encoder_model, spec.generator_model)
    for stack in (spec, *(stack for stack in beside if stack is not None)):
        ends = {k.position.kind for k in stack.layers_by_kind.values() if k.position.ends}
        if ends and context > stack.context_length:
            raise UserError(
                f"context: found {context}; expected at most {stack.context_length}, where the "
                f"{ends.pop()} positions of {spec.name or 'the model'} end"
            )


def _with_a_text(work: Workload, context: int) -> Workload:
    """Return the work with at least one sequence per step. Raise a UserError if the user chose less."""
    if work.batch_tokens >= context:
        return work
    if work.batch is not None:
        raise UserError(f'batch: found "{work.batch}"; expected at least the context, {context:,}')
    return replace(work, batch_tokens=float(context))


def _first_by_sort(ways: list[Setup], work: Workload, texts: float) -> tuple[Setup, ...]:
    """Return one setup per combination of parallelism, in order."""
    sorts: dict[tuple[str, ...], list[Setup]] = {}
    for way in ways:
        sorts.setdefault((way.split.data, *way.split.axes), []).append(way)
    return tuple(
        next(
            (way for way in group if fits(way, work, texts)),
            min(group, key=lambda way: way.memory.total),
        )
        for group in sorts.values()
    )


def fits(way: Setup, work: Workload, texts: float) -> bool:
    """True if `why_not` returns no reason."""
    return not why_not(way, work, texts)


def why_not(way: Setup, work: Workload, texts: float) -> str:
    """Return the reason why a setup does not fit; empty if it fits."""
    if way.split.ranks * way.batch.micro > texts:
        return FEW_SEQUENCES
    if way.memory.total > USABLE * work.hardware.memory_bytes:
        return "memory"
    return "pipeline bubble" if way.bubble > MOST_BUBBLE and work.split is None else ""


def _spares(way: Setup, chosen: Setup, work: Workload, texts: float) -> bool:
    """True if a setup fits and recomputes less than `chosen` with the same split."""
    less = CHECKPOINTING.index(way.checkpointing) < CHECKPOINTING.index(chosen.checkpointing)
    return way.split == chosen.split and less and fits(way, work, texts)


def _ways(needs: Needs, work: Workload, texts: float, per_token: float) -> Iterator[Setup]:
    """Yield setups by split, and within a split by estimated time, fitting ones first."""
    memory = USABLE * work.hardware.memory_bytes
    computing = per_token * work.batch_tokens / work.training_peak

    def seconds(way: Setup) -> float:
        if not fits(way, work, texts):
            return inf
        again = 1 / (1 + BACKWARD) if way.checkpointing == "full" else 0.0
        sent = _seconds_on_links(work, way) or 0.0
        return max(computing * (1 + again) * (1 + way.bubble), sent)

    for split in _splits(needs, work, work.devices):
        ways = (
            setup(needs, split, again, texts, work.micro_batch, memory) for again in CHECKPOINTING
        )
        yield from sorted(ways, key=seconds)


def _splits(needs: Needs, work: Workload, devices: int) -> Iterator[Split]:
    """Yield the possible splits over `devices`, or only the requested split."""
    if work.split is None:
        yield from splits(devices, needs.degrees)
    else:
        yield replace(work.split, devices=devices)


def _refuse_micro_batch(needs: Needs, work: Workload, texts: float) -> None:
    """Raise a UserError if a micro-batch exceeds the sequences of a group of devices."""
    most = max(split.share_of(texts) for split in _splits(needs, work, work.devices))
    if work.micro_batch is not None and work.micro_batch > most:
        raise UserError(
            f"micro-batch: found {work.micro_batch:,}; expected at most {int(most):,}, the sequences of a step for a "
            "group of devices"
        )


def _fewest(needs: Needs, work: Workload, texts: float) -> int | None:
    """Return the number of devices, doubled until a setup fits; None above `MOST_ASKED`."""
    micro = work.micro_batch or 1
    for devices in larger_numbers(work.devices):
        for split in _splits(needs, work, devices):
            ways = (setup(needs, split, again, texts, micro) for again in CHECKPOINTING)
            if any(fits(way, work, texts) for way in ways):
                return devices
    return None


def larger_numbers(devices: int) -> Iterator[int]:
    """Yield larger numbers of devices to try, doubling up to `MOST_ASKED`."""
    while 2 * devices <= MOST_ASKED:
        devices *= 2
        yield devices


def _tokens(work: Workload, counts: Counts) -> float:
    return work.tokens * (counts.total if work.per_parameter else 1)


def _training(work: Workload, counts: Counts, per_token: float, setup: Setup | None) -> Training:
    tokens = _tokens(work, counts)
    peak, flops = work.training_peak, per_token * tokens
    bound = per_token * work.batch_tokens / peak
    seconds = Range(flops / peak / work.mfu[1], flops / peak / work.mfu[0])
    device_hours = seconds.times(work.devices / 3600)
    power = work.hardware.power
    return Training(
        tokens=tokens,
        flops=flops,
        steps=tokens / work.batch_tokens,
        bound=bound,
        exchange=None if setup is None else _seconds_on_links(work, setup),
        exchange_bytes={} if setup is None else setup.exchange,
        bubble=0.0 if setup is None else setup.bubble,
        step=Range(bound / work.mfu[1], bound / work.mfu[0]),
        device_hours=device_hours,
        days=seconds.times(1 / 86400),
        energy=None if power == "none" else device_hours.times(power / 1000),
        cost=None if work.price is None else device_hours.times(work.price),
    )


def _seconds_on_links(work: Workload, setup: Setup) -> float | None:
    """Return the seconds of communication per step. Return None without communication or a known bandwidth."""
    links = work.hardware.interconnect_bandwidth
    if links == "none" or not setup.exchange:
        return None
    return sum(setup.exchange.values()) / links
