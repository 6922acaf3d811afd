"""Costs of a model before training, counted on the meta device or estimated from counts."""

from dataclasses import asdict, dataclass, replace
from typing import Any

from archwright.catalogue.parameter_counts import Counts
from archwright.format import flops, parameters, size
from archwright.model.build import build
from archwright.planning.cost import BACKWARD, counted, forward_flops_by_part
from archwright.planning.memory import (
    cache_bytes,
    cache_bytes_per_later_token,
    cache_bytes_per_token,
)
from archwright.planning.roofline import PHASES, Operator, Phase, operators
from archwright.planning.rules_of_thumb import Suspicion, suspicions
from archwright.planning.search import fastest, fastest_by_sort, fewest, spares, ways
from archwright.planning.serving import BYTES, Serving, serving
from archwright.planning.split import problems
from archwright.planning.stages import Needs
from archwright.planning.training_memory import Setup, TrainingMemory
from archwright.planning.workload import Workload
from archwright.spec.errors import UserError
from archwright.spec.model_spec import ModelSpec
from archwright.spec.run_spec import RunSpec

EVIDENCE = {
    key: how
    for keys, how in (
        ("name devices precision training_precision context target_length", "given"),
        ("parameters active_parameters parameters_by_part flops_per_token", "counted"),
        ("forward_flops_per_token_by_part training_flops kv_cache_bytes_per_token", "counted"),
        ("kv_cache_bytes_per_later_token cache_bytes_per_text state_bytes_per_text", "counted"),
        ("fits fewest_devices split checkpointing", "estimated"),
        ("micro_batch micro_batches training_memory_bytes", "estimated"),
        (
            "training_memory_bytes_by_part",
            "weights, gradients, optimizer: counted; others: estimated",
        ),
        ("ways training", "estimated"),
        ("serving", "upper bound"),
        ("suspicions", "rules of thumb"),
        ("operators", "counted or estimated, as each says"),
    )
    for key in keys.split()
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
    """Seconds of communication per step at full bandwidth, of the slower links; None: one device, no setup that fits,
    or no published bandwidth."""
    exchange_bytes: dict[str, float]
    """Bytes sent per device and step, by kind of parallelism."""
    links: dict[str, float | None]
    """Seconds of communication per step by links: inside servers, between servers; None: unknown bandwidth."""
    compute: float
    """Seconds per step of a device at peak FLOP/s, with recomputation and pipeline bubble."""
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
    """The first setup that fits with about the shortest time of a step; None: none fits."""
    sends_more: Setup | None
    """`setup` with less recomputation, if it fits with smaller micro-batches, which send more; else None."""
    ways: tuple[Setup, ...]
    """One setup per combination of parallelism: the fastest that fits, or the one with least memory."""
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
        """Bytes per device by part, of the chosen setup, or of the smallest."""
        return (self.setup or self.smallest).memory

    @property
    def flops_per_token(self) -> float:
        """Training FLOPs per token, forward and backward."""
        return (1 + BACKWARD) * sum(self.forward_flops.values())

    @property
    def writes(self) -> bool:
        """True if the model decodes with a cache."""
        return self.can_cache and self.decodes

    def __repr__(self) -> str:
        where = f"{self.workload.devices} {self.workload.hardware.name}"
        return (
            f"Plan({self.name}: {parameters(self.parameters)} parameters, {flops(self.flops_per_token)} FLOPs per "
            f"token, {size(self.training_memory.total)} per device; {'fits' if self.setup else 'does not fit'} {where})"
        )

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
        work, setup = self.workload, self.setup or self.smallest
        caches = {
            "kv_cache_bytes_per_token": self.kv_cache_bytes_per_token,
            "kv_cache_bytes_per_later_token": self.cache_bytes_per_later_token,
            "cache_bytes_per_text": self.cache_bytes_per_text,
            "state_bytes_per_text": self.state_bytes_per_text,
        }
        return {
            "name": self.name,
            "hardware": work.hardware.name,
            "devices": work.devices,
            "precision": work.precision,
            "context": self.context,
            "target_length": self.target_length,
            "parameters": self.parameters,
            "active_parameters": self.counts.active,
            "parameters_by_part": self.counts.parts,
            "flops_per_token": self.flops_per_token,
            "forward_flops_per_token_by_part": self.forward_flops,
            **(caches if self.writes else dict.fromkeys(caches)),
            "training_flops": self.training.flops,
            "training_precision": work.training_precision,
            "fits": self.setup is not None,
            "fewest_devices": self.fewest_devices,
            "split": setup.split.name,
            "checkpointing": setup.checkpointing,
            "micro_batch": setup.batch.micro,
            "micro_batches": setup.batch.number,
            "training_memory_bytes": setup.memory.total,
            "training_memory_bytes_by_part": asdict(setup.memory),
            "ways": [self._record_of_way(way) for way in self.ways],
            "training": asdict(self.training),
            "serving": self._record_of_serving(),
            "suspicions": [suspicion.record() for suspicion in self.suspicions],
            "operators": {
                phase: None
                if (parts := self.operators.get(phase)) is None
                else {operator.name: operator.record() for operator in parts}
                for phase in PHASES
            },
            "evidence": self.evidence,
        }

    def _record_of_serving(self) -> dict[str, Any] | None:
        if self.serving is None:
            return None
        record = asdict(self.serving)
        if not self.decodes:
            record |= dict.fromkeys(("largest_batch", *(key for key in record if "decode" in key)))
            record["by_batch"] = ()
            record["by_context"] = [(*speeds[:2], None) for speeds in self.serving.by_context]
        return record

    def _record_of_way(self, way: Setup) -> dict[str, Any]:
        why_not = self.workload.why_not(way)
        return {
            "split": way.split.name,
            **{key: value for key, value in asdict(way.split).items() if key != "devices"},
            "scale": way.split.scale,
            "checkpointing": way.checkpointing,
            "micro_batch": way.batch.micro,
            "micro_batches": way.batch.number,
            "layers": way.layers,
            "memory_bytes": way.memory.total,
            "memory_bytes_by_part": asdict(way.memory),
            "exchange_bytes": way.exchange,
            "network_bytes": {name: sent.between for name, sent in way.sent.items()},
            "exchange": self.workload.exchange(way),
            "bubble": way.bubble,
            "fits": not why_not,
            "why_not": why_not or None,
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
    has_encoder = spec.encoder_model is not None
    target_length = run.objective.target_length(context) if has_encoder else None
    counts, forward = counted(model), forward_flops_by_part(model, context, target_length)
    if work.split is not None and (lines := [*problems(work.split, model, context)]):
        raise UserError(*lines)
    if work.batch is not None and work.batch_tokens < context:
        raise UserError(f'batch: found "{work.batch}"; expected at least the context, {context:,}')
    work = replace(work, context=context, batch_tokens=max(work.batch_tokens, float(context)))
    needs, per_token = Needs(run, model, context), (1 + BACKWARD) * sum(forward.values())
    tried = ways(needs, work, per_token)
    fitting = fastest(tried, work, per_token)
    tokens = work.tokens * (counts.total if work.per_parameter else 1)
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
        sends_more=next((way for way in tried if fitting and spares(way, fitting, work)), None),
        ways=fastest_by_sort(tried, work, per_token),
        smallest=min(tried, key=lambda way: way.memory.total),
        fewest_devices=work.devices if fitting else fewest(needs, work),
        training=_training(work, tokens, per_token, fitting),
        can_cache=model.can_cache,
        decodes=run.objective.causal,
        serving=serving(model, work.hardware, context, work.precision, work.devices),
        suspicions=tuple(suspicions(run, model, tokens)),
        operators={
            phase: operators(
                model,
                phase,
                texts=1,
                length=context,
                target_length=target_length,
                itemsize=BYTES[work.precision],
                run=run,
                updates=1 / work.texts,
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


def _training(work: Workload, tokens: float, per_token: float, setup: Setup | None) -> Training:
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
        exchange=None if setup is None else work.exchange(setup),
        exchange_bytes={} if setup is None else setup.exchange,
        links={} if setup is None else work.links(setup),
        compute=bound if setup is None else work.compute(setup, per_token),
        bubble=0.0 if setup is None else setup.bubble,
        step=Range(bound / work.mfu[1], bound / work.mfu[0]),
        device_hours=device_hours,
        days=seconds.times(1 / 86400),
        energy=None if power == "none" else device_hours.times(power / 1000),
        cost=None if work.price is None else device_hours.times(work.price),
    )
