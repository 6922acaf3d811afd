"""What a model costs, before anything is spent: counted from the model built without memory, and from there on
estimated."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from math import inf
from typing import Any

from archwright.catalogue.parameter_counts import Counts
from archwright.model.build import build
from archwright.planning.activations import CHECKPOINTING
from archwright.planning.cost import BACKWARD
from archwright.planning.counts import counted, forward_flops_by_part
from archwright.planning.memory import (
    cache_bytes,
    cache_bytes_per_later_token,
    cache_bytes_per_token,
)
from archwright.planning.micro_batch import share_of
from archwright.planning.roofline import PHASES, Operator, Phase, operators
from archwright.planning.rules_of_thumb import Suspicion, suspicions
from archwright.planning.serving import BYTES, Serving, serving
from archwright.planning.split import Split
from archwright.planning.splits import refuse_split, splits
from archwright.planning.stages import Needs
from archwright.planning.training_memory import USABLE, Setup, setup, setups_of
from archwright.planning.workload import Workload
from archwright.spec.errors import UserError
from archwright.spec.model_spec import ModelSpec
from archwright.spec.run_spec import RunSpec

MOST_ASKED = 2**17
"""Devices beyond which no way to train is looked for."""
MOST_BUBBLE = 1.0
"""Most time that stages of a pipeline may wait, over the time that they compute."""
FEW_SEQUENCES = "few sequences"
"""Why a way to train does not fit whose groups of devices have no micro-batch each in a step."""
EVIDENCE = {
    **dict.fromkeys(
        ("name", "devices", "precision", "training_precision", "context", "target_length"), "given"
    ),
    **dict.fromkeys(
        ("parameters", "active_parameters", "parameters_by_part", "flops_per_token"), "counted"
    ),
    **dict.fromkeys(("forward_flops_per_token_by_part", "training_flops"), "counted"),
    **dict.fromkeys(("kv_cache_bytes_per_token", "kv_cache_bytes_per_later_token"), "counted"),
    "cache_bytes_per_text": "counted",
    **dict.fromkeys(("fits", "fewest_devices", "split", "checkpointing"), "estimated"),
    **dict.fromkeys(("micro_batch", "micro_batches", "training_memory_bytes"), "estimated"),
    "training_memory_bytes_by_part": "weights, gradients, optimizer: counted; others: estimated",
    "ways": "estimated",
    "training": "estimated",
    "serving": "upper bound",
    "suspicions": "rules of thumb",
    "operators": "counted or estimated, as each says",
}
"""How each number of a record was found: given, counted from the built model, or estimated from what is counted and
from the speeds of the hardware."""
TIMES = ("training", "serving")
"""Keys whose numbers follow from speeds."""


@dataclass(frozen=True)
class Range:
    """The least and the most of a number."""

    least: float
    most: float

    def times(self, factor: float) -> "Range":
        """Return both times a factor."""
        return Range(self.least * factor, self.most * factor)


@dataclass(frozen=True)
class Training:
    """What a training takes."""

    tokens: float
    flops: float
    """FLOPs of the whole training, without those that are computed again."""
    steps: float
    bound: float
    """Seconds of a step at the peak."""
    exchange: float | None
    """Seconds of a step in which a device sends what others need, if all links are full, as inside one server; None:
    one device, no way to train, or no published link."""
    exchange_bytes: dict[str, float]
    """Bytes that a device sends in a step, by what they are exchanged for."""
    bubble: float
    """Time that stages of a pipeline wait for each other, over the time that they compute."""
    step: Range
    """Seconds of a step at the stated utilisation."""
    device_hours: Range
    days: Range
    energy: Range | None
    """kWh of the devices alone at full power; None: no published power."""
    cost: Range | None
    """In the currency of the price; None: no price is given."""


@dataclass(frozen=True)
class Plan:
    """What a model costs on some devices."""

    name: str
    workload: Workload
    context: int
    target_length: int | None
    """Tokens that the decoder of two stacks reads in training beside a source of the context; None: one stack."""
    counts: Counts
    forward_flops: dict[str, float]
    """FLOPs of a forward pass on a token, by part; a backward pass takes twice as many."""
    flops_evidence: str
    """Evidence of FLOPs: counted, or an upper bound."""
    kv_cache_bytes_per_token: int
    """Bytes that another token takes in 16 bits, before any window ends."""
    cache_bytes_per_later_token: int
    """Bytes that another token takes in 16 bits when all windows are full."""
    cache_bytes_per_text: int
    """Bytes that a text of the context takes in 16 bits."""
    setup: Setup | None
    """The first way to train that fits; None: none does."""
    sends_more: Setup | None
    """The same one with less computed again, which fits in smaller micro-batches, that send more; None: it does not."""
    ways: tuple[Setup, ...]
    """One way to train of each sort: the first that fits, or else the one that takes least memory."""
    smallest: Setup
    """The way to train that takes least memory on each device, with its micro-batch."""
    fewest_devices: int | None
    """The fewest devices, the stated number doubled, on which some way fits; None: not even very many."""
    training: Training
    serving: Serving | None
    """None: the model keeps no cache, or does not fit."""
    can_cache: bool
    decodes: bool
    """Whether the objective teaches to go on with a text, as the decode of `serving` does; BERT's does not."""
    suspicions: tuple[Suspicion, ...]
    """Numbers that are unusual by rules of thumb, the strongest evidence first."""
    operators: dict[Phase, list[Operator]]
    """What each part computes and moves for one text of the context, or for its last token behind the cached others; of
    two stacks in training for a source and its target, and in prefill for a source and the first token of a text. None
    of decode where the objective teaches none."""

    @property
    def flops_per_token(self) -> float:
        """FLOPs of training on one token, forward and backward."""
        return (1 + BACKWARD) * sum(self.forward_flops.values())

    @property
    def memory(self) -> float:
        """Bytes that a device may be filled with."""
        return USABLE * self.workload.hardware.memory_bytes

    @property
    def writes(self) -> bool:
        """Whether the model goes on with texts behind a cache."""
        return self.can_cache and self.decodes

    @property
    def texts(self) -> float:
        """Texts of a step of training."""
        return self.workload.batch_tokens / self.context

    def fits(self, way: Setup) -> bool:
        """Tell whether a way to train fits."""
        return fits(way, self.workload, self.texts)

    def why_not(self, way: Setup) -> str:
        """Say why a way to train does not fit; empty where it does."""
        return why_not(way, self.workload, self.texts)

    def exchange(self, way: Setup) -> float | None:
        """Return the seconds of a step in which a device sends at full links, if anything is sent."""
        return _seconds_on_links(self.workload, way)

    @property
    def evidence(self) -> dict[str, str]:
        """How each number of a record was found: times follow from speeds that are published, or were measured."""
        known = self.workload.hardware.evidence
        flops = dict.fromkeys((key for key in EVIDENCE if "flops" in key), self.flops_evidence)
        found = EVIDENCE | flops | {"hardware": known}
        if known == "measured":
            found |= {key: f"{found[key]} from measured rates" for key in TIMES}
        return found

    def record(self) -> dict[str, Any]:
        """Return all numbers as plain data."""
        memory = (self.setup or self.smallest).memory
        return {
            "name": self.name,
            "hardware": self.workload.hardware.name,
            "devices": self.workload.devices,
            "precision": self.workload.precision,
            "context": self.context,
            "target_length": self.target_length,
            "parameters": self.counts.total,
            "active_parameters": self.counts.active,
            "parameters_by_part": self.counts.parts,
            "flops_per_token": self.flops_per_token,
            "forward_flops_per_token_by_part": self.forward_flops,
            "kv_cache_bytes_per_token": self.kv_cache_bytes_per_token if self.writes else None,
            "kv_cache_bytes_per_later_token": self.cache_bytes_per_later_token
            if self.writes
            else None,
            "cache_bytes_per_text": self.cache_bytes_per_text if self.writes else None,
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
            "suspicions": [each.record() for each in self.suspicions],
            "operators": {
                phase: None
                if (found := self.operators.get(phase)) is None
                else {each.name: each.record() for each in found}
                for phase in PHASES
            },
            "evidence": self.evidence,
        }

    def _record_of_serving(self, serving: Serving) -> dict[str, Any]:
        found = asdict(serving)
        if not self.decodes:
            found |= dict.fromkeys(("largest_batch", *(key for key in found if "decode" in key)))
            found["by_batch"] = ()
            found["by_context"] = [
                (tokens, prefill, None) for tokens, prefill, _ in serving.by_context
            ]
        return found

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
    """Return what the model of a run costs.

    Raises:
        UserError: a model that breaks rules, a context that its positions forbid, a batch without a whole text, or a
            micro-batch beyond it.
    """
    spec = run.model
    context = work.context or spec.context_length
    refuse_positions(spec, context)
    model = build(spec, device="meta")
    target_length = None
    if spec.encoder_model is not None:
        target_length = run.objective.target_length(context)
    counts, forward = counted(model), forward_flops_by_part(model, context, target_length)
    if work.split is not None:
        refuse_split(work.split, model, context)
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
    """Refuse a context beyond the last position.

    Raises:
        UserError: that it is.
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
    """Return the work with a whole text of the context in each step, or refuse it."""
    if work.batch_tokens >= context:
        return work
    if work.batch is not None:
        raise UserError(f'batch: found "{work.batch}"; expected at least the context, {context:,}')
    return replace(work, batch_tokens=float(context))


def _first_by_sort(ways: list[Setup], work: Workload, texts: float) -> tuple[Setup, ...]:
    """Return one way to train of each sort, in order: those whose splits share the same things."""
    sorts: dict[tuple[str, ...], list[Setup]] = {}
    for way in ways:
        sorts.setdefault((way.split.data, *way.split.axes), []).append(way)
    return tuple(
        next(
            (way for way in each if fits(way, work, texts)),
            min(each, key=lambda way: way.memory.total),
        )
        for each in sorts.values()
    )


def fits(way: Setup, work: Workload, texts: float) -> bool:
    """True if `why_not` gives no reason."""
    return not why_not(way, work, texts)


def why_not(way: Setup, work: Workload, texts: float) -> str:
    """Say why a way to train does not fit; empty where it does."""
    if way.split.ranks * way.batch.micro > texts:
        return FEW_SEQUENCES
    if way.memory.total > USABLE * work.hardware.memory_bytes:
        return "memory"
    return "pipeline bubble" if way.bubble > MOST_BUBBLE and work.split is None else ""


def _spares(way: Setup, chosen: Setup, work: Workload, texts: float) -> bool:
    """Tell whether a way fits, and computes less again than the one that was chosen of the same split."""
    less = CHECKPOINTING.index(way.checkpointing) < CHECKPOINTING.index(chosen.checkpointing)
    return way.split == chosen.split and less and fits(way, work, texts)


def _ways(needs: Needs, work: Workload, texts: float, per_token: float) -> Iterator[Setup]:
    """Yield the ways to train by split; of one split, fitting and quick ones first."""
    memory = USABLE * work.hardware.memory_bytes
    computing = per_token * work.batch_tokens / work.training_peak

    def seconds(way: Setup) -> float:
        if not fits(way, work, texts):
            return inf
        again = 1 / (1 + BACKWARD) if way.checkpointing == "full" else 0.0
        sent = _seconds_on_links(work, way) or 0.0
        return max(computing * (1 + again) * (1 + way.bubble), sent)

    for split in _splits(needs, work, work.devices):
        yield from sorted(setups_of(needs, split, texts, memory, work.micro_batch), key=seconds)


def _splits(needs: Needs, work: Workload, devices: int) -> Iterator[Split]:
    """Yield the ways to split over so many devices: all, or the one that is asked for."""
    if work.split is None:
        yield from splits(devices, needs.degrees)
    else:
        yield replace(work.split, devices=devices)


def _refuse_micro_batch(needs: Needs, work: Workload, texts: float) -> None:
    """Refuse a micro-batch beyond the texts of a group of devices."""
    most = max(share_of(texts, split) for split in _splits(needs, work, work.devices))
    if work.micro_batch is not None and work.micro_batch > most:
        raise UserError(
            f"micro-batch: found {work.micro_batch:,}; expected at most {int(most):,}, the sequences of a step for a "
            "group of devices"
        )


def _fewest(needs: Needs, work: Workload, texts: float) -> int | None:
    """Return the stated number of devices, doubled until some way to train fits."""
    micro = work.micro_batch or 1
    for devices in larger_numbers(work.devices):
        for split in _splits(needs, work, devices):
            found = (setup(needs, split, again, texts, micro) for again in CHECKPOINTING)
            if any(fits(way, work, texts) for way in found):
                return devices
    return None


def larger_numbers(devices: int) -> Iterator[int]:
    """Yield the numbers of devices on which a way to train is looked for where none fits: each twice the last."""
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
    """Return the seconds in which a device sends what it does in a step; None where nothing is, or no link is known."""
    links = work.hardware.interconnect_bandwidth
    if links == "none" or not setup.exchange:
        return None
    return sum(setup.exchange.values()) / links
