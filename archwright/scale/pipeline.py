"""Pipeline parallel: microbatches go through the stages of a model, in the order of one of torch's schedules.

Only the residual stream goes from stage to stage, forward, and its gradient backward; what else a layer looks at
(documents, positions, padding, tokens) each stage has, as all read the same rows. The last stage computes the loss.
What branches of other stages ask to be minimised besides starts its way back behind the last layer of theirs.

Narayanan et al., 2021, Megatron-LM: 1F1B and interleaved schedules; Huang et al., 2019, GPipe: microbatches.
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
# Where a process ends, torch would write the whole schedule beside the one line that says so.
logging.getLogger(ScheduleInterleaved1F1B.__module__).setLevel(logging.CRITICAL)


class Pipeline:
    """The way of batches through the stages of a model, of which this process has one or several.

    Args:
        model: cut up by `stages`.
        before_backward: called before each backward pass over a stage, with whether it is the last one of a step.
    """

    def __init__(
        self, model: Decoder, stages: StageShards, before_backward: Callable[[bool], None]
    ) -> None:
        assert stages.group is not None, "a process alone has no stages"
        self.model, self.stages, self.group = model, stages, stages.group
        self.before_backward = before_backward
        self._schedules: dict[tuple[int, ...], Schedule] = {}
        self._parts: Sequence[Batch] = ()
        self._passes: Passes | None = None
        self._left = 0
        """Backward passes that are still to come in this step."""

    def backward(self, parts: Sequence[Batch], passes: Passes) -> None:
        """Add up the gradients of the losses of parts of a batch, of each what is this process's."""
        self._parts, self._passes = parts, passes
        self._left = len(parts) * len(self.stages.own)
        shape = (len(parts), *parts[0].targets.shape)
        if shape not in self._schedules:
            self._schedules[shape] = self._new_schedule(*shape)
        # A stage gets the number of the part alone.
        numbers = torch.arange(len(parts))
        try:
            self._schedules[shape].step(number=numbers, target=numbers)
        except RuntimeError as error:  # torch wraps what was raised inside
            raise error.__cause__ or error from None
        finally:
            self._parts, self._passes = (), None

    def compute(self, stage: int, stream: Tensor | None, number: int) -> Tensor:
        """Return what a stage makes of the stream of a part: the stream behind it, or the loss."""
        self.stages.now, self.stages.stream = stage, stream
        part, passes = self._parts[number], self._passes
        assert passes is not None, "this is called in a step"
        if self.stages.is_last:
            return passes.loss(part)[None]
        stream, auxiliary = passes.hidden(part)
        if auxiliary.requires_grad:
            stream = _AlsoMinimised.apply(stream, auxiliary)  # type: ignore[no-untyped-call]
        return self._sent(stream)

    def count_backward(self) -> None:
        """Say whether the backward pass that comes now is the last one of the step."""
        self._left -= 1
        self.before_backward(self._left == 0)

    def output(self, batch: Batch) -> Output | None:
        """Return what the model gives for a batch, in the processes of the last stage; None in others."""
        size, rank = self.stages.size, self.stages.rank
        out: Output | None = None
        for stage in self.stages.own:
            stream = None
            if stage:
                shape = (*batch.inputs.tokens.shape, self._width)
                dtype = next(self.model.parameters()).dtype
                stream = torch.empty(shape, dtype=dtype, device=batch.inputs.tokens.device)
                dist.recv(stream, self._process(rank - 1), self.group)
            self.stages.now, self.stages.stream = stage, stream
            if self.stages.is_last:
                out = self.model(**batch.inputs.given())
            else:
                stream = self._sent(self.model.hidden(**batch.inputs.given()))
                dist.send(stream, self._process((rank + 1) % size), self.group)
        return out

    @property
    def _width(self) -> int:
        """Width of what stages send: all streams next to each other."""
        return self.model.spec.dim * self.model.spec.residual.streams

    def _sent(self, stream: Tensor) -> Tensor:
        """Return the streams, [rows, length, width], as the next stage receives them."""
        return stream.to(next(self.model.parameters()).dtype).contiguous()

    def _process(self, rank: int) -> int:
        return dist.get_global_rank(self.group, rank % self.stages.size)

    def _new_schedule(self, num_parts: int, rows: int, length: int) -> Schedule:
        """Return the order of so many parts of a shape. Torch is given the shapes between stages, and so sends none."""
        weight = next(self.model.parameters())
        device, shape = weight.device, (rows, length, self._width)
        stream = torch.empty(shape, dtype=weight.dtype, device="meta", requires_grad=True)
        loss = torch.empty(1, dtype=weight.dtype, device="meta", requires_grad=True)
        number = len(self.stages.runs)
        stages = [
            _Stage(
                self,
                i,
                number,
                device,
                input_args=(stream,) if i else (),
                output_args=(stream if i < number - 1 else loss,),
                group=self.group,
            )
            for i in self.stages.own
        ]
        given: dict[str, Any] = {"loss_fn": lambda loss, number: loss, "scale_grads": False}
        if len(stages) > 1:
            return ScheduleInterleaved1F1B([*stages], num_parts, **given)
        return Schedule1F1B(stages[0], num_parts, **given)


class _Stage(PipelineStage):
    """A stage as torch's schedules know it."""

    def __init__(self, pipeline: Pipeline, number: int, *rest: Any, **more: Any) -> None:
        super().__init__(_Pass(pipeline, number), number, *rest, **more)
        self.pipeline = pipeline

    def backward_one_chunk(self, *args: Any, **more: Any) -> None:
        self.pipeline.count_backward()
        super().backward_one_chunk(*args, **more)


class _Pass(nn.Module):
    """What a stage computes. It has no parameters, as these are the model's."""

    def __init__(self, pipeline: Pipeline, stage: int) -> None:
        super().__init__()
        self.pipeline, self.stage = pipeline, stage

    def forward(self, stream: Tensor | None = None, *, number: Tensor) -> Tensor:
        return self.pipeline.compute(self.stage, stream, int(number))


class _AlsoMinimised(torch.autograd.Function):
    """A stream as it is, behind which a loss is minimised, too (Megatron-LM's scaler of auxiliary losses)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, loss: Tensor) -> Tensor:
        ctx.like = loss.new_ones(())
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor]:
        return grads[0], ctx.like
