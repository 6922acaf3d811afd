"""Machine settings of a run."""

from typing import Literal

from archwright.spec.choice import AutoCount, AutoSteps, Spec

ActivationCheckpointing = Literal["none", "selective", "full"]


class MachineSpec(Spec):
    """Machine settings, chosen once per run by rules (`machine/rules.py`) if "auto"."""

    device: Literal["auto", "cpu", "cuda"] = "auto"
    precision: Literal["auto", "fp32", "bf16", "fp16", "fp8"] = "auto"
    """fp32, or autocast to bf16 or fp16; fp8: bf16 with 8-bit matmuls inside, on a GPU with fp8 (extra fp8); auto: bf16
    on devices with bf16 instructions, else fp32."""
    float32_matmul_precision: Literal["auto", "highest", "medium"] = "auto"
    """Value for torch.set_float32_matmul_precision; auto: "medium" if that is true float32 and faster."""
    kernel: Literal["auto", "eager", "sdpa", "blockwise", "flex"] = "auto"
    """Attention kernel; auto: by device, precision, length and mask. On a CPU blockwise, or sdpa for short sequences in
    float32; on CUDA sdpa for plain attention, else flex (FlexAttention)."""
    scan: Literal["auto", "recurrent", "chunked", "fla"] = "auto"
    """Kernel of recurrences: recurrent (token by token), chunked (matmuls per chunk) or fla (flash-linear-attention,
    with bf16 matmuls); auto: fla on CUDA if installed, else chunked."""
    loss: Literal["auto", "whole", "chunked"] = "auto"
    """whole: all logits of a microbatch at once; chunked: a chunk at a time, to save memory; auto: chunked if float32
    logits would take more than 256 MiB; on a GPU, more than 8 % of its memory."""
    activation_checkpointing: ActivationCheckpointing = "none"
    """Recomputation in the backward pass, to save memory. selective: all of a layer except matmuls with weights and
    attention outputs; scores are recomputed if the kernel stores them (Korthikanti et al., 2022). full: whole layers
    from their inputs, for up to a third more FLOPs (Chen et al., 2016). Compiled layers recompute like selective, even
    with "none"."""
    stream: Literal["float32", "autocast"] = "float32"
    """Dtype of the residual stream between layers. autocast: bf16, which halves its memory and traffic, and rounds
    sums."""
    compile: Literal["auto", "none", "block"] = "auto"
    """block: torch.compile for each layer; auto: on a GPU, if gradients are the same; on a CPU, if it makes steps
    faster, measured in runs of over ten minutes."""
    fused: Literal["auto", "none", "liger"] = "auto"
    """Fused kernels for norms, gates and the chunked loss: liger's, on a GPU (extra liger), or none; auto: liger's if
    installed and faster, measured in runs of over ten minutes."""
    threads: AutoCount = "auto"
    """CPU threads of a machine, divided equally between its processes of a run."""
    num_steps: AutoSteps = "auto"
    """Steps of the run; auto: the number that fits the budget."""
