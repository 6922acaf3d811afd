"""Refusal of identical variants, with the cause and a remedy."""

from collections.abc import Iterator, Mapping
from contextlib import suppress

from archwright.lab.design.scaling import SIZES
from archwright.lab.design.variants import arms, set_by, sized_by_user, words_of
from archwright.parts.masks import as_seen, is_full
from archwright.spec.attention import MaskedAttention
from archwright.spec.errors import UserError
from archwright.spec.fingerprint import fingerprint
from archwright.spec.masks import Mask
from archwright.spec.model_spec import Arrangement, LayerSpec, ModelSpec
from archwright.spec.read import diff
from archwright.spec.run_spec import RunSpec
from archwright.spec.study_spec import StudySpec


def refuse_identical(study: StudySpec, runs: Mapping[str, RunSpec]) -> None:
    """Raise a UserError with a line for each pair of identical variants."""
    known: dict[str, str] = {}
    lines = []
    for name, run in runs.items():
        length = longest(study, run)
        other = known.setdefault(_effect(run, length), name)
        if other != name:
            lines.append(
                f'"{name}" and "{other}" are the same model, trained alike; there is nothing to compare'
                f"{_why(study, runs, name, other, length)}"
            )
    if lines:
        raise UserError(*lines)


def unscaled(study: StudySpec) -> Mapping[str, RunSpec]:
    """Return the unscaled variants; empty if one of them needs scaling."""
    try:
        return arms(study, None)
    except UserError:
        return {}


def longest(study: StudySpec, run: RunSpec) -> int:
    """Return the length of a study's longest sequences, in tokens."""
    return run.model.context_length * max(1, *study.lengths, 1)


def _effect(run: RunSpec, length: int) -> str:
    """Return a hash of the effective run: its layers in order, with effective masks."""
    model = run.model.resolved()
    axes = {axis: field.get_default() for axis, field in LayerSpec.model_fields.items()}
    bare = model.model_dump() | {
        **{axis: choice.model_dump() for axis, choice in axes.items()},
        "layer_kinds": {},
        "layers": Arrangement(shared=model.layers.shared).model_dump(),
    }
    layers = [
        fingerprint(_as_seen(model.layer(i), model.dim, length)) for i in range(model.num_layers)
    ]
    rest = run.model_copy(update={"model": ModelSpec.model_validate(bare)})
    whose = [str(number) for number in model.layer_indices] if model.layers.shared else []
    return "-".join([rest.hash(), *layers, *whose])


def _as_seen(layer: LayerSpec, dim: int, length: int) -> LayerSpec:
    if not isinstance(layer.attention, MaskedAttention):
        return layer
    mask = as_seen(layer.attention.mask, layer.attention.heads(dim)["num_heads"], length)
    return layer.model_copy(update={"attention": layer.attention.model_copy(update={"mask": mask})})


def _why(study: StudySpec, runs: Mapping[str, RunSpec], name: str, other: str, length: int) -> str:
    """Describe the cause and a remedy of identical variants, if known."""
    for each, against in ((name, other), (other, name)):
        if idle := next(_idle_masks(runs[each].model, runs[against].model, length), None):
            return f": {idle}"
    asked = unscaled(study)
    changed = diff(asked[other], asked[name]) if asked else []
    if not changed:
        return ""
    given = set_by(words_of(study)[name]) | set_by(words_of(study)[other])
    for line in changed:
        path = line.partition(":")[0]
        if path in given:
            return (
                f": {path.removeprefix('model.')} = {given[path]} is what both have at this size (dim "
                f"{runs[other].model.dim}); give another value{_or_another_size(study, name, other)}"
            )
    path, _, value = changed[0].removeprefix("model.").partition(": ")
    return (
        f": they differ in {'; '.join(changed[:2])}, which scaling and matching then set for both; what words set "
        f"stays, such as :{path}={value.rpartition(' -> ')[2]}"
    )


def _or_another_size(study: StudySpec, name: str, other: str) -> str:
    """Return the smallest size with different variants, as an option."""
    if study.size == "given" or sized_by_user(study):
        return ""
    for size in SIZES:
        with suppress(UserError):
            runs = arms(study, size)
            if len({_effect(runs[each], longest(study, runs[each])) for each in (name, other)}) > 1:
                return f", or --size {size / 1e6:g}M, at which they differ"
    return ""


def _idle_masks(model: ModelSpec, other: ModelSpec, length: int) -> Iterator[str]:
    """Describe masks, absent from the other model, that hide nothing, each with a remedy."""
    known = [getattr(layer.attention, "mask", None) for layer in other.layers_by_kind.values()]
    for name, layer in model.layers_by_kind.items():
        if not isinstance(layer.attention, MaskedAttention):
            continue
        mask, num_heads = layer.attention.mask, layer.attention.heads(model.dim)["num_heads"]
        if mask not in known and is_full(mask, num_heads, length):
            yield _more_hidden(mask, "" if name == "default" else f"layer_kinds.{name}.", length)


def _more_hidden(mask: Mask, at: str, length: int) -> str:
    """Describe a mask that hides nothing, with an option value for a quarter of a sequence."""
    size, remedy = "", f"give another {at}attention.mask.kind"
    if mask.extent:
        option = mask.extent[0]
        value = getattr(mask, option)
        less = max(1, length // 4 * value // mask.reach)
        size = f" with {option} = {value}"
        remedy = f"give it less, such as {at}attention.mask.{option}={less}"
    return f'the mask "{mask.kind}"{size} hides nothing in {length:,} tokens; {remedy}'
