"""Checks before a run on several ranks. Imports no torch."""

from collections.abc import Iterator

from archwright.scale.layout import Layout
from archwright.spec.choice import Spec
from archwright.spec.errors import UserError
from archwright.spec.feedforward import Routing
from archwright.spec.model_spec import ModelSpec, StackSpec
from archwright.spec.run_spec import RunSpec


def check_layout(run: RunSpec, layout: Layout) -> None:
    """Refuse runs that several ranks would train differently from one rank.

    Raises:
        UserError: A line for each reason.
    """
    if layout.size > 1 and (lines := [*_refusals(run, layout)]):
        raise UserError(*lines)


def _refusals(run: RunSpec, layout: Layout) -> Iterator[str]:
    parts, readers = layout.num_readers * run.grad_accum_steps, f"{layout.size} processes"
    if layout.num_readers < layout.size:
        axes = {"tensor ": layout.tensor, "context ": layout.context, "pipeline ": layout.pipeline}
        kinds = [kind for kind, size in axes.items() if size > 1]
        readers = f"{layout.num_readers} {kinds[0] if len(kinds) == 1 else ''}groups"
    if run.batch_size % parts:
        times = (
            f" times grad_accum_steps = {run.grad_accum_steps}" if run.grad_accum_steps > 1 else ""
        )
        yield (
            f"batch_size: found {run.batch_size}; expected a multiple of {parts}, the {readers}{times}, "
            "as each takes as many rows"
        )
    for path, share in dropouts(run):
        yield (
            f"{path}: found {share}, of which {layout.size} processes would draw otherwise than one; expected 0"
        )
    for path, spec in _nested_specs(run.model, "model"):
        if isinstance(spec, Routing) and spec.draws:
            yield (
                f'{path}.kind: found "{spec.kind}", which draws experts, otherwise in {layout.size} processes than '
                "in one; expected another"
            )
    stages = layout.pipeline
    if stages > 1 and run.grad_accum_steps < stages:
        yield (
            f"grad_accum_steps: found {run.grad_accum_steps}; expected at least scale.pipeline = {stages}, as each "
            "stage works on another microbatch"
        )
    elif layout.is_interleaved and run.grad_accum_steps % stages:
        yield (
            f"grad_accum_steps: found {run.grad_accum_steps}; expected a multiple of scale.pipeline = {stages}, as "
            'scale.pipeline_schedule = "interleaved_1f1b" takes microbatches in rounds of as many'
        )
    if layout.num_shards * layout.tensor * layout.pipeline > 1 and not run.optimizer.can_shard:
        yield (
            f'optimizer.kind: found "{run.optimizer.kind}", which does not say that it can be cut up; expected '
            "can_shard = True in its spec, or replicas alone: scale.shard=1, scale.context=1, scale.tensor=1 and "
            "scale.pipeline=1"
        )
    yield from _of_model(run.model, layout)
    yield from _of_machine(run, layout)


def _of_machine(run: RunSpec, layout: Layout) -> Iterator[str]:
    machine = run.machine
    if machine.precision in ("fp16", "fp8"):
        yield f'machine.precision: found "{machine.precision}" of several processes; expected "bf16" or "fp32"'
    if layout.param_dtype == "bfloat16" and machine.precision != "bf16":
        yield (
            f'machine.precision: found "{machine.precision}", under which scale.param_dtype = "bfloat16" would round '
            'what is computed in float32; expected "bf16", or scale.param_dtype = "float32"'
        )
    if machine.fused == "liger":
        yield 'machine.fused: found "liger" of several processes; expected "none"'
    if run.probes.every and max(layout.tensor, layout.context, layout.pipeline) > 1:
        yield (
            f"probes.every: found {run.probes.every}; probes look at whole rows and layers: expected 0 with "
            "scale.tensor, scale.context or scale.pipeline above 1"
        )


def _of_model(spec: ModelSpec, layout: Layout) -> Iterator[str]:
    """Yield refusals by the model's parts, which need torch."""
    axes = (layout.context, layout.tensor, layout.expert, layout.pipeline)
    if max(axes) == 1 and layout.param_dtype != "bfloat16":
        return
    from archwright.model.build import build
    from archwright.scale import context, experts, fsdp, stages, tensor

    model = build(spec, device="meta")
    if layout.param_dtype == "bfloat16" and not fsdp.units(model):
        yield (
            f'scale.param_dtype: found "{layout.param_dtype}", but no layer of this model is gathered by itself, as '
            'layers are reversible or share their weights; expected "float32"'
        )
    if layout.pipeline > 1:
        yield from stages.refusals(model, layout)
    if layout.context > 1:
        yield from context.refusals(model, layout.context)
    if layout.tensor > 1:
        yield from tensor.refusals(model, layout.tensor)
    if layout.expert > 1:
        yield from experts.refusals(model, layout.expert)


def dropouts(run: RunSpec) -> list[tuple[str, float]]:
    """Return path and probability of each dropout of a run's model."""
    return [
        (f"{path}.{name}", getattr(spec, name))
        for path, spec in _nested_specs(run.model, "model")
        for name in type(spec).model_fields
        if name.endswith("dropout") and getattr(spec, name)
    ]


def _nested_specs(spec: Spec, path: str) -> Iterator[tuple[str, Spec]]:
    """Yield a spec and all specs inside, with their paths."""
    yield path, spec
    for name in type(spec).model_fields:
        if isinstance(inner := getattr(spec, name), Spec):
            yield from _nested_specs(inner, f"{path}.{name}")
    if isinstance(spec, StackSpec):
        for kind in spec.layer_kinds:
            yield from _nested_specs(spec.layers_by_kind[kind], f"{path}.layer_kinds.{kind}")
