"""Pipeline parallelism: microbatches pass through the stages in the order of torch's schedules.

Stages send the residual stream forward and its gradient backward. All stages read the same sequences, so each one has
the documents, positions, padding and tokens. The last stage computes the loss. The backward pass of auxiliary losses of
other stages starts after the last layer of their stage.

Source: Narayanan et al., 2021, Megatron-LM: 1F1B and interleaved schedules; Huang et al., 2019, GPipe: microbatches.
"""

import logging
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleInterleaved1F1B

from archwright.data.inputs import Batch
from archwright.model.model import Decoder, Output
from archwright.scale.processes import Passes
from archwright.scale.stages import StageShards

Schedule = Schedule1F1B | ScheduleInterleaved1F1B
# If a rank ends, torch would print the complete schedule next to our error line.
logging.getLogger(ScheduleInterleaved1F1B.__module__).setLevel(logging.CRITICAL)


class Pipeline:
    """Passes of batches through the stages of a model.

    Args:
        model: Model that `stages` has split.
        before_backward: Called before each backward pass of a stage, with True for the last one of a step.
        dtype: Dtype of the residual stream between stages. Default: that of the weights.
    """

    def __init__(
        self,
        model: Decoder,
        stages: StageShards,
        before_backward: Callable[[bool], None],
        dtype: torch.dtype | None = None,
    ) -> None:
        assert stages.group is not None, "a single rank has no stages"
        self.model, self.stages, self.group = model, stages, stages.group
        self.before_backward = before_backward
        self._weight_dtype = next(model.parameters()).dtype
        self._dtype = dtype or self._weight_dtype
        self._schedules: dict[tuple[int, ...], Schedule] = {}
        self._parts: Sequence[Batch] = ()
        self._passes: Passes | None = None
        self._left = 0
        """Number of backward passes left in this step."""

    def backward(self, parts: Sequence[Batch], passes: Passes) -> None:
        """Accumulate the gradients of local microbatches."""
        self._parts, self._passes = parts, passes
        self._left = len(parts) * len(self.stages.own)
        shape = (len(parts), *parts[0].targets.shape)
        if shape not in self._schedules:
            self._schedules[shape] = self._new_schedule(*shape)
        # Schedules split their arguments along the first axis, so stages receive indices of microbatches.
        numbers = torch.arange(len(parts))
        try:
            self._schedules[shape].step(number=numbers, target=numbers)
        except RuntimeError as error:  # torch wraps exceptions of stages
            raise error.__cause__ or error from None
        finally:
            self._parts, self._passes = (), None

    def compute(self, stage: int, stream: Tensor | None, number: int) -> Tensor:
        """Return a microbatch's residual stream after a stage, or after the last one its loss."""
        self.stages.now, self.stages.stream = stage, self._received(stream)
        part, passes = self._parts[number], self._passes
        assert passes is not None, "this is called in a step"
        if self.stages.is_last:
            return passes.loss(part)[None]
        stream, auxiliary = passes.hidden(part)
        if auxiliary.requires_grad:
            stream = _AddAuxiliaryLoss.apply(stream, auxiliary)  # type: ignore[no-untyped-call]
        return self._to_send(stream)

    def count_backward(self) -> None:
        """Report the next backward pass to `before_backward`."""
        self._left -= 1
        self.before_backward(self._left == 0)

    def output(self, batch: Batch) -> Output | None:
        """Return the model's output for a batch on the ranks of the last stage, None on others."""
        out: Output | None = None
        for stage in self.stages.own:
            stream = None
            if stage:
                shape = (*batch.inputs.tokens.shape, self._width)
                stream = torch.empty(shape, dtype=self._dtype, device=batch.inputs.tokens.device)
                dist.recv(stream, self._global_rank(self.stages.rank - 1), self.group)
            self.stages.now, self.stages.stream = stage, self._received(stream)
            if self.stages.is_last:
                out = self.model(**batch.inputs.given())
            else:
                stream = self._to_send(self.model.hidden(**batch.inputs.given()))
                dist.send(stream, self._global_rank(self.stages.rank + 1), self.group)
        return out

    @property
    def _width(self) -> int:
        """Width of all residual streams next to each other."""
        return self.model.spec.dim * self.model.spec.residual.streams

    def _to_send(self, stream: Tensor) -> Tensor:
        """Return the streams [batch, length, width] in the layout that stages exchange."""
        return stream.to(self._dtype).contiguous()

    def _received(self, stream: Tensor | None) -> Tensor | None:
        """Return the streams in the dtype in which layers add to them."""
        return None if stream is None else stream.to(self._weight_dtype)

    def _global_rank(self, rank: int) -> int:
        return dist.get_global_rank(self.group, rank % self.stages.size)

    def _new_schedule(self, num_parts: int, batch: int, length: int) -> Schedule:
        """Return a schedule for microbatches of one shape. With given shapes, stages do not exchange any."""
        device, shape = next(self.model.parameters()).device, (batch, length, self._width)
        stream = torch.empty(shape, dtype=self._dtype, device="meta", requires_grad=True)
        loss = torch.empty(1, dtype=self._weight_dtype, device="meta", requires_grad=True)
        num_stages = len(self.stages.runs)
        stages = [
            _Stage(
                self,
                i,
                num_stages,
                device,
                input_args=(stream,) if i else (),
                output_args=(stream if i < num_stages - 1 else loss,),
                group=self.group,
            )
            for i in self.stages.own
        ]
        options: dict[str, Any] = {"loss_fn": lambda loss, number: loss, "scale_grads": False}
        if len(stages) > 1:
            return ScheduleInterleaved1F1B([*stages], num_parts, **options)
        return Schedule1F1B(stages[0], num_parts, **options)


class _Stage(PipelineStage):
    """A stage for torch's schedules, which reports its backward passes."""

    def __init__(self, pipeline: Pipeline, number: int, *args: Any, **kwargs: Any) -> None:
        super().__init__(_StageModule(pipeline, number), number, *args, **kwargs)
        self.pipeline = pipeline

    def backward_one_chunk(self, *args: Any, **kwargs: Any) -> None:
        self.pipeline.count_backward()
        super().backward_one_chunk(*args, **kwargs)


class _StageModule(nn.Module):
    """The computation of a stage. The parameters are the model's."""

    def __init__(self, pipeline: Pipeline, stage: int) -> None:
        super().__init__()
        self.pipeline, self.stage = pipeline, stage

    def forward(self, stream: Tensor | None = None, *, number: Tensor) -> Tensor:
        return self.pipeline.compute(self.stage, stream, int(number))


class _AddAuxiliaryLoss(torch.autograd.Function):
    """Return x; the backward pass also computes the gradient of a loss (Megatron-LM's auxiliary loss scaler)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, loss: Tensor) -> Tensor:
        ctx.gradient = loss.new_ones(())
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor]:
        return grads[0], ctx.gradient
