"""Operations of a training step on several ranks."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh

from archwright.data.batches import share_of
from archwright.data.inputs import Batch
from archwright.model.model import Decoder, Output
from archwright.optim import Optimizers
from archwright.parts.branch import Branch
from archwright.scale import connections
from archwright.scale.context import share_texts
from archwright.scale.launch import Launch
from archwright.scale.layout import ONE, Block
from archwright.scale.processes import Passes, Processes, stretch_of
from archwright.scale.shards import ModelShards

if TYPE_CHECKING:
    from archwright.scale.pipeline import Pipeline

T = TypeVar("T")


class Distributed(Processes):
    """Several connected ranks.

    Attributes:
        launch: Rank and world size of this process.
        stop_asked: True if this rank, or after `sums` any rank, has to stop.
    """

    def __init__(self, launch: Launch) -> None:
        self.launch, self.layout, self.device = launch, ONE, torch.device("cpu")
        self.stop_asked = False
        self._shards: ModelShards | None = None
        self._stage: dist.ProcessGroup | None = None
        """Ranks of the same pipeline stage; None: all."""
        self._pipeline: Pipeline | None = None

    @property
    def rank(self) -> int:
        return self.launch.rank // (self.layout.tensor * self.layout.context) % self.size

    @property
    def counts(self) -> bool:
        """True if sums over ranks include this rank: tensor-parallel ranks have equal values, and one counts."""
        return self.launch.rank % self.layout.tensor == 0

    def _grid(self, **sizes: int) -> DeviceMesh:
        """Return a mesh of all ranks, without axes of size 1 except shard."""
        axes = {name: n for name, n in sizes.items() if n > 1 or name == "shard"}
        return connections.new_mesh(self.device.type, axes)

    def cut(self, model: Decoder) -> None:
        layout, tensor = self.layout, self.layout.tensor
        if layout.context > 1:
            readers = layout.pipeline * layout.num_readers
            grid = self._grid(shard=readers, context=layout.context, tensor=tensor)
            share_texts(model, grid.get_group("context"))
        self._stage = self._pipeline = None
        if layout.pipeline > 1:
            grid = self._grid(pipeline=layout.pipeline, shard=layout.size // layout.pipeline)
            self._stage = grid.get_group("shard")
        outer = {"pipeline": layout.pipeline, "replicate": layout.replicate}
        mesh = self._grid(**outer, shard=layout.num_shards, tensor=tensor)
        experts = None
        if layout.expert > 1:
            shard = layout.num_shards // layout.expert
            experts = self._grid(**outer, shard=shard, expert=layout.expert, tensor=tensor)
        self._shards = ModelShards(
            model,
            mesh,
            sequence=layout.sequence,
            experts=experts,
            param_dtype=layout.param_dtype,
            reshard=layout.frees_weights,
            num_stages=layout.num_stages,
            stage=self._stage,
        )
        if layout.pipeline > 1:
            from archwright.scale.pipeline import Pipeline  # slow to import

            self._pipeline = Pipeline(
                model,
                self._shards.stages,
                self._shards.add_up_gradients,
                torch.bfloat16 if layout.param_dtype == "bfloat16" else None,
            )

    def drawn(
        self, model: Decoder, draws: Iterable[tuple[str, Callable[[], Tensor]]]
    ) -> Iterator[tuple[str, Tensor]]:
        """Yield this rank's blocks of the tensors of a model by name, on the CPU.

        Ranks draw different tensors at a time, and send each rank its block.
        """
        like, left = dict(model.named_parameters()) | dict(model.named_buffers()), iter(draws)
        rank, size = self.launch.rank, self.launch.size
        blocks: list[dict[str, Block]] = [{}] * size
        dist.all_gather_object(blocks, {name: self.shards.block(name) for name in like})
        while hand := list(islice(left, size)):
            mine, works, local = None, list[dist.Work | None](), dict[str, Tensor]()
            if rank < len(hand):
                name, draw = hand[rank]
                mine = draw().to("cpu", like[name].dtype)
            for turn, (name, _) in enumerate(hand):
                if turn != rank:
                    local[name] = torch.empty(blocks[rank][name].sizes, dtype=like[name].dtype)
                    if local[name].numel():
                        works.append(dist.irecv(local[name], turn))
                    continue
                assert mine is not None
                local[name] = mine[blocks[rank][name].slices].clone()
                for other in {*range(size)} - {rank}:
                    if blocks[other][name].numel:
                        block = mine[blocks[other][name].slices].contiguous()
                        works.append(dist.isend(block, other))
            for work in works:
                if work is not None:
                    work.wait()
            yield from local.items()

    @property
    def shards(self) -> ModelShards:
        """Local shards of the model."""
        assert self._shards is not None, "a model is sharded first"
        return self._shards

    def rows(self, part: Batch) -> Batch:
        return self.tokens(part[share_of(len(part.targets), self.rank, self.size)])

    def tokens(self, batch: Batch) -> Batch:
        size = self.layout.context
        return stretch_of(batch, self.launch.rank // self.layout.tensor % size, size)

    def dealt(self, items: Iterable[T]) -> Iterator[tuple[T, bool]]:
        left = iter(items)
        while hand := list(islice(left, self.size)):
            mine = len(hand) > self.rank
            # All ranks make the same number of passes, because each pass needs the shards of all.
            yield hand[self.rank if mine else 0], mine

    def sums(self, numbers: Sequence[float]) -> list[float]:
        local = [number * self.counts for number in numbers]
        # The request to stop costs no message of its own.
        values = torch.tensor([*local, self.stop_asked], dtype=torch.float64)
        dist.all_reduce(values)
        *totals, stop_asked = values.tolist()
        if stop_asked:  # never reset, because a signal may have arrived in the meantime
            self.stop_asked = True
        return totals

    def mean(self, values: Tensor) -> Tensor:
        total = values.detach() * self.counts
        dist.all_reduce(total, group=self._stage)
        return total / self.layout.num_stretches

    def add_up_counts(self, branches: Iterable[Branch]) -> None:
        counts = [
            (branch, name, value)
            for branch in branches
            for name in branch.counts
            if (value := getattr(branch, name)) is not None
        ]
        if counts:
            total = torch.cat([value.flatten() for _, _, value in counts]) * self.counts
            dist.all_reduce(total, group=self._stage)
            parts = total.split([value.numel() for _, _, value in counts])
            for (branch, name, value), part in zip(counts, parts, strict=True):
                setattr(branch, name, part.view_as(value))

    def before_part(self, model: nn.Module, *, is_last: bool) -> None:
        self.shards.add_up_gradients(is_last)

    def backward(self, model: nn.Module, parts: Sequence[Batch], passes: Passes) -> None:
        if self._pipeline is None:
            super().backward(model, parts, passes)
        else:
            self._pipeline.backward(parts, passes)

    def without_gradients(self) -> AbstractContextManager[Any]:
        # FSDP2 keeps the tensors of its first all-gather and later reads their versions, which tensors of inference
        # mode do not have (torch 2.13). A resumed run may start with an evaluation.
        return torch.no_grad()

    def output(self, model: nn.Module, batch: Batch) -> Output | None:
        if self._pipeline is None:
            return super().output(model, batch)
        return self._pipeline.output(batch)

    def take(self, optimizers: Optimizers) -> Optimizers:
        self.shards.take(optimizers)
        return optimizers

    def held(self) -> ModelShards:
        return self.shards

    def bring_gradients(self) -> None:
        self.shards.bring_gradients()

    def drop_gradients(self) -> None:
        self.shards.drop_gradients()

    def norm(self, own: Tensor) -> Tensor:
        return self.shards.norm(own)
