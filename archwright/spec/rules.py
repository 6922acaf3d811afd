"""Rules between axes, and suspicions: legal but unusual values."""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial, wraps
from typing import TYPE_CHECKING, TypeVar

from archwright.spec.attention import MaskedAttention, SoftmaxAttention
from archwright.spec.choice import Choice, Spec
from archwright.spec.errors import UserError, nearest
from archwright.spec.feedforward import Experts, Hidden
from archwright.spec.init import Glorot, MuP
from archwright.spec.latent import LatentAttention
from archwright.spec.masks import Prefix, Window
from archwright.spec.overrides import flatten, prefixes
from archwright.spec.positions import (
    ALiBi,
    Learned,
    LongRoPE,
    RoPE,
    T5Bias,
    rotary_dim,
)
from archwright.spec.scores import InverseScale

if TYPE_CHECKING:
    from archwright.spec.model_spec import LayerSpec, ModelSpec

Check = Callable[["ModelSpec"], Iterator[str]]
LayerCheck = Callable[["ModelSpec", "LayerSpec"], Iterator[str]]
C = TypeVar("C", bound=Choice)
PATH_HEAD = re.compile(r"[^a-z_]")
LAYER_KIND = re.compile(r"^layer_kinds\..+?\.")


@dataclass(frozen=True)
class Rule:
    """A rule between axes: `check` yields an error for each violation."""

    name: str
    sentence: str
    check: Check


RULES: list[Rule] = []
"""Rules that no model may break."""
SUSPICIONS: list[Rule] = []
"""Legal but unusual values."""


def enforce(spec: "ModelSpec") -> None:
    """Raise a UserError with all broken rules."""
    if lines := _broken(RULES, spec):
        raise UserError(*lines)


def suspicions(spec: "ModelSpec", given: "ModelSpec | None" = None) -> list[str]:
    """Return the legal but suspicious values that were not already in `given`."""
    known = [] if given is None else _broken(SUSPICIONS, given)
    return [line for line in _broken(SUSPICIONS, spec) if line not in known]


def _broken(rules: list[Rule], spec: "ModelSpec") -> list[str]:
    """Return the errors of all stacks, without repetitions."""
    lines = _distinct(line for rule in rules for line in rule.check(spec))
    for name, stack in (("encoder", spec.encoder_model), ("generator", spec.generator_model)):
        if stack is not None:
            own = _distinct(line for rule in rules for line in rule.check(stack))
            fields = type(getattr(spec, name)).model_fields
            fresh = [line for line in own if line not in lines]
            lines += [f"{name}.{e}" for e in fresh if PATH_HEAD.split(e)[0] in fields]
    return lines


def _distinct(lines: Iterable[str]) -> list[str]:
    """Drop repetitions, and errors that layer kinds inherit from the default layer."""
    known = dict.fromkeys(lines)
    return [
        line for line in known if (rest := LAYER_KIND.sub("", line)) == line or rest not in known
    ]


def _rule(sentence: str, table: list[Rule] = RULES) -> Callable[[Check], Check]:
    def add(check: Check) -> Check:
        table.append(Rule(check.__name__, sentence, check))
        return check

    return add


_suspicion = partial(_rule, table=SUSPICIONS)


def _of_layers(check: LayerCheck) -> Check:
    """Return a check of every kind of layer, with the layer's path in front of its errors."""

    @wraps(check)
    def of_all(spec: "ModelSpec") -> Iterator[str]:
        for at, layer in _layers(spec):
            yield from (f"{at}{line}" for line in check(spec, layer))

    return of_all


def _layers(spec: "ModelSpec") -> Iterator[tuple[str, "LayerSpec"]]:
    """Yield every kind of layer with the prefix of its paths."""
    for name, layer in spec.layers_by_kind.items():
        yield ("" if name == "default" else f"layer_kinds.{name}."), layer


def _choices(spec: "ModelSpec", cls: type[C]) -> Iterator[tuple[str, C]]:
    """Yield the layers' choices of a class, each with the prefix of its paths."""
    for at, layer in _layers(spec):
        for axis, choice in layer:
            if isinstance(choice, cls):
                yield f"{at}{axis}.", choice


def _without(spec: "ModelSpec", axes: Iterable[str], beside: str) -> Iterator[str]:
    """Yield an error for each axis with a choice other than "none"."""
    for axis in axes:
        if not (choice := getattr(spec, axis)).is_none:
            yield f'{axis}.kind: found "{choice.kind}" beside {beside}; expected "none"'


MOST_PARAMETERS = 10**15
"""A thousand times the largest published model. Below it, every tensor's size fits into 64 bits."""


@_rule("A model has parameters that can be counted.")
def not_too_many_parameters(spec: "ModelSpec") -> Iterator[str]:
    # Large parts by the option that determines their size; norms, biases and gates are small.
    width = spec.embedding_dim
    sizes = {"vocab_size": width * (0 if spec.vocab_size == "auto" else spec.vocab_size)}
    if isinstance(spec.position, Learned):
        sizes["context_length"] = spec.dim * (spec.context_length + spec.position.offset)
    names = spec.layers.names(spec.num_layers)
    standing = Counter({*names} if spec.layers.shared else names)
    for at, layer in _layers(spec):
        matrix = spec.dim * standing[at.removeprefix("layer_kinds.").removesuffix(".") or "default"]
        if isinstance(layer.attention, MaskedAttention):
            widths = layer.attention.heads(spec.dim)
            widest = max(width for name, width in widths.items() if name.endswith("_dim"))
            sizes[f"{at}attention"] = matrix * widths["num_heads"] * widest
        if isinstance(layer.attention, SoftmaxAttention) and not (
            layer.attention.value_embedding.is_none or spec.vocab_size == "auto"
        ):
            row = widths["num_kv_heads"] * widths["value_head_dim"]
            sizes[f"{at}attention.value_embedding"] = matrix // spec.dim * row * spec.vocab_size
        if isinstance(branch := layer.feedforward, Experts):
            hidden = branch.num_experts * branch.expert.width(spec.dim)
            sizes[f"{at}feedforward"] = matrix * hidden
        elif isinstance(branch, Hidden):
            sizes[f"{at}feedforward"] = matrix * branch.width(spec.dim)
    if (total := sum(sizes.values())) > MOST_PARAMETERS:
        key = max(sizes, key=lambda name: sizes[name])
        yield f"{key}: the model has about {total:.1e} parameters; expected at most 1e15"


@_rule("Options of a choice fit each other and the sizes of the model.")
def options_fit(spec: "ModelSpec") -> Iterator[str]:
    # Parts around the layers and the default layer's; other stacks are checked as models.
    for name, value in spec:
        if isinstance(value, Spec) and name not in ("encoder", "generator"):
            yield from (f"{name}.{line}" for line in value.contradicted(spec.sizes))
    for name in spec.layer_kinds:
        layer = spec.layers_by_kind[name]
        yield from (f"layer_kinds.{name}.{line}" for line in layer.contradicted(spec.sizes))


@_rule("A layer that shares keys and values follows one that has them.")
def keys_are_shared(spec: "ModelSpec") -> Iterator[str]:
    for number, (name, source) in enumerate(zip(spec.layer_order, spec.kv_sources, strict=True), 1):
        at = "" if name == "default" else f"layer_kinds.{name}."
        if source == 0:
            yield (
                f"{at}attention.shares_kv: found true; expected an earlier layer with keys and values of its own, and "
                "with the same mask, position, num_kv_heads, head_dim and value_head_dim"
            )
        elif spec.layers.shared and source != number:
            yield (
                f"{at}attention.shares_kv: found true with layers.shared = true, whose layers have the same maps; "
                "expected false"
            )


@_rule("RoPE rotates pairs of coordinates.")
@_of_layers
def rope_needs_pairs(spec: "ModelSpec", layer: "LayerSpec") -> Iterator[str]:
    position, attention = layer.position, layer.attention
    if isinstance(position, RoPE) and isinstance(attention, MaskedAttention):
        width = attention.rotary_dim(spec.dim)
        rotary = rotary_dim(position, width)
        if rotary % 2 or width * position.fraction < 2:
            field = "rope_head_dim" if isinstance(attention, LatentAttention) else "head_dim"
            yield (
                f'position.kind: found "rope" over {rotary} coordinates of heads of {width}; expected an even number '
                f"above 0: change attention.{field} or position.fraction"
            )


@_rule("LongRoPE has a divisor for each pair of coordinates.")
@_of_layers
def longrope_divides_each_pair(spec: "ModelSpec", layer: "LayerSpec") -> Iterator[str]:
    position, attention = layer.position, layer.attention
    if not (isinstance(position, RoPE) and isinstance(attention, MaskedAttention)):
        return
    pairs = rotary_dim(position, attention.rotary_dim(spec.dim)) // 2
    for name in ("short", "long") if isinstance(position.scaling, LongRoPE) else ():
        if (found := len(getattr(position.scaling, name))) not in (0, pairs):
            yield (
                f"position.scaling.{name}: found {found} numbers; expected {pairs}, one for each pair of coordinates, "
                "or none"
            )


@_rule("There are buckets for near distances, and far ones beyond them.")
@_of_layers
def buckets_widen(spec: "ModelSpec", layer: "LayerSpec") -> Iterator[str]:
    if not isinstance(attention := layer.attention, MaskedAttention):
        return
    two_way = not attention.mask.causal or isinstance(attention.mask, Prefix)
    two_way = two_way or attention.further_positions > 0
    options = dict(layer.position)
    if {"num_buckets", "max_distance"} <= options.keys():
        buckets, farthest = options["num_buckets"], options["max_distance"]
        number = buckets // (2 if two_way else 1)
        if number < 2 or farthest <= number // 2:
            yield (
                f"position.max_distance: found {farthest} with num_buckets = {buckets}; "
                f"expected more than {max(number // 2, 1)}, and two buckets or more for each direction"
            )


@_rule("muP's rates are those of dense models.")
def mup_is_dense(spec: "ModelSpec") -> Iterator[str]:
    if not isinstance(spec.init, MuP):
        return
    for at, _ in _choices(spec, Experts):
        # muP has no class for a router: its output width is fixed, as a head's, but it is inside the model.
        yield (
            f'{at}kind: found "experts" with init.kind "mup", whose rates are not '
            "derived for a router; expected another of the two"
        )
    if spec.embedding.dim not in ("auto", spec.dim):
        yield (
            f'embedding.dim: found {spec.embedding.dim} with init.kind "mup", whose rates are not '
            'derived for a table of another width than the model; expected "auto"'
        )


@_rule("Positions that are added to the embedding belong to the whole model.")
def absolute_positions_are_global(spec: "ModelSpec") -> Iterator[str]:
    for name, layer in spec.layers_by_kind.items():
        if layer.position.absolute and layer.position != spec.position:
            yield (
                f'layer_kinds.{name}.position.kind: found "{layer.position.kind}", which is added '
                "to the embedding once; expected it as position.kind of the model, or another here"
            )


@_rule("Positions that act inside attention act in one that computes them.")
@_of_layers
def positions_reach_attention(spec: "ModelSpec", layer: "LayerSpec") -> Iterator[str]:
    position, mixers = layer.position, layer.mixers
    inside = position.rotates or position.scores
    if inside and mixers and not any("position" in mixer.takes for mixer in mixers.values()):
        name, mixer = next(iter(mixers.items()))
        yield (
            f'position.kind: found "{position.kind}", which acts inside attention, where {name}.kind "{mixer.kind}" '
            'leaves it out; expected "none", or one that is added to the embedding'
        )


@_rule("A sum of tokens stands in a block, from which distances are counted.")
@_of_layers
def sums_have_distances(spec: "ModelSpec", layer: "LayerSpec") -> Iterator[str]:
    position, attention = layer.position, layer.attention
    counts = isinstance(position, T5Bias | ALiBi) or position.absolute or position.is_none
    if isinstance(attention, MaskedAttention) and attention.further_positions and not counts:
        yield (
            f'position.kind: found "{position.kind}" with attention.kind "{attention.kind}"; expected "t5", "alibi", '
            '"none", or one that is added to the embedding'
        )


@_rule("All layers have the same streams.")
def streams_run_through(spec: "ModelSpec") -> Iterator[str]:
    for name, layer in spec.layers_by_kind.items():
        wanted, found = spec.residual, layer.residual
        numbers = [
            (choice.streams, choice.is_reversible, choice.output_dim(spec.dim))
            for choice in (wanted, found)
        ]
        if numbers[0] != numbers[1]:
            yield (
                f'layer_kinds.{name}.residual: found "{found.kind}" beside residual.kind "{wanted.kind}"; expected as '
                "many streams in all layers, joined in one way"
            )


@_rule("What a layer was given follows from what it gave.")
def layers_are_reversible(spec: "ModelSpec") -> Iterator[str]:
    for at, layer in _layers(spec):
        if not layer.residual.is_reversible:
            continue
        if layer.residual.embedding_skip:
            yield (
                f'{at}residual.embedding_skip: found true with residual.kind "{layer.residual.kind}"; expected false, '
                "as what is mixed in cannot be taken out again"
            )
        if isinstance(layer.feedforward, Experts):
            yield (
                f'{at}feedforward.kind: found "experts" with residual.kind "{layer.residual.kind}", whose layers are '
                "computed twice; expected a dense one, as a token must find its experts again and be counted once"
            )
        if layer.recurrence.kind == "rwkv7":
            yield (
                f'{at}recurrence.kind: found "rwkv7" with residual.kind "{layer.residual.kind}", whose layers are '
                "computed twice, without the values of the first one; expected another recurrence or residual"
            )


@_rule("Layers are arranged from kinds that exist.")
def layer_names_exist(spec: "ModelSpec") -> Iterator[str]:
    for part in ("prefix", "cycle", "suffix"):
        for name in getattr(spec.layers, part):
            if name not in spec.layers_by_kind:
                yield (
                    f'layers.{part}: found "{name}"; expected one of '
                    f"{', '.join(spec.layers_by_kind)}.{nearest(name, spec.layers_by_kind)}"
                )


@_rule("There are at least as many layers as stand in prefix and suffix.")
def arrangement_fits(spec: "ModelSpec") -> Iterator[str]:
    fixed = len(spec.layers.prefix) + len(spec.layers.suffix)
    if fixed > spec.num_layers:
        yield (
            f"num_layers: found {spec.num_layers}; expected at least {fixed}, "
            "the layers of layers.prefix and layers.suffix"
        )


@_rule("A router that is asked for balance stands in one layer.")
def shared_layers_are_dense(spec: "ModelSpec") -> Iterator[str]:
    if spec.layers.shared and any(True for _ in _choices(spec, Experts)):
        # Losses of a shared router are those of its last use only, and its loads would add up over layers.
        yield (
            'layers.shared: found true beside feedforward.kind "experts"; expected false, or a feed-forward without '
            "experts"
        )


@_rule("A layer has at least one branch.")
@_of_layers
def layer_has_a_branch(spec: "ModelSpec", layer: "LayerSpec") -> Iterator[str]:
    if not layer.branches:
        yield (
            'attention.kind: found "none" beside recurrence.kind and feedforward.kind "none"; expected one branch at '
            "least"
        )


@_rule("Cross-attention reads an encoder, and an encoder is read.")
def an_encoder_is_read(spec: "ModelSpec") -> Iterator[str]:
    standing = {*spec.layers.names(spec.num_layers)}
    readers = [
        (at, layer.cross_attention.kind, at.removeprefix("layer_kinds.").removesuffix("."))
        for at, layer in _layers(spec)
        if not layer.cross_attention.is_none
    ]
    if spec.encoder.is_none:
        for at, kind, _ in readers:
            yield f'{at}cross_attention.kind: found "{kind}" without an encoder to read; expected "none"'
    elif not any((name or "default") in standing for _, _, name in readers):
        yield (
            f'encoder.kind: found "{spec.encoder.kind}", which no layer reads; expected cross_attention.kind '
            '"softmax" in some layer, or encoder.kind "none"'
        )


@_rule("Rows are judged by models that read them alone.")
def rows_are_judged_by_one_stack(spec: "ModelSpec") -> Iterator[str]:
    if not spec.sequence_head.is_none and not spec.encoder.is_none:
        yield (
            f'sequence_head.kind: found "{spec.sequence_head.kind}" beside an encoder, whose decoder reads no '
            'segments; expected "none"'
        )


@_rule("A head that finds replaced tokens has a row of its own, and reads one stack.")
def a_head_of_replaced_tokens_stands_alone(spec: "ModelSpec") -> Iterator[str]:
    if spec.head.predicts != "replaced":
        return
    if spec.head.tied:
        yield 'head.tied: found true beside head.predicts = "replaced", which reads no table; expected false'
    yield from _without(spec, ("encoder", "sequence_head"), 'head.predicts = "replaced"')


@_rule("A generator's tokens are found, in texts that both stacks read by one embedding.")
def a_generator_is_found_out(spec: "ModelSpec") -> Iterator[str]:
    generator = spec.generator_model
    if generator is None:
        return
    kind = f'generator.kind = "{spec.generator.kind}"'
    if spec.head.predicts != "replaced":
        yield f'head.predicts: found "tokens" beside {kind}; expected "replaced"'
    if generator.head.predicts != "tokens":
        yield 'generator.head.predicts: found "replaced"; expected "tokens", which it proposes'
    if not generator.is_bidirectional:
        yield (
            f"generator.attention.mask.kind: found a mask through which no token sees what follows it; {kind} expects "
            'one such as "full"'
        )
    if (generator.position.absolute or spec.position.absolute) and (
        generator.position != spec.position
    ):
        yield (
            f'generator.position: found "{generator.position.kind}" beside position.kind = "{spec.position.kind}"; '
            "expected positions that are added to the embedding to be alike in both"
        )
    widths = {spec.embedding_dim, spec.dim, generator.dim}
    if spec.embedding.project == "table" and len(widths) > 1:
        yield (
            f'embedding.project: found "table" beside generator.dim = {generator.dim}, dim = {spec.dim} and an '
            f'embedding of {spec.embedding_dim}; expected "normed", so that both can read it, or equal widths'
        )


@_rule("A table of embeddings that two stacks share is as wide as both.")
def shared_tables_are_as_wide(spec: "ModelSpec") -> Iterator[str]:
    encoder = spec.encoder_model
    if encoder is not None and spec.encoder.shares_embedding and encoder.dim != spec.dim:
        yield (
            f'encoder.embeddings: found "shared" beside encoder.dim = {encoder.dim} and dim = {spec.dim}; expected '
            '"own", or equal widths'
        )


@_suspicion("Matrix kernels want head_dim to be a multiple of 8.")
@_of_layers
def odd_head_dim(spec: "ModelSpec", layer: "LayerSpec") -> Iterator[str]:
    attention = layer.attention
    if isinstance(attention, MaskedAttention) and (width := attention.key_dim(spec.dim)) % 8:
        latent = isinstance(attention, LatentAttention)
        field = "nope_head_dim + rope_head_dim" if latent else "head_dim"
        yield f"attention.{field} is {width}: not a multiple of 8, which slows the kernels down"


SMALLEST_PUBLISHED = 256
"""Width of the smallest published models, below which shapes have no reference."""


@_suspicion("Published models have dim / num_layers near 128.")
def odd_shape(spec: "ModelSpec") -> Iterator[str]:
    ratio = spec.dim / spec.num_layers
    if spec.dim >= SMALLEST_PUBLISHED and not 24 <= ratio <= 320:
        yield (
            f"dim / num_layers is {ratio:.3g}: published models lie near 128 (about 30 to 250), "
            "and models far from this ratio usually train less efficiently"
        )


@_suspicion("Hidden width is near 4 dim, or 8/3 dim where gated.")
@_of_layers
def odd_hidden_dim(spec: "ModelSpec", layer: "LayerSpec") -> Iterator[str]:
    if isinstance(branch := layer.feedforward, Hidden):
        ratio, usual = branch.width(spec.dim) / spec.dim, branch.usual_ratio
        if not usual / 2 <= ratio <= usual * 2:
            near = f'models lie near {usual:.3g} with "{branch.kind}"'
            yield f"feedforward.hidden_dim is {ratio:.3g} dim: {near}"


@_suspicion("A router learns from the weights it gives.")
@_of_layers
def constant_weights(spec: "ModelSpec", layer: "LayerSpec") -> Iterator[str]:
    experts = layer.feedforward
    if not isinstance(experts, Experts) or experts.top_k > 1:
        return
    if experts.normalize_weights or experts.routing.sums_to_one:
        yield "feedforward.top_k is 1 with weights that add up to 1: the router learns nothing but balance"


@_suspicion("The vocabulary is a multiple of 64.")
def odd_vocabulary(spec: "ModelSpec") -> Iterator[str]:
    if spec.vocab_size != "auto" and spec.vocab_size % 64:
        yield (
            f"vocab_size is {spec.vocab_size}: not a multiple of 64, "
            "which slows the output head down"
        )


@_suspicion("A tied head wants small embeddings.")
def large_tied_embedding(spec: "ModelSpec") -> Iterator[str]:
    if not (spec.head.tied and isinstance(spec.init, Glorot)):
        return
    std = spec.init.embedding_std
    dim = spec.embedding_dim
    if std != "auto" and std > 3 * dim**-0.5:
        yield (
            f"init.embedding_std is {std:g} with a tied head: first logits will be about "
            f"{std * dim**0.5:.3g} in size; auto takes dim^-0.5"
        )


@_suspicion("muP divides scores by head_dim.")
@_of_layers
def mup_without_inverse_scale(spec: "ModelSpec", layer: "LayerSpec") -> Iterator[str]:
    scale = layer.attention.scale if isinstance(layer.attention, MaskedAttention) else None
    if isinstance(spec.init, MuP) and scale is not None and not isinstance(scale, InverseScale):
        yield (
            f'attention.scale.kind is "{scale.kind}" with init.kind "mup": the best learning rate stays as heads grow '
            'wider only with "inverse"'
        )


@_suspicion("muP's rates are those of maps whose widths grow with dim.")
@_of_layers
def mup_with_latents(spec: "ModelSpec", layer: "LayerSpec") -> Iterator[str]:
    if isinstance(spec.init, MuP) and isinstance(layer.attention, LatentAttention):
        yield (
            'attention.kind is "latent" with init.kind "mup", whose rates are not derived for maps through a latent: '
            "the best learning rate may move with dim"
        )


@_suspicion("A window narrows something.")
@_of_layers
def idle_window(spec: "ModelSpec", layer: "LayerSpec") -> Iterator[str]:
    mask = layer.attention.mask if isinstance(layer.attention, MaskedAttention) else None
    if isinstance(mask, Window) and mask.size >= spec.context_length:
        yield (
            f"attention.mask.size is {mask.size}: no shorter than context_length = {spec.context_length}, so the "
            "window hides nothing"
        )


@_suspicion("A stated source is that of a value.")
def source_of_nothing(spec: "ModelSpec") -> Iterator[str]:
    # A model's file may also set the objective of its runs.
    values = flatten(spec.model_dump())
    known = ["objective", *dict.fromkeys(p for path in values for p in prefixes(path))]
    for path in spec.sources:
        if path not in known:
            yield f"sources.{path} is the source of no value.{nearest(path, known)}"
