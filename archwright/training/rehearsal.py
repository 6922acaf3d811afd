"""A pass of a model on tensors that have shapes and dtypes, but no memory and no values: what it computes and keeps.

The code that trains and writes is what runs, so that kernels, precisions, losses and optimizers, also those from
outside, are counted as they are.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from archwright.data.inputs import Batch, Inputs
from archwright.machine.precision import Precision
from archwright.model.build import build_uninitialized
from archwright.model.decoder import Decoder
from archwright.optim import Optimizers, build_optimizers
from archwright.parts.kernels.blocks import blocks_of
from archwright.parts.masks import AttentionMask
from archwright.parts.mixers import AttentionMixer
from archwright.parts.token_layout import TokenLayout
from archwright.spec.errors import UserError
from archwright.spec.run_spec import RunSpec
from archwright.training.step import train_step


class Watch(TorchDispatchMode):
    """Sees every operation; a number that is asked of a tensor without values is 1, or False."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func is torch.ops.aten._local_scalar_dense.default and isinstance(args[0], FakeTensor):
            dtype = args[0].dtype
            return 1.0 if dtype.is_floating_point else dtype != torch.bool and 1
        out = func(*args, **(kwargs or {}))
        self.see(func.overloadpacket.__name__, args, out)
        return out

    def see(self, name: str, given: Any, out: Any) -> None:
        """Take note of an operation, of what it is given, and of what it gives."""


class Rehearsal:
    """A run's model and optimizers without memory. Steps and passes belong into `watched_by`.

    Raises:
        UserError: a model that breaks rules; a run whose steps depend on values.
    """

    def __init__(self, run: RunSpec, watch: Watch) -> None:
        machine = run.machine
        stacks = (run.model.encoder_model, run.model.generator_model)
        if any(stack is not None for stack in stacks) or machine.precision == "fp8":
            raise UserError(
                "rehearsal: steps of two stacks, or in 8 bits, depend on values; expected one stack in 16 or 32 bits"
            )
        spec = run.model.resolved()
        optimizer = run.optimizer.with_lrs_resolved()
        self.run = run.model_copy(update={"model": spec, "optimizer": optimizer})
        self._fake, self._watch = FakeTensorMode(allow_non_fake_inputs=True), watch
        with self.going_on():
            self.model: Decoder = build_uninitialized(spec)
        self.model.use_kernel("blockwise" if machine.kernel == "auto" else machine.kernel)
        if machine.activation_checkpointing == "full":
            self.model.checkpoint_activations()
        precision = "fp32" if machine.precision == "auto" else machine.precision
        self.precision = Precision(precision, torch.device("cpu"), self.model.head.d_out)
        self._optimizers: Optimizers | None = None
        self.cut_blocks(spec.context_length)

    @contextmanager
    def going_on(self) -> Iterator[None]:
        """Inside, new tensors have no memory, and operations are watched."""
        with self._fake, self._watch:
            yield

    def step(self) -> None:
        """Train on a batch."""
        run = self.run
        if self._optimizers is None:
            self._optimizers = build_optimizers(
                self.model, run.optimizer, precision=self.precision.dtype
            )
        shape = (run.batch_size, self.model.spec.context_length)
        train_step(
            self.model,
            Batch(Inputs(self.tokens(*shape)), self.tokens(*shape)),
            self._optimizers,
            lr_scale=1e-3,
            precision=self.precision,
            max_grad_norm=None if run.max_grad_norm == "none" else run.max_grad_norm,
            z_loss=run.z_loss,
            label_smoothing=run.label_smoothing,
            grad_accum_steps=run.grad_accum_steps,
            chunked=run.machine.loss == "chunked",
            stream_decay=run.stream_decay,
        )

    def tokens(self, rows: int, length: int) -> torch.Tensor:
        """Return tokens, which are all 0."""
        return torch.zeros(rows, length, dtype=torch.long)

    def cut_blocks(self, length: int) -> None:
        """Look at masks while tensors have values; the blocks of kernels are known from then on."""
        for mixer in self.model.mixers():
            if isinstance(mixer, AttentionMixer):
                layout = TokenLayout(length, torch.device("cpu"))
                streams = self.model.spec.predicting_streams
                for number in {streams, min(streams, 1)}:  # of training, and into a cache
                    at = layout.with_streams(number) if number else layout
                    blocks_of(AttentionMask(mixer.pattern.value, at))
