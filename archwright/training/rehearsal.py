"""A pass of a model on tensors that have shapes and dtypes, but no memory and no values: what it computes and keeps.

The code that trains and writes is what runs, so that kernels, precisions, losses and optimizers, also those from
outside, are counted as they are.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
)
from torch.utils._python_dispatch import TorchDispatchMode

from archwright.data.inputs import Array, Batch, Inputs
from archwright.losses import cross_entropy
from archwright.machine.precision import Precision
from archwright.model.build import build_uninitialized
from archwright.model.decoder import Decoder
from archwright.optim import Optimizers, build_optimizers
from archwright.parts.context import Context
from archwright.parts.mixers import AttentionMixer
from archwright.parts.token_layout import TokenLayout
from archwright.scale.processes import ALONE
from archwright.spec.errors import UserError
from archwright.spec.run_spec import RunSpec
from archwright.training.evaluation import rows_at_once
from archwright.training.step import train_step


class Watch(TorchDispatchMode):
    """Sees every operation; a number that is asked of a tensor without values is 1, or False, and a share `chosen` of
    the places of a mask without values is True."""

    chosen = 1.0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func is torch.ops.aten._local_scalar_dense.default and isinstance(args[0], FakeTensor):
            dtype = args[0].dtype
            return 1.0 if dtype.is_floating_point else dtype != torch.bool and 1
        if func is torch.ops.aten.index.Tensor:
            args = args[0], [place for index in args[1] for place in self._places(index)]
        if func is torch.ops.aten._grouped_mm.default:
            # The kernel takes float32 too, which torch refuses where there are no values (torch 2.13).
            narrow = (x.to(torch.bfloat16) for x in args[:2])
            out = func(*narrow, *args[2:], **(kwargs or {})).to(args[0].dtype)
        else:
            out = func(*args, **(kwargs or {}))
        self.see(func.overloadpacket.__name__, args, out)
        return out

    def _places(self, index: Any) -> list[Any]:
        """Return an index by numbers for one by a mask, an axis each."""
        if not isinstance(index, FakeTensor) or index.dtype != torch.bool:
            return [index]
        number = max(1, round(self.chosen * index.numel()))
        return [index.new_empty(number, dtype=torch.long) for _ in index.shape]

    def see(self, name: str, given: Any, out: Any) -> None:
        """Take note of an operation, of what it is given, and of what it gives."""


class Rehearsal:
    """A run's model and optimizers without memory. Steps and passes belong into `going_on`.

    Raises:
        UserError: a model that breaks rules; a run whose steps depend on values.
    """

    def __init__(self, run: RunSpec, watch: Watch) -> None:
        machine = run.machine
        if machine.precision == "fp8":
            raise UserError("rehearsal: steps in 8 bits depend on values; expected 16 or 32 bits")
        spec = run.model.resolved()
        optimizer = run.optimizer.with_lrs_resolved()
        self.run = run.model_copy(update={"model": spec, "optimizer": optimizer})
        self._fake, self._watch = FakeTensorMode(allow_non_fake_inputs=True), watch
        watch.chosen = run.objective.drawn_share or 1.0
        with self.going_on():
            self.model: Decoder = build_uninitialized(spec)
        self.model.use_kernel("blockwise" if machine.kernel == "auto" else machine.kernel)
        # Compiled layers are left to the compiler.
        if machine.activation_checkpointing == "full" or machine.compile != "block":
            self.model.checkpoint_activations(machine.activation_checkpointing)
        precision = "fp32" if machine.precision == "auto" else machine.precision
        self.precision = Precision(precision, torch.device("cpu"), self.model.head.d_out)
        self._optimizers: Optimizers | None = None
        length = spec.context_length
        self.cut_blocks(length, run.objective.target_length(length))

    @contextmanager
    def going_on(self) -> Iterator[None]:
        """Inside, new tensors have no memory, and operations are watched.

        Raises:
            UserError: a part asks for values.
        """
        try:
            with self._fake, self._watch:
                yield
        except (DynamicOutputShapeException, DataDependentOutputException) as error:
            raise UserError(
                f"rehearsal: the shape of what {error.func} gives depends on values; memory and time of such steps are "
                "measured alone, by training"
            ) from None

    def step(self) -> None:
        """Train on a batch."""
        run = self.run
        if self._optimizers is None:
            self._optimizers = build_optimizers(
                self.model, run.optimizer, precision=self.precision.dtype
            )
        train_step(
            self.model,
            self.batch(run.batch_size, self.model.spec.context_length),
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

    def evaluation(self) -> None:
        """Read a batch of held-out text, as long as the context."""
        length = self.model.spec.context_length
        batch = self.batch(rows_at_once(length), length)
        self.model.eval()
        with torch.no_grad():
            with self.precision.autocast():
                out = ALONE.output(self.model, batch)
            assert out is not None, "a process alone has the whole model"
            cross_entropy(out.logits, batch.targets)
        self.model.train()

    def batch(self, rows: int, length: int) -> Batch:
        """Return full rows, and of a model with a generator numbers that tokens are drawn by."""
        batch = full_batch(self.run, self.tokens, rows, length)
        if self.model.spec.generator_model is not None:
            return replace(batch, inputs=replace(batch.inputs, draws=torch.zeros(rows, length)))
        return batch

    def reading(self, rows: int, length: int, target_length: int = 1) -> Inputs:
        """Return texts of `length` tokens; of a model with an encoder they are sources, beside which its decoder reads
        `target_length`."""
        return _inputs(self.run, self.tokens, rows, length, target_length)

    def tokens(self, rows: int, length: int) -> torch.Tensor:
        """Return tokens, which are all 0."""
        return torch.zeros(rows, length, dtype=torch.long)

    def cut_blocks(self, length: int, target_length: int | None = None) -> None:
        """Cut masks into blocks while tensors have values; passes on fake tensors then find the blocks."""
        if self.run.machine.kernel not in ("auto", "blockwise"):
            return
        for stack in self.model.stacks:
            beside_source = stack.spec.encoder_model is not None
            text = target_length if beside_source and target_length else length
            layout = TokenLayout(text + stack.spec.global_tokens, torch.device("cpu"))
            streams = stack.spec.predicting_streams
            for number in {streams, min(streams, 1)}:  # of training, and into a cache
                context = Context(layout.with_streams(number) if number else layout, batch=1)
                for mixer in stack.mixers():
                    if isinstance(mixer, AttentionMixer) and not mixer.source_maps:
                        mixer.prepare(context)


Tokens = Callable[[int, int], Array]
"""Makes so many rows of so many tokens."""


def full_batch(run: RunSpec, tokens: Tokens, rows: int, length: int) -> Batch:
    """Return rows of `length` tokens; of a model with an encoder they are sources, with targets as long as the
    objective makes them."""
    target_length = run.objective.target_length(length)
    inputs = _inputs(run, tokens, rows, length, target_length)
    has_source = inputs.decoder_tokens is not None
    return Batch(inputs, tokens(rows, target_length if has_source else length))


def _inputs(run: RunSpec, tokens: Tokens, rows: int, length: int, target_length: int) -> Inputs:
    if run.model.encoder_model is None:
        return Inputs(tokens(rows, length))
    return Inputs(tokens(rows, length), decoder_tokens=tokens(rows, target_length))
