"""Random specs, drawn from the axes and fields there are, so that a new choice is drawn by existing."""

from collections.abc import Mapping
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from annotated_types import Ge, Gt, Le, Lt, MinLen
from hypothesis import strategies as st
from pydantic.fields import FieldInfo

from archwright.classic.spec.axial import Axial
from archwright.classic.spec.longformer import Longformer
from archwright.spec.attention import Attention, NoAttention, NoValueEmbedding
from archwright.spec.choice import Choice, Spec
from archwright.spec.cross_attention import NoCrossAttention, SoftmaxCrossAttention
from archwright.spec.embeddings import NoSequenceHead
from archwright.spec.masks import Mask
from archwright.spec.mixers import NoRecurrence, Recurrence
from archwright.spec.model_spec import (
    Arrangement,
    EncoderStack,
    GeneratorStack,
    LayerSpec,
    ModelSpec,
    NoEncoder,
    NoGenerator,
    StackSpec,
)
from archwright.spec.positions import NoPosition, NoScaling, Position, TransformerXL
from archwright.spec.recurrences import LinearRecurrence
from archwright.spec.run_spec import RunSpec

Ranges = Mapping[str, st.SearchStrategy[Any]]

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)

SMALL: Ranges = {
    "name": TEXT,
    "source": TEXT,
    "sources": st.dictionaries(
        st.sampled_from(["dim", "norm", "attention.bias"]), TEXT, max_size=2
    ),
    "dim": st.sampled_from([8, 16, 16, 24, 32, 32, 48, 64]),
    "num_layers": st.integers(1, 3),
    "global_tokens": st.sampled_from([0] * 7 + [1, 3]),
    "predicting_streams": st.just(0),  # which few choices stand beside: see `stream_specs`
    "global_norm": st.sampled_from([False] * 7 + [True]),
    "vocab_size": st.sampled_from([16, 33, 64]),
    "context_length": st.sampled_from([1, 2, 3, 5, 8, 12, 12, 16, 24]),
    "num_heads": st.sampled_from(["auto", 1, 2, 3, 4]),
    "num_kv_heads": st.sampled_from(["auto", "auto", 1, 2]),
    "head_dim": st.sampled_from(["auto", "auto", 4, 8, 8]),
    "query_rank": st.sampled_from(["none", 4, 6]),
    "kv_rank": st.sampled_from(["auto", 4, 6, 6]),
    "nope_head_dim": st.sampled_from(["auto", 4, 8]),
    "rope_head_dim": st.sampled_from(["auto", 4, 8, 8]),
    "value_head_dim": st.sampled_from(["auto", "auto", 4, 6]),
    "hidden_dim": st.sampled_from(["auto", "auto", 8, 24]),
    "ratio": st.sampled_from(["none"] * 10 + [0.7, 3.0]),
    "size": st.integers(1, 12),
    "theta": st.floats(10, 1e6),
    "ShortConvolution.width": st.integers(1, 5),
    "keys_as_values": st.sampled_from([False] * 7 + [True]),
    "shares_kv": st.sampled_from([False] * 7 + [True]),
    "layer_embedding": st.sampled_from(["none"] * 24 + [4, 8]),
    "layer_scalar": st.sampled_from([False] * 7 + [True]),
    "fraction": st.sampled_from([0.25, 0.5, 1.0]),
    "eps": st.floats(1e-8, 1e-2),
    "num_experts": st.sampled_from([4, 4, 6, 8]),
    "top_k": st.sampled_from([1, 2, 2]),
    "capacity": st.just("none"),  # with one, a token's output depends on who is beside it
    "num_groups": st.sampled_from([1, 1, 2]),
    "top_groups": st.just(1),
    "jitter": st.floats(0.01, 0.5),
    "selection_bias_update_rate": st.sampled_from([0.0, 0.0, 0.01]),
    "normalize_power": st.sampled_from([1.0, 1.0, 2.0]),
    "normalize_eps": st.sampled_from([1e-20, 1e-6]),
    "normalize_min": st.sampled_from([0.0, 0.0, 0.7]),
    "routed_scaling_factor": st.floats(0.5, 3),
    "shared_hidden_dim": st.sampled_from(["auto", 8, 12]),
    "latent_dim": st.sampled_from(["none", "none", 6]),
    "gate_multiplier": st.sampled_from([1.0, 1.0, 0.6]),
    **{
        f"Multipliers.{name}": st.sampled_from([1.0, 1.0, 0.7, 1.3])
        for name in ("query", "key", "value", "gate", "decay")
    },
    "PerBranch.attention": st.sampled_from([1.0, 0.3, 1.5]),
    "PerBranch.feedforward": st.sampled_from([1.0, 0.5, 2.0]),
    "offset": st.integers(0, 2),
    "Head.logit_scale": st.floats(0.5, 2),
    # One logit, and what proposes tokens beside it, have laws of their own.
    "Head.predicts": st.just("tokens"),
    "generator": st.just(NoGenerator()),
    "DeepNorm.alpha": st.just("auto") | st.floats(0.3, 2),
    "DeepNorm.gain": st.just("auto") | st.floats(0.3, 2),
    "logit_divisor": st.floats(0.5, 2),
    "Embedding.dim": st.sampled_from(["auto", "auto", 8, 16, 20]),
    "Embedding.scale": st.sampled_from(["none", "sqrt_dim", 2.5]),
    "radius": st.integers(0, 6),
    "LongformerAttention.mask": st.deferred(lambda: specs(Longformer, SMALL)),
    "Longformer.radius": st.integers(1, 6),
    "dilation": st.integers(1, 4),
    "num_global": st.integers(1, 3),
    "Longformer.num_global": st.integers(0, 3),
    "dilated_heads": st.sampled_from(["all", 1, 2]),
    "stride": st.integers(1, 6),
    "block_size": st.integers(1, 4),
    "local_blocks": st.integers(1, 3),
    "BlockLocal.shift": st.integers(0, 3),
    "BlockLocal.num_global": st.integers(0, 3),
    "BigBird.num_random": st.integers(0, 2),
    "BigBird.block_size": st.integers(1, 2),
    "num_summary": st.integers(1, 3),
    "factor": st.floats(1, 8),
    "original_length": st.just("auto") | st.integers(4, 24),
    "attention_factor": st.just("auto") | st.floats(0.5, 1.5),
    "beta_fast": st.floats(2, 32),
    "beta_slow": st.floats(0.5, 1.5),
    "low_freq_factor": st.floats(0.5, 1),
    "high_freq_factor": st.floats(2, 4),
    "short": st.just(()),
    "long": st.just(()),
    "DisentangledAttention.num_buckets": st.sampled_from(["none", 4, 5, 8]),
    "num_buckets": st.sampled_from([4, 5, 8]),
    "LSHAttention.num_buckets": st.sampled_from(["auto", 2, 4, (2, 4)]),
    "Axial.shape": st.sampled_from(["auto", "auto", (4, 6), (2, 3, 4)]),
    "Axial.dims": st.sampled_from(["auto", "auto", "auto", (4, 12)]),
    "num_hashes": st.integers(1, 3),
    "chunk_size": st.integers(1, 8),
    "chunks_before": st.integers(0, 2),
    "chunks_after": st.integers(0, 1),
    "max_distance": st.integers(5, 16),
    "numerator": st.floats(1, 4),
    "bias_max": st.integers(4, 16),
    "FixedScale.value": st.floats(0.1, 1),
    "period": st.integers(1, 6),
    "coefficient": st.just(0.0) | st.floats(1e-3, 1),
    "qkv_clip": st.just("none") | st.floats(1, 10),
    "value_scale": st.floats(0.5, 2),
    "alpha_positive": st.floats(0.5, 1),
    "alpha_negative": st.floats(0.6, 1),
    "beta": st.just(0.5),
    "limit": st.floats(2, 20),
    "sharpness": st.floats(1, 2),
    "base_dim": st.sampled_from([8, 16]),
    "std": st.floats(1e-3, 1),
    "embedding_std": st.just("auto") | st.floats(1e-3, 2),
    "softcap": st.just("none") | st.floats(1, 100),
    "dropout": st.sampled_from([0.0, 0.0, 0.1]),
    # It takes an encoder, whose laws are tested on their own.
    "LayerSpec.cross_attention": st.just(NoCrossAttention()),
    "ModelSpec.cross_attention": st.just(NoCrossAttention()),
    "EncoderStack.cross_attention": st.just(NoCrossAttention()),
    "PerBranch.cross_attention": st.sampled_from(["attention", 0.5]),
    "LayerSpec.recurrence": st.deferred(lambda: _recurrences()),
    "ModelSpec.recurrence": st.deferred(lambda: _recurrences()),
    "EncoderStack.recurrence": st.deferred(lambda: _recurrences()),
    "num_key_heads": st.sampled_from(["auto", "auto", 1, 2]),
    "conv_width": st.sampled_from(["none", 1, 3, 4]),
    "SelectiveScan.conv_width": st.sampled_from([1, 3, 4]),
    "RGLRU.conv_width": st.sampled_from([1, 3, 4]),
    "inner_dim": st.sampled_from(["auto", 8, 20]),
    "step_rank": st.sampled_from(["auto", 3]),
    "state_dim": st.sampled_from([2, 4, 16]),
    "gate_rank": st.sampled_from(["none", "none", 3]),
    "RWKV7.gate_rank": st.sampled_from(["auto", 3]),
    "decay_rank": st.sampled_from(["auto", 3]),
    "rate_rank": st.sampled_from(["auto", 3]),
    "value_rank": st.sampled_from(["auto", 3]),
    "norm_eps": st.floats(1e-6, 1e-2),
    "rank": st.sampled_from(["none", 3]),
    "lower_bound": st.sampled_from(["none", -5.0]),
    "beta_max": st.sampled_from([1, 1, 1, 2]),
    "least_step": st.floats(0.001, 0.1),
    "most_step": st.floats(0.1, 1),
    "least_rate": st.floats(0.01, 1),
    "most_rate": st.floats(1, 16),
    "clamp_min": st.sampled_from([0.0, 0.0, 0.01]),
    "clamp_max": st.sampled_from(["none", "none", 0.5]),
}
"""Values that make models of a size for tests, some of them illegal together."""


def _recurrences() -> st.SearchStrategy[Any]:
    """Draw a recurrence in one layer of three, each kind equally often."""
    kinds = [specs(cls, SMALL) for kind, cls in Recurrence.choices().items() if kind != "none"]
    drawn = st.one_of(kinds).map(_consistent)
    return st.sampled_from([False, False, True]).flatmap(
        lambda there: drawn if there else st.just(NoRecurrence())
    )


def _consistent(choice: Any) -> Any:
    """Return a recurrence without contradictions of its options, which most random ones have."""
    if not isinstance(choice, LinearRecurrence):
        return choice
    change: dict[str, Any] = {}
    write = "added" if choice.write == "step" and not choice.decay.has_step else choice.write
    if choice.num_heads not in (2, 4):
        change["num_key_heads"] = "auto"
    if write != "delta":
        change["beta_max"] = 1
    if choice.gate == "none":
        change["gate_rank"] = "none"
    if choice.conv_width == "none":
        change["conv_bias"] = False
    return choice.model_copy(update={"write": write, **change})


NAMES = ("default", "local", "far out")


def model_specs() -> st.SearchStrategy[ModelSpec]:
    """Draw small models over all axes and kinds. About half break a rule; `resolved()` tells."""
    return specs(ModelSpec, SMALL)


def one_stack_specs() -> st.SearchStrategy[ModelSpec]:
    """Draw small models without an encoder, which needs a decoder that reads it: over half break no rule."""
    alone = {"encoder": st.just(NoEncoder())}
    return _seldom_with_streams(SMALL | alone)


def _seldom_with_streams(ranges: dict[str, Any]) -> st.SearchStrategy[ModelSpec]:
    """Draw small models, one in six with predicting streams, and then of what stands beside these."""
    plain = specs(ModelSpec, ranges)
    beside = specs(ModelSpec, ranges | BESIDE_STREAMS)
    return st.sampled_from([False] * 5 + [True]).flatmap(lambda some: beside if some else plain)


def _attentions_with_streams() -> st.SearchStrategy[Any]:
    masks = [cls for cls in Mask.choices().values() if cls.causal and not cls.shows_future]
    ranges = {
        **SMALL,
        "mask": st.one_of([specs(cls, SMALL) for cls in masks]),
        "value_embedding": st.just(NoValueEmbedding()),
    }
    kinds = [cls for name, cls in Attention.choices().items() if cls.has_streams and name != "none"]
    return st.sampled_from([*kinds * 4, NoAttention]).flatmap(lambda cls: specs(cls, ranges))


def _positions_with_streams() -> st.SearchStrategy[Any]:
    left_out = (Axial, TransformerXL)
    kinds = [cls for cls in Position.choices().values() if cls not in left_out]
    return st.one_of([specs(cls, SMALL) for cls in kinds])


BESIDE_STREAMS: Ranges = {
    "predicting_streams": st.integers(1, 3),
    "global_tokens": st.just(0),
    "sequence_head": st.just(NoSequenceHead()),
    **{
        f"{cls}.{name}": drawn
        for cls in ("LayerSpec", "ModelSpec")
        for name, drawn in (
            ("attention", st.deferred(_attentions_with_streams)),
            ("position", st.deferred(_positions_with_streams)),
            ("recurrence", st.just(NoRecurrence())),
        )
    },
}
"""Values that stand beside predicting streams, and how many of these."""


def two_stack_specs() -> st.SearchStrategy[ModelSpec]:
    """Draw small models with an encoder that a decoder reads: layers of both have the same choices, over all axes and
    kinds, and see what their mask shows or all of the source. Angles do not follow the length of the text, which a
    cache knows too late."""
    ranges = {
        **SMALL,
        "scaling": st.just(NoScaling()),
        "encoder": st.just(NoEncoder()),
        "sequence_head": st.just(NoSequenceHead()),  # which judges the rows of an encoder alone
    }
    drawn = (
        _seldom_with_streams(ranges),
        specs(SoftmaxCrossAttention, SMALL),
        st.booleans(),
        st.booleans(),
    )
    return st.tuples(*drawn).map(lambda parts: _with_encoder(*parts))


def _with_encoder(
    spec: ModelSpec, cross: SoftmaxCrossAttention, sees_all: bool, own_table: bool
) -> ModelSpec:
    values = spec.model_dump()
    encoder = {name: values[name] for name in StackSpec.model_fields}
    if sees_all and "mask" in encoder["attention"]:
        encoder["attention"] = encoder["attention"] | {"mask": {"kind": "full"}}
    encoder |= {"kind": "stack", "embeddings": "own" if own_table else "shared"}
    return ModelSpec.model_validate(
        values | {"cross_attention": cross.model_dump(), "encoder": encoder}
    )


def stream_specs() -> st.SearchStrategy[ModelSpec]:
    """Draw small models with predicting streams, with an encoder or without one."""
    return specs(ModelSpec, {**SMALL, "encoder": st.just(NoEncoder()), **BESIDE_STREAMS})


def run_specs() -> st.SearchStrategy[RunSpec]:
    """Draw runs with any values that are legal by themselves, however large."""
    of_axes = ("LSHAttention.num_buckets", "Axial.shape", "Axial.dims")
    known = {name: SMALL[name] for name in of_axes}
    known |= {
        "parts": st.just(()),
        "budget": st.sampled_from(["3m", "1.5h", "1e15flops", "7steps"]),
    }
    return specs(RunSpec, known)


def specs(cls: type[Spec], ranges: Ranges = {}) -> st.SearchStrategy[Any]:  # noqa: B006
    """Draw a spec field by field: from `ranges` by name, with or without the class, or by type and limits."""
    fields = {
        name: field
        for name, field in cls.model_fields.items()
        if name not in ("kind", "layer_kinds", "layers", "encoder", "generator")
    }
    drawn = {
        field.alias or name: ranges.get(
            f"{cls.__name__}.{name}", ranges.get(name, _field(field, ranges))
        )
        for name, field in fields.items()
    }
    if cls is ModelSpec:
        drawn["encoder"] = ranges.get("encoder", _seldom(EncoderStack, NoEncoder(), ranges))
        drawn["generator"] = ranges.get("generator", _seldom(GeneratorStack, NoGenerator(), ranges))
    values = st.fixed_dictionaries(drawn)
    if issubclass(cls, LayerSpec) and cls is not LayerSpec:
        values = st.tuples(values.map(_placed), _arranged(ranges))
        values = values.map(lambda both: both[0] | both[1])
    return values.map(cls.model_validate)


def _seldom(stack: type[Spec], none: Spec, ranges: Ranges) -> st.SearchStrategy[Any]:
    """Draw a stack beside the model's own, one time in twenty."""
    drawn = st.deferred(lambda: specs(stack, ranges))
    return st.sampled_from([False] * 19 + [True]).flatmap(
        lambda there: drawn if there else st.just(none)
    )


def _arranged(ranges: Ranges) -> st.SearchStrategy[dict[str, Any]]:
    """Draw kinds of layers and where they stand; seldom is one named that does not exist."""

    def layers(kinds: dict[str, Any]) -> st.SearchStrategy[dict[str, Any]]:
        names = st.sampled_from([*["default"] * 16, *[*kinds] * 10, *NAMES[1:]])
        few = st.lists(names, max_size=1)
        cycle = st.lists(names, min_size=1, max_size=3)
        shared = st.sampled_from([False, False, True])
        arranged = st.builds(Arrangement, prefix=few, cycle=cycle, suffix=few, shared=shared)
        where = st.builds(Arrangement, shared=shared) | arranged
        return where.map(lambda where: {"layer_kinds": kinds, "layers": where})

    return st.dictionaries(st.sampled_from(NAMES[1:]), _partial(ranges), max_size=2).flatmap(layers)


def _partial(ranges: Ranges) -> st.SearchStrategy[dict[str, Any]]:
    """Draw some axes of a layer, each with its kind and some of its options; no position and no
    streams that would have to be the whole model's."""
    options = {
        name: ranges.get(f"LayerSpec.{name}", _field(field, ranges))
        for name, field in LayerSpec.model_fields.items()
    }
    options["position"] = options["position"].filter(lambda position: not position.absolute)
    options["residual"] = options["residual"].filter(lambda residual: residual.streams == 1)
    tables = {
        name: choice.flatmap(
            lambda choice: st.fixed_dictionaries(
                {"kind": st.just(choice.kind)},
                optional={k: st.just(v) for k, v in choice.model_dump().items() if k != "kind"},
            )
        )
        for name, choice in options.items()
    }
    return st.fixed_dictionaries({}, optional=tables).map(_placed)


def _placed(layer: dict[str, Any]) -> dict[str, Any]:
    """Return the axes of a layer, without positions where its attention has some of its own."""
    kind = dict(layer.get("attention", {})).get("kind")
    position = layer.get("position")
    turns = dict(position or {}).get("kind", "rope") in ("rope", "transformer_xl")
    has_own = kind is not None and "position" not in Attention.kinds[kind].takes
    has_own = has_own or (kind == "transient_global" and turns)
    if not has_own or getattr(position, "absolute", False):
        return layer
    none = NoPosition()
    return layer | {"position": none if isinstance(position, Choice) else none.model_dump()}


def _field(field: FieldInfo, ranges: Ranges) -> st.SearchStrategy[Any]:
    return _type(field.annotation, field.metadata, ranges)


def _type(annotation: Any, metadata: list[Any], ranges: Ranges) -> st.SearchStrategy[Any]:
    origin, args = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        inner = [m for a in args[1:] for m in (a.metadata if isinstance(a, FieldInfo) else [a])]
        return _type(args[0], [*metadata, *inner], ranges)
    if origin in (Union, UnionType):
        return st.one_of([_type(arg, metadata, ranges) for arg in args])
    if origin is Literal:
        return st.sampled_from(args)
    if origin is tuple and args[-1] is Ellipsis:
        least = max((m.min_length for m in metadata if isinstance(m, MinLen)), default=0)
        return st.lists(_type(args[0], [], ranges), min_size=least, max_size=3).map(tuple)
    if origin is tuple:
        return st.tuples(*(_type(arg, [], ranges) for arg in args))
    if origin is dict:
        return st.dictionaries(TEXT, _type(args[1], [], ranges), max_size=2)
    if isinstance(annotation, type) and issubclass(annotation, Choice) and annotation.is_axis():
        kinds = [specs(cls, ranges) for name, cls in annotation.choices().items() if name != "none"]
        none = [specs(cls, ranges) for name, cls in annotation.choices().items() if name == "none"]
        return st.one_of([*kinds, *kinds, *kinds, *none])
    if isinstance(annotation, type) and issubclass(annotation, Spec):
        return specs(annotation, ranges)
    return _number_or_text(annotation, metadata, moderate="num_layers" in ranges)


def _number_or_text(annotation: Any, metadata: list[Any], moderate: bool) -> st.SearchStrategy[Any]:
    """Draw any legal value, or one that neither overflows nor fills the memory."""
    ge, gt, le, lt = (
        next((getattr(m, kind.__name__.lower()) for m in metadata if isinstance(m, kind)), None)
        for kind in (Ge, Gt, Le, Lt)
    )
    if annotation is bool:
        return st.booleans()
    if annotation is int:
        assert gt is None
        if moderate and ge is not None and (le is None or le >= 2**12):
            return st.integers(ge, ge + 12)
        most = 10**30 if le is None else le  # beyond, no spec takes a number
        return st.integers(ge, most if lt is None else lt - 1)
    if annotation is float:
        low, high = (gt if ge is None else ge), (lt if le is None else le)
        if moderate and high is None:
            return st.floats(max(0.25, low or 0.0), 4.0, exclude_min=low is not None)
        return _float(low, high, exclude_min=gt is not None, exclude_max=lt is not None)
    assert issubclass(annotation, str), annotation
    least = next((m.min_length for m in metadata if isinstance(m, MinLen)), 0)
    return TEXT if least == 0 else st.text("abc\"'\n\\é", min_size=least, max_size=8)


def _float(low: float | None, high: float | None, **excluded: bool) -> st.SearchStrategy[float]:
    """Draw any number within limits that specs take, which keep to what float32 holds."""
    largest, smallest = 1e30, 1e-30
    top = largest if high is None else high
    if low is None:
        return _float(0.0, top) | _float(0.0, top).map(lambda number: -number)
    if low == 0:
        zero = [] if excluded.pop("exclude_min", False) else [st.just(0.0)]
        return st.one_of(
            *zero, st.floats(smallest, top, exclude_max=excluded.get("exclude_max", False))
        )
    return st.floats(low, top, **excluded)
