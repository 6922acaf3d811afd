"""What each process holds, and what cannot be trained by several. Imports no torch."""

import math
from typing import NamedTuple

from archwright.scale.launch import Launch
from archwright.spec.errors import UserError
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
