"""The grid of a run's ranks, and the block of a tensor on one rank. Imports no torch."""

import math
from typing import Literal, NamedTuple

from archwright.scale.launch import Launch
from archwright.spec.errors import UserError
from archwright.spec.run_spec import RunSpec
from archwright.spec.scale import ParamDtype, PipelineSchedule, ScaleSpec


class Layout(NamedTuple):
    """Grid of ranks: replicate x shard x context x tensor x pipeline, with the options of `ScaleSpec`."""

    replicate: int = 1
    """Replicas of the model."""
    shard: int = 1
    """Data-parallel ranks that shard one replica."""
    local: int = 1
    """Ranks on each machine."""
    tensor: int = 1
    """Ranks that split heads and hidden values."""
    sequence: bool = True
    """Tensor-parallel ranks also split the tokens between branches."""
    context: int = 1
    """Ranks that split the tokens of each sequence."""
    expert: int = 1
    """Ranks that split the experts of each mixture; divides shard x context."""
    pipeline: int = 1
    """Ranks that split the layers."""
    schedule: PipelineSchedule = "1f1b"
    """Order of microbatches in the pipeline."""
    param_dtype: ParamDtype = "auto"
    """Dtype of all-gathered weights; auto until `with_precision`."""
    reshard: bool | Literal["auto"] = "auto"
    """Gathered weights of layers are freed after the forward pass."""

    @property
    def size(self) -> int:
        """World size."""
        return self.num_stretches * self.tensor * self.pipeline

    @property
    def num_stages(self) -> int:
        """Number of pipeline stages; two per rank if they are interleaved."""
        return self.pipeline * (2 if self.is_interleaved else 1)

    @property
    def is_interleaved(self) -> bool:
        """True if each rank has two pipeline stages."""
        return self.pipeline > 1 and self.schedule == "interleaved_1f1b"

    @property
    def num_readers(self) -> int:
        """Number of groups of ranks with different sequences of a batch."""
        return self.replicate * self.shard

    @property
    def num_stretches(self) -> int:
        """Number of groups of ranks with different tokens of a batch."""
        return self.num_readers * self.context

    @property
    def num_shards(self) -> int:
        """Number of FSDP2 shards of each replica."""
        return self.shard * self.context

    def part_rows(self, run: RunSpec) -> int:
        """Return the number of sequences of the largest microbatch of one rank."""
        return -(-run.batch_size // (run.grad_accum_steps * self.num_readers))

    @property
    def frees_weights(self) -> bool:
        """True if weights of layers are gathered again in the backward pass."""
        return self.pipeline == 1 if self.reshard == "auto" else self.reshard

    def with_precision(self, precision: str) -> "Layout":
        """Return the layout with a param_dtype that suits the precision, if it is "auto"."""
        if self.param_dtype != "auto":
            return self
        return self._replace(param_dtype="bfloat16" if precision == "bf16" else "float32")

    @property
    def num_machines(self) -> int:
        """Number of machines."""
        return self.size // self.local

    def __str__(self) -> str:
        text = (
            f"{self.size} processes, scale.replicate = {self.replicate}, scale.shard = {self.shard}"
        )
        text += f", scale.context = {self.context}" * (self.context > 1)
        text += f", scale.expert = {self.expert}" * (self.expert > 1)
        text += f", scale.pipeline = {self.pipeline}" * (self.pipeline > 1)
        text += f', scale.pipeline_schedule = "{self.schedule}"' * self.is_interleaved
        text += f", scale.tensor = {self.tensor}" * (self.tensor > 1)
        return text + ", scale.sequence = false" * (self.tensor > 1 and not self.sequence)


class Block(NamedTuple):
    """Block of a tensor on one rank.

    Attributes:
        shape: Shape of the complete tensor.
        offsets: Start of the block along each axis.
        sizes: Shape of the block.
        copies: Number of ranks with the same block.
        copy: Index of this rank among them.
    """

    shape: tuple[int, ...]
    offsets: tuple[int, ...]
    sizes: tuple[int, ...]
    copies: int = 1
    copy: int = 0

    @property
    def numel(self) -> int:
        """Number of elements of the block."""
        return math.prod(self.sizes)

    @property
    def slices(self) -> tuple[slice, ...]:
        """Index of the block in the complete tensor."""
        return tuple(slice(o, o + n) for o, n in zip(self.offsets, self.sizes, strict=True))


ONE = Layout()
"""Layout of a single process."""
AXES = ("replicate", "shard", "context", "tensor", "pipeline")


def layout_of(scale: ScaleSpec, launch: Launch | None) -> Layout:
    """Return the grid of the ranks that were started.

    Raises:
        UserError: The sizes do not fit the number of ranks.
    """
    size, local = (launch.size, launch.local_size) if launch else (1, 1)
    sizes = {name: n for name in AXES[:2] if (n := getattr(scale, name)) != "auto"}
    groups = max(1, size // (scale.tensor * scale.context * scale.pipeline))
    if (shard := sizes.get("shard")) is None:
        copies = sizes.get("replicate", 1)
        shard = max(1, groups // copies)
    else:
        copies = sizes.get("replicate", max(1, groups // shard))
    layout = Layout(
        *(copies, shard, local, scale.tensor, scale.sequence, scale.context, scale.expert),
        *(scale.pipeline, scale.pipeline_schedule, scale.param_dtype, scale.reshard),
    )
    divides = layout.num_shards % layout.expert == 0
    if layout.size == size and divides:
        return layout
    if not divides and (layout.size == size > 1 or "shard" in sizes):
        raise UserError(
            f"scale.expert: found {layout.expert}; expected a divisor of scale.shard times scale.context = "
            f"{layout.num_shards}"
        )
    others = {name: n for name in AXES[2:] if (n := getattr(scale, name)) > 1}
    fixed = math.prod([*sizes.values(), *others.values()])
    start = f"{fixed}" if len(sizes) == 2 else f"a multiple of {fixed}"
    sizes |= others
    if not divides and size == 1:
        sizes["expert"], layout = layout.expert, layout._replace(shard=layout.expert)
    *first, last = (f"scale.{name}={number}" for name, number in sizes.items())
    words = f"{', '.join(first)} and {last}" if first else last
    if size > 1:
        product = " times ".join(f"scale.{name}" for name in (*AXES[:2], *others))
        raise UserError(
            f"scale: found {words} of {size} processes; expected {product} to be {size}, or {start} processes"
        )
    raise UserError(
        f"scale: found {words} of one process; start {layout.size}: "
        f"torchrun --nproc-per-node {layout.size} --no-python archwright train ..."
    )


def planned_layout(scale: ScaleSpec, launch: Launch | None) -> Layout:
    """Return the grid of the ranks that were started, or if there are none, of the fewest possible ranks."""
    if launch is None:
        size = math.prod(n for name in AXES if (n := getattr(scale, name)) != "auto")
        if scale.shard == "auto" and scale.expert > 1:
            scale = scale.model_copy(update={"shard": scale.expert})
            size *= scale.expert
        launch = Launch(0, size, 0, size)
    return layout_of(scale, launch)


def kept_layout(scale: ScaleSpec, launch: Launch | None) -> Layout:
    """Return the grid of a resumed run: the requested one, or with another number of ranks, shards on all ranks."""
    try:
        return layout_of(scale, launch)
    except UserError:
        return layout_of(ScaleSpec(param_dtype=scale.param_dtype, reshard=scale.reshard), launch)
