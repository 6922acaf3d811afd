"""What each process holds, and what cannot be trained by several. Imports no torch."""

import math
from collections.abc import Iterator
from typing import NamedTuple

from archwright.scale.launch import Launch
from archwright.spec.choice import Spec
from archwright.spec.errors import UserError
from archwright.spec.feedforward import Routing
from archwright.spec.model_spec import ModelSpec, StackSpec
from archwright.spec.run_spec import RunSpec
from archwright.spec.scale import ParamDtype, PipelineSchedule, ScaleSpec


class Layout(NamedTuple):
    """A grid of processes: `pipeline` stages of the model, of each of which there are `replicate` replicas, each cut up
    over `shard` times `context` groups of them and what such a group holds over its `tensor` processes by heads and
    hidden values."""

    replicate: int = 1
    shard: int = 1
    local: int = 1
    """How many of them are on one machine."""
    tensor: int = 1
    sequence: bool = True
    """Whether the processes of `tensor` share the tokens between branches."""
    context: int = 1
    """How many processes share the tokens of each row."""
    expert: int = 1
    """How many of those that a replica is cut up over share the experts of each mixture."""
    pipeline: int = 1
    """How many have a part of the layers each."""
    schedule: PipelineSchedule = "1f1b"
    """In which order these work on microbatches."""
    param_dtype: ParamDtype = "float32"
    """Numbers in which weights of layers are gathered."""

    @property
    def size(self) -> int:
        """How many processes that are."""
        return self.num_stretches * self.tensor * self.pipeline

    @property
    def num_stages(self) -> int:
        """Into how many runs the layers of the model are cut."""
        return self.pipeline * (2 if self.is_interleaved else 1)

    @property
    def is_interleaved(self) -> bool:
        """Whether each process of a pipeline has two runs of layers."""
        return self.pipeline > 1 and self.schedule == "interleaved_1f1b"

    @property
    def num_readers(self) -> int:
        """How many of them have rows of their own: the processes of a context group share theirs, and those of a
        tensor group and of a pipeline read the same."""
        return self.replicate * self.shard

    @property
    def num_stretches(self) -> int:
        """How many of them have tokens of their own."""
        return self.num_readers * self.context

    @property
    def num_shards(self) -> int:
        """Over how many of them each replica of the model is cut up by FSDP2."""
        return self.shard * self.context

    def part_rows(self, run: RunSpec) -> int:
        """Return how many rows of the largest part of a batch a process computes: each has its share of every part,
        which is what a pipeline passes on at once, too."""
        return -(-run.batch_size // (run.grad_accum_steps * self.num_readers))

    @property
    def num_machines(self) -> int:
        """On how many machines they are."""
        return self.size // self.local

    def __str__(self) -> str:
        found = (
            f"{self.size} processes, scale.replicate = {self.replicate}, scale.shard = {self.shard}"
        )
        found += f", scale.context = {self.context}" * (self.context > 1)
        found += f", scale.expert = {self.expert}" * (self.expert > 1)
        found += f", scale.pipeline = {self.pipeline}" * (self.pipeline > 1)
        found += f', scale.pipeline_schedule = "{self.schedule}"' * self.is_interleaved
        if self.tensor == 1:
            return found
        return f"{found}, scale.tensor = {self.tensor}" + ", scale.sequence = false" * (
            not self.sequence
        )


class Block(NamedTuple):
    """What a process holds of a tensor.

    Attributes:
        shape: of the whole tensor.
        offsets: where the block begins.
        sizes: how far it goes.
        copies: how many processes hold the same.
        copy: which one of these this is.
    """

    shape: tuple[int, ...]
    offsets: tuple[int, ...]
    sizes: tuple[int, ...]
    copies: int = 1
    copy: int = 0


ONE = Layout()
"""One process."""
AXES = ("replicate", "shard", "context", "tensor", "pipeline")


def layout_of(scale: ScaleSpec, launch: Launch | None) -> Layout:
    """Return how the processes that were started together share a run.

    Raises:
        UserError: the numbers that are asked for have another product.
    """
    size, local = (launch.size, launch.local_size) if launch else (1, 1)
    asked = {name: n for name in AXES[:2] if (n := getattr(scale, name)) != "auto"}
    inside = (
        *(local, scale.tensor, scale.sequence, scale.context, scale.expert),
        *(scale.pipeline, scale.pipeline_schedule, scale.param_dtype),
    )
    groups = max(1, size // (scale.tensor * scale.context * scale.pipeline))
    if "shard" not in asked:
        copies = asked.get("replicate", 1)
        found = Layout(copies, max(1, groups // copies), *inside)
    else:
        copies = asked.get("replicate", max(1, groups // asked["shard"]))
        found = Layout(copies, asked["shard"], *inside)
    divides = found.num_shards % found.expert == 0
    if found.size == size and divides:
        return found
    if not divides and (found.size == size > 1 or "shard" in asked):
        raise UserError(
            f"scale.expert: found {found.expert}; expected a divisor of scale.shard times scale.context = "
            f"{found.num_shards}"
        )
    further = {name: n for name in AXES[2:] if (n := getattr(scale, name)) > 1}
    asked |= further
    if not divides and size == 1:
        asked["expert"], found = found.expert, found._replace(shard=found.expert)
    *first, last = (f"scale.{name}={number}" for name, number in asked.items())
    wanted = f"{', '.join(first)} and {last}" if first else last
    if size > 1:
        product = "scale.replicate times scale.shard"
        product += "".join(f" times scale.{name}" for name in further)
        fixed = math.prod(number for name, number in asked.items() if name != "expert")
        start = f"{fixed}" if asked.keys() >= {*AXES[:2]} else f"a multiple of {fixed}"
        raise UserError(
            f"scale: found {wanted} of {size} processes; expected {product} to be {size}, or {start} processes"
        )
    raise UserError(
        f"scale: found {wanted} of one process; start {found.size}: "
        f"torchrun --nproc-per-node {found.size} --no-python archwright train ..."
    )


def planned_layout(scale: ScaleSpec, launch: Launch | None) -> Layout:
    """Return how processes would share a run: those that were started, or as many as are asked for."""
    if launch is None:
        asked = (getattr(scale, name) for name in AXES)
        size = math.prod(number for number in asked if number != "auto")
        launch = Launch(0, size, 0, size)
        if scale.shard == "auto" and scale.expert > 1:
            scale = scale.model_copy(update={"shard": scale.expert})
            launch = Launch(0, size * scale.expert, 0, size * scale.expert)
    return layout_of(scale, launch)


def kept_layout(scale: ScaleSpec, launch: Launch | None) -> Layout:
    """Return how processes go on with a run: as it was asked for where they are as many, else sharded over all."""
    try:
        return layout_of(scale, launch)
    except UserError:
        return layout_of(ScaleSpec(param_dtype=scale.param_dtype), launch)


def check_layout(run: RunSpec, layout: Layout) -> None:
    """Refuse what several processes would train otherwise than one, before anything is done.

    Raises:
        UserError: one line for each reason.
    """
    if layout.size > 1 and (lines := [*_refusals(run, layout)]):
        raise UserError(*lines)


def _refusals(run: RunSpec, layout: Layout) -> Iterator[str]:
    parts, readers = layout.num_readers * run.grad_accum_steps, f"{layout.size} processes"
    if layout.num_readers < layout.size:
        axes = {"tensor ": layout.tensor, "context ": layout.context, "pipeline ": layout.pipeline}
        kinds = [kind for kind, size in axes.items() if size > 1]
        readers = f"{layout.num_readers} {kinds[0] if len(kinds) == 1 else ''}groups"
    if run.batch_size % parts:
        times = (
            f" times grad_accum_steps = {run.grad_accum_steps}" if run.grad_accum_steps > 1 else ""
        )
        yield (
            f"batch_size: found {run.batch_size}; expected a multiple of {parts}, the {readers}{times}, "
            "as each takes as many rows"
        )
    for path, share in dropouts(run):
        yield (
            f"{path}: found {share}, of which {layout.size} processes would draw otherwise than one; expected 0"
        )
    for path, spec in _inside(run.model, "model"):
        if isinstance(spec, Routing) and spec.draws:
            yield (
                f'{path}.kind: found "{spec.kind}", which draws experts, otherwise in {layout.size} processes than '
                "in one; expected another"
            )
    yield from _without_parts(run, layout)
    if layout.num_shards * layout.tensor * layout.pipeline > 1 and not run.optimizer.can_shard:
        yield (
            f'optimizer.kind: found "{run.optimizer.kind}", which does not say that it can be cut up; expected '
            "can_shard = True in its spec, or replicas alone: scale.shard=1, scale.context=1, scale.tensor=1 and "
            "scale.pipeline=1"
        )
    yield from _unshareable(run.model, layout)
    machine = run.machine
    if machine.precision in ("fp16", "fp8"):
        yield f'machine.precision: found "{machine.precision}" of several processes; expected "bf16" or "fp32"'
    if layout.param_dtype == "bfloat16" and machine.precision != "bf16":
        yield (
            f'machine.precision: found "{machine.precision}", under which scale.param_dtype = "bfloat16" would round '
            'what is computed in float32; expected "bf16", or scale.param_dtype = "float32"'
        )
    if machine.fused == "liger":
        yield 'machine.fused: found "liger" of several processes; expected "none"'
    if run.probes.every and max(layout.tensor, layout.context, layout.pipeline) > 1:
        yield (
            f"probes.every: found {run.probes.every}; probes look at whole rows and layers: expected 0 with "
            "scale.tensor, scale.context or scale.pipeline above 1"
        )


def _without_parts(run: RunSpec, layout: Layout) -> Iterator[str]:
    """Yield why a batch has too few microbatches for a pipeline."""
    parts, stages = run.grad_accum_steps, layout.pipeline
    if stages > 1 and parts < stages:
        yield (
            f"grad_accum_steps: found {parts}; expected at least scale.pipeline = {stages}, as each stage works on "
            "another microbatch"
        )
    elif layout.is_interleaved and parts % stages:
        yield (
            f"grad_accum_steps: found {parts}; expected a multiple of scale.pipeline = {stages}, as "
            'scale.pipeline_schedule = "interleaved_1f1b" takes microbatches in rounds of as many'
        )


def _unshareable(spec: ModelSpec, layout: Layout) -> Iterator[str]:
    """Yield what of a model, or of its texts, processes cannot share out, as its parts say."""
    axes = (layout.context, layout.tensor, layout.expert, layout.pipeline)
    if max(axes) == 1 and layout.param_dtype == "float32":
        return
    from archwright.model.build import build
    from archwright.scale import context, experts, shards, stages, tensor

    model = build(spec, device="meta")
    if layout.param_dtype != "float32" and not shards.units(model):
        yield (
            f'scale.param_dtype: found "{layout.param_dtype}", but no layer of this model is gathered by itself, as '
            'layers are reversible or share their weights; expected "float32"'
        )
    if layout.pipeline > 1:
        yield from stages.refusals(model, layout)
    if layout.context > 1:
        yield from context.refusals(model, layout.context)
    if layout.tensor > 1:
        yield from tensor.refusals(model, layout.tensor)
    if layout.expert > 1:
        yield from experts.refusals(model, layout.expert)


def dropouts(run: RunSpec) -> list[tuple[str, float]]:
    """Return the path and the share of each dropout of a run's model."""
    return [
        (f"{path}.{name}", getattr(spec, name))
        for path, spec in _inside(run.model, "model")
        for name in type(spec).model_fields
        if name.endswith("dropout") and getattr(spec, name)
    ]


def _inside(spec: Spec, path: str) -> Iterator[tuple[str, Spec]]:
    """Yield a spec and all that it holds, with their paths."""
    yield path, spec
    for name in type(spec).model_fields:
        if isinstance(inner := getattr(spec, name), Spec):
            yield from _inside(inner, f"{path}.{name}")
    if isinstance(spec, StackSpec):
        for kind in spec.layer_kinds:
            yield from _inside(spec.layers_by_kind[kind], f"{path}.layer_kinds.{kind}")
