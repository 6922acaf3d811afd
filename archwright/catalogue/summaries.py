"""Short descriptions of specs, and differences between two models."""

from collections.abc import Iterator
from itertools import groupby
from typing import Any

from archwright.spec.choice import BoolGroup, Choice, Spec
from archwright.spec.model_spec import Arrangement, LayerSpec, ModelSpec
from archwright.spec.residuals import PerBranch

WORDS = {
    "layer": "LayerNorm",
    "rms": "RMSNorm",
    "dyt": "DyT",
    "sandwich": "pre+post",
    "deepnorm": "DeepNorm",
    "rope": "RoPE",
    "alibi": "ALiBi",
    "t5": "relative (T5)",
    "transformer_xl": "relative (XL)",
    "relu": "ReLU",
    "gelu": "GELU",
    "quick_gelu": "quick GELU",
    "silu": "SiLU",
    "squared_relu": "ReLU²",
    "xielu": "xIELU",
    "glu": "GLU",
    "reglu": "ReGLU",
    "geglu": "GEGLU",
    "swiglu": "SwiGLU",
    "clamped_swiglu": "clamped SwiGLU",
    "gegelu": "GEGELU",
    "unit_offset": "1 + w",
    "yarn": "YaRN",
    "llama3": "Llama 3",
    "longrope": "LongRoPE",
    "dynamic": "dynamic NTK",
    "glorot": "Glorot",
    "gpt2": "GPT-2",
    "fan_in": "fan-in",
    "mup": "muP",
    "experts": "mixture of experts",
    "selective": "Mamba",
    "rg_lru": "RG-LRU",
    "short_conv": "short conv",
    "rwkv7": "RWKV-7",
    "sqrt_dim": "√width",
}
"""Common spelling of kinds and values, if it differs from the key."""

NAMES = {
    "residual": "wiring",
    "feedforward": "feed-forward",
    "cross_attention": "cross-attention",
    "num_layers": "layers",
    "dim": "width",
    "vocab_size": "vocabulary",
    "context_length": "context",
    "hidden_dim": "d_ff",
    "ratio": "d_ff / width",
    "qk_norm": "QK-norm",
    "qk_norm_over": "QK-norm over",
    "qk_norm_position": "QK-norm",
    "v_norm": "V-norm",
    "softcap": "soft cap",
    "num_global": "global tokens",
    "num_random": "random blocks",
}
"""Displayed names of fields, if they differ from the key."""

BELONGS = {"qk_norm_over": "qk_norm", "qk_norm_position": "qk_norm"}
"""Option -> choice. The option has no effect if that choice is "none"."""
ENDINGS = {"qk_norm_position": " positions"}
SWITCHES = {("tied", False): "untied", ("normalize_weights", False): "not renormalised"}
ALWAYS = {
    "size",
    "radius",
    "stride",
    "dilation",
    "num_experts",
    "num_global",
    "num_random",
    "block_size",
    "write",
    "decay",
}
"""Options that are shown even at their default."""

HEADS = ("num_heads", "num_kv_heads", "head_dim")
KEY_HEADS = ("num_heads", "num_key_heads", "head_dim")
OWN_HEADS = ("num_heads", "head_dim")
EXPERTS = ("num_experts", "top_k")
TOGETHER = {
    HEADS: "{num_heads}/{num_kv_heads} heads of {head_dim}",
    KEY_HEADS: "{num_heads}/{num_key_heads} heads of {head_dim}",
    OWN_HEADS: "{num_heads} heads of {head_dim}",
    EXPERTS: "{top_k} of {num_experts}",
}
"""Formats of fields that are shown together."""
NOTHING = "-"

Difference = tuple[str, str, str]
"""Axis or option, old choice, new choice."""


def word(kind: str) -> str:
    """Return the common spelling of a kind or value."""
    return WORDS.get(kind, kind.replace("_", " "))


def called(choice: Choice) -> str:
    """Return the common spelling of a choice's kind."""
    return choice.spelling or word(choice.kind)


def name_of(field: str) -> str:
    """Return the displayed name of a field."""
    return NAMES.get(field, field.replace("_", " "))


def brief(spec: Spec) -> str:
    """Return a choice's kind and its non-default options."""
    required = any(field.is_required() for field in type(spec).model_fields.values())
    usual = {} if required else phrases(type(spec)())
    options = [
        text
        for field, text in phrases(spec).items()
        if field in ALWAYS or _has_sizes(getattr(spec, field)) or usual.get(field) != text
    ]
    kind = called(spec) if isinstance(spec, Choice) else ""
    return ", ".join(filter(None, [kind, *options]))


def _has_sizes(value: object) -> bool:
    """True if a choice has a field listed in `ALWAYS`."""
    return isinstance(value, Choice) and bool(ALWAYS & type(value).model_fields.keys())


def phrases(spec: Spec) -> dict[str, str]:
    """Return the description of each option, by field."""
    fields = [
        field
        for field in type(spec).model_fields
        if field not in {"kind", *spec.not_results}
        and getattr(getattr(spec, BELONGS.get(field, ""), None), "kind", "") != "none"
    ]
    texts = {field: _phrase(field, getattr(spec, field)) for field in fields}
    for together, pattern in TOGETHER.items():
        if {*together} <= texts.keys():
            values = {field: getattr(spec, field) for field in together}
            texts = {f: t for f, t in texts.items() if f not in together[1:]}
            texts[together[0]] = pattern.format(**values)
    return texts


def model_words(spec: ModelSpec) -> dict[str, Any]:
    """Return the choices outside the layers: numbers, specs, summaries of stacks."""
    fields = (
        "num_layers",
        "dim",
        "vocab_size",
        "context_length",
        "embedding",
        "head",
        "sequence_head",
        "init",
    )
    stacks = {
        "encoder": stack_words(spec, spec.encoder_model),
        "generator": stack_words(spec, spec.generator_model),
    }
    return {field: getattr(spec, field) for field in fields} | stacks


def stack_words(spec: ModelSpec, stack: ModelSpec | None) -> str:
    """Summarize how an encoder or generator differs from the model."""
    if stack is None:
        return "none"
    differing = [f for f in ("dim", "context_length") if getattr(stack, f) != getattr(spec, f)]
    parts = [f"{stack.num_layers} layer{'s' * (stack.num_layers != 1)}"]
    parts += [f"{name_of(field)} {_value(getattr(stack, field))}" for field in differing]
    parts += [] if spec.encoder.shares_embedding else ["separate embedding"]
    parts += [] if spec.generator.is_none else [f"head {brief(stack.head)}"]
    return ", ".join(parts)


def layer_words(spec: ModelSpec) -> dict[str, LayerSpec]:
    """Return the used kinds of layers, with resolved head and hidden widths."""
    resolved, used = spec.resolved(), set(spec.layers.names(spec.num_layers))
    return {
        name: _with_widths(layer, resolved.layers_by_kind[name])
        for name, layer in spec.layers_by_kind.items()
        if name in used or name == "default"
    }


def arrangement(layers: Arrangement) -> str:
    """Return the order of layer kinds: `2 dense, then local + default, repeated`."""
    cycle = _runs(layers.cycle) + (", repeated" if len(set(layers.cycle)) > 1 else "")
    ends = ", then ".join(filter(None, [_runs(layers.prefix), cycle, _runs(layers.suffix)]))
    return ends + (", parameters shared by kind" if layers.shared else "")


def differences(old: ModelSpec, new: ModelSpec) -> list[Difference]:
    """Return the choices in which two models differ."""
    changes: list[Difference] = []
    if (old_order := arrangement(old.layers)) != (new_order := arrangement(new.layers)):
        changes.append(("arrangement", old_order, new_order))
    old_choices, new_choices = model_words(old), model_words(new)
    for field in dict.fromkeys([*old_choices, *new_choices]):
        changes += _choices(name_of(field), old_choices.get(field, 0), new_choices.get(field, 0))
    of_decoder = _of_layers(old, new)
    if (old_encoder := old.encoder_model) is None or (new_encoder := new.encoder_model) is None:
        of_generator: list[Difference] = []
        if (before := old.generator_model) and (after := new.generator_model):
            of_generator = _of_layers(before, after)
        return changes + of_decoder + [(f"generator: {at}", a, b) for at, a, b in of_generator]
    # Name no stack for changes common to both, or for cross-attention, which only decoders have.
    of_encoder, reading = _of_layers(old_encoder, new_encoder), name_of("cross_attention")
    both = [d for d in of_decoder if d in of_encoder or d[0].endswith(reading)]
    changes += both
    for stack, of_stack in (("encoder", of_encoder), ("decoder", of_decoder)):
        changes += [(f"{stack}: {at}", a, b) for at, a, b in of_stack if (at, a, b) not in both]
    return changes


def _of_layers(old: ModelSpec, new: ModelSpec) -> list[Difference]:
    """Return the differences between the layers of two stacks."""
    changes: list[Difference] = []
    before, after = layer_words(old), layer_words(new)
    everywhere = [*_between(before["default"], after["default"])]
    if any("default" in spec.layers.names(spec.num_layers) for spec in (old, new)):
        changes += everywhere
    for name in dict.fromkeys(n for n in (*before, *after) if n != "default"):
        if name in before and name in after:
            changes += [
                (f"{name}: {at}", a, b)
                for at, a, b in _between(before[name], after[name])
                if (at, a, b) not in everywhere
            ]
        elif name in after:
            added = _between(after["default"], after[name])
            changes += [(f"{name}: {at}", NOTHING, b) for at, _, b in added]
        else:
            removed = _between(before["default"], before[name])
            changes += [(f"{name}: {at}", b, NOTHING) for at, _, b in removed]
    return changes


def _between(old: LayerSpec, new: LayerSpec) -> Iterator[Difference]:
    """Yield the differences between two layers."""
    for axis in LayerSpec.model_fields:
        yield from _choices(name_of(axis), getattr(old, axis), getattr(new, axis))


def _choices(name: str, old: Any, new: Any) -> Iterator[Difference]:
    """Yield differing options, or both choices if their kinds differ."""
    if not isinstance(old, Spec):
        if old != new:
            yield name, _value(old), _value(new)
    elif type(old) is not type(new):
        yield name, brief(old), brief(new)
    else:
        before, after = phrases(old), phrases(new)
        for field in dict.fromkeys([*before, *after]):
            sides = before.get(field, NOTHING), after.get(field, NOTHING)
            if sides[0] != sides[1]:
                yield (name, *sides)


def _with_widths(layer: LayerSpec, resolved: LayerSpec) -> LayerSpec:
    """Resolve only the widths of a layer."""
    update: dict[str, Any] = {}
    for axis in ("attention", "recurrence", "cross_attention", "feedforward"):
        choice, full = getattr(layer, axis), getattr(resolved, axis)
        widths = {
            f: getattr(full, f)
            for f in (*HEADS, "num_key_heads", "hidden_dim", "ratio", "expert")
            if hasattr(full, f)
        }
        update[axis] = choice.model_copy(update=widths)
    return layer.model_copy(update=update)


def _phrase(field: str, value: object) -> str:
    """Return the description of one option."""
    name = name_of(field)
    if isinstance(value, BoolGroup):
        on = [key for key, switch in value if switch]
        all_alike = value.one is not None
        return (name if value.one else f"no {name}") if all_alike else f"{name} of {', '.join(on)}"
    if isinstance(value, PerBranch):
        both = ", ".join(f"{key} {number:g}" for key, number in value.given.items())
        return f"{name} {both if value.one is None else format(value.one, 'g')}"
    if isinstance(value, Spec):
        inner = brief(value)
        return f"{name} {inner.replace(', ', ' (', 1)})" if ", " in inner else f"{name} {inner}"
    if isinstance(value, bool):
        return SWITCHES.get((field, value), name if value else f"no {name}")
    return f"{name} {_value(value)}{ENDINGS.get(field, '')}"


def _value(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.0f}" if value.is_integer() and abs(value) >= 1000 else f"{value:.6g}"
    if isinstance(value, (tuple, list)):
        return ", ".join(map(_value, value)) or "none"
    return word(str(value))


def _runs(names: tuple[str, ...]) -> str:
    runs = [(name, len([*same])) for name, same in groupby(names)]
    return " + ".join(name if n == 1 else f"{n} {name}" for name, n in runs)


def one_line(spec: ModelSpec, num_parameters: int) -> str:
    """Return a one-line summary of a resolved model."""
    head = "tied" if spec.head.tied else "untied"
    name = f"{spec.name}: " if spec.name else ""
    millions = num_parameters / 1e6
    size = f"{millions:.3g}M" if millions < 1000 else f"{millions / 1000:.3g}B"
    stacks = [
        f"{name} of {_stack_line(stack)}; "
        for name, stack in (("encoder", spec.encoder_model), ("generator", spec.generator_model))
        if stack is not None
    ]
    outputs = f"{head} head of {spec.vocab_size}"
    if spec.head.predicts == "replaced":
        outputs = "head of replaced tokens"
    return (
        f"{name}{size} parameters, dim {spec.dim}, {''.join(stacks)}{_stack_line(spec)}, {outputs}"
    )


def _stack_line(spec: ModelSpec) -> str:
    """Return a one-line summary of a stack."""
    kinds = dict.fromkeys(spec.layers.names(spec.num_layers))
    layers = []
    for kind in kinds:
        layer = spec.layers_by_kind[kind]
        parts = [
            f"{layer.residual.kind}{'-norm' * (layer.residual.streams == 1)} {layer.norm.kind}",
            f"{layer.position.kind} positions",
        ]
        mixers = (mixer for name, mixer in layer.mixers.items() if name != "feedforward")
        parts += [mixer.one_line for mixer in mixers]
        parts += [layer.feedforward.one_line] * (not layer.feedforward.is_none)
        layers.append(("" if kind == "default" else f"{kind}: ") + ", ".join(parts))
    shared = " that share their parameters" if spec.layers.shared else ""
    layer_count = f"{spec.num_layers} layer{'s' * (spec.num_layers != 1)}"
    return f"{layer_count}{shared} of {'; '.join(layers)}"
