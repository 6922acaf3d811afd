"""On how many processes a run is trained, and what each of them holds."""

from typing import Literal

from pydantic import Field

from archwright.spec.choice import AutoCount, Count, Spec

PipelineSchedule = Literal["1f1b", "interleaved_1f1b"]
ParamDtype = Literal["float32", "bfloat16"]


class ScaleSpec(Spec):
    """How the processes that torchrun starts share a run: replicate times shard times context times
    tensor times pipeline of them. It says nothing of what is trained: any number of processes makes the same steps, up
    to the rounding of sums."""

    replicate: AutoCount = Field("auto", examples=[2])
    """Data-parallel replicas of the model, whose gradients are added up; auto: as many as there are processes for,
    beside `shard`, and one where that is auto, too."""
    shard: AutoCount = Field("auto", examples=[2])
    """Processes over which each replica's parameters, gradients and optimizer are cut up; auto: what is left."""
    context: Count = Field(1, examples=[2])
    """Processes that share the tokens of each row, context parallel: only attention sees the keys and values of all.
    Each replica's parameters are cut up over these, too."""
    tensor: Count = Field(1, examples=[2])
    """Processes that read the same rows and share heads and hidden values of each layer, tensor parallel."""
    expert: Count = Field(1, examples=[2])
    """Processes that share the experts of each mixture, expert parallel: each has some of them whole, and tokens are
    sent to and fro. They are among those of `shard` times `context`, which it divides."""
    pipeline: Count = Field(1, examples=[2])
    """Stages of the model, pipeline parallel: each process has a run of its layers, and microbatches, as many as
    `grad_accum_steps` says, go from one to the next."""
    pipeline_schedule: PipelineSchedule = "1f1b"
    """The order in which a stage works on microbatches: one forward, one backward; interleaved, where each process has
    two shorter runs of layers and the bubble is about half as large."""
    param_dtype: ParamDtype = "float32"
    """Numbers in which processes of `shard` and `context` gather the weights of layers; bfloat16, under
    machine.precision=bf16, sends half as much, and rounds weights of norms and routers, too, which autocast leaves in
    float32. What is kept, and gradients that are added up, are float32 in any case."""
    sequence: bool = True
    """Whether these also share the tokens between the branches of layers, sequence parallel, where all that stands
    there looks at each token by itself."""
