"""Processes of a run, and their shares of the model and the data."""

from typing import Literal

from pydantic import Field

from archwright.spec.choice import AutoCount, Count, Spec

PipelineSchedule = Literal["1f1b", "interleaved_1f1b"]
ParamDtype = Literal["auto", "float32", "bfloat16"]


class ScaleSpec(Spec):
    """Distribution of a run over torchrun's processes: replicate times shard times context times tensor times pipeline.
    The training is the same for any number of processes: steps agree up to the rounding of sums."""

    replicate: AutoCount = Field("auto", examples=[2])
    """Data-parallel replicas of the model, with summed gradients; auto: all processes that `shard` leaves, or one if
    `shard` is auto."""
    shard: AutoCount = Field("auto", examples=[2])
    """Processes that shard each replica's parameters, gradients and optimizer state; auto: all remaining processes."""
    context: Count = Field(1, examples=[2])
    """Context parallelism: processes that share the tokens of each sequence; only attention sees keys and values of
    all. Each replica's parameters are also sharded over them."""
    tensor: Count = Field(1, examples=[2])
    """Tensor parallelism: processes that read the same sequences and share the heads and hidden values of each
    layer."""
    expert: Count = Field(1, examples=[2])
    """Expert parallelism: processes that share the experts of each mixture. Each holds some experts in full, and tokens
    are sent to their experts and back. Divides `shard` times `context`."""
    pipeline: Count = Field(1, examples=[2])
    """Pipeline parallelism: number of stages. Each process holds consecutive layers, and `grad_accum_steps`
    microbatches pass from stage to stage."""
    pipeline_schedule: PipelineSchedule = "1f1b"
    """Order of microbatches in a stage. 1f1b: one forward, one backward; interleaved_1f1b: two shorter runs of layers
    per process, with about half the bubble."""
    param_dtype: ParamDtype = "auto"
    """Dtype in which processes of `shard` and `context` gather the weights of layers and head; auto: bfloat16 with
    machine.precision=bf16, otherwise float32. bfloat16 halves the traffic and also rounds weights of norms and routers,
    which autocast leaves in float32. Embeddings, stored weights and summed gradients are always float32."""
    reshard: bool | Literal["auto"] = "auto"
    """Free gathered weights of a layer between its forward and backward pass, and gather them again; auto: unless
    `pipeline` is above 1, where each microbatch would gather them twice."""
    sequence: bool = True
    """Sequence parallelism: tensor-parallel processes also share the tokens between the branches of layers, if all
    modules there process each token separately."""
