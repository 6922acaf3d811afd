"""Architecture of a model: the default layer's axes, other kinds of layers, and the parts around the layers."""

from functools import cached_property
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, ValidationInfo, field_validator, model_validator

from archwright.spec.attention import Attention, SoftmaxAttention
from archwright.spec.choice import (
    AutoTokens,
    AutoWidth,
    Choice,
    Layers,
    ModelSizes,
    Spec,
    Tokens,
    Width,
)
from archwright.spec.cross_attention import CrossAttention, NoCrossAttention
from archwright.spec.embeddings import Embedding, Head, NoSequenceHead, SequenceHead
from archwright.spec.errors import UserError
from archwright.spec.feedforward import FeedForward, SwiGLU, round_up
from archwright.spec.fingerprint import fingerprint
from archwright.spec.init import Glorot, Init
from archwright.spec.masks import Full, Mask
from archwright.spec.merge import merge, validated
from archwright.spec.mixers import Mixer, NoRecurrence, Recurrence
from archwright.spec.norms import Norm, RMSNorm
from archwright.spec.positions import Position, RoPE
from archwright.spec.recurrences import LinearRecurrence as LinearRecurrence
from archwright.spec.residuals import PreNorm, Residual
from archwright.spec.rules import enforce
from archwright.spec.scale_down import tiny
from archwright.spec.selective import SelectiveScan as SelectiveScan
from archwright.spec.shown import Shown

DEFAULT_VOCAB_SIZE = 4096
"""Vocabulary size for "auto" without a tokenizer."""

GROUPS = (("attention", "recurrence"), ("cross_attention",), ("feedforward",))
"""Branches of a layer in order. Branches of one group read the same normed stream and are added."""

Names = Annotated[tuple[str, ...], Field(strict=False)]


class LayerSpec(Spec):
    """The axes of one layer."""

    norm: Norm = RMSNorm()
    residual: Residual = PreNorm()
    position: Position = RoPE()
    attention: Attention = SoftmaxAttention()
    recurrence: Recurrence = NoRecurrence()
    cross_attention: CrossAttention = NoCrossAttention()
    feedforward: FeedForward = SwiGLU()

    @property
    def groups(self) -> dict[str, tuple[str, ...]]:
        """Branches of the layer in groups, by the first branch of each group."""
        kept = (tuple(b for b in group if not getattr(self, b).is_none) for group in GROUPS)
        return {group[0]: group for group in kept if group}

    @property
    def branches(self) -> dict[str, Choice]:
        """Choices of the layer's branches, by name and in order."""
        return {name: getattr(self, name) for group in self.groups.values() for name in group}

    @property
    def mixers(self) -> dict[str, Mixer]:
        """Choices of the branches that exchange information between tokens, by name."""
        return {name: b for name, b in self.branches.items() if isinstance(b, Mixer)}


class Arrangement(Spec):
    """Order of the kinds of layers: `prefix` first, `suffix` last, `cycle` repeated in between."""

    prefix: Names = Field((), examples=[["default"]])
    """Kinds of the first layers."""
    cycle: Annotated[tuple[str, ...], Field(strict=False, min_length=1)] = ("default",)
    """Kinds repeated, from the first on, between prefix and suffix."""
    suffix: Names = Field((), examples=[["default"]])
    """Kinds of the last layers."""
    shared: bool = False
    """Share parameters between all layers of one kind (Lan et al., 2019, ALBERT, section 3.1)."""

    def names(self, num_layers: int) -> tuple[str, ...]:
        """Return the kind of every layer, first to last."""
        middle = max(0, num_layers - len(self.prefix) - len(self.suffix))
        cycle = tuple(self.cycle[i % len(self.cycle)] for i in range(middle))
        return self.prefix + cycle + self.suffix


class StackSpec(LayerSpec):
    """A stack of layers: the axes of the default layer, and partial tables for other kinds."""

    num_layers: Layers = 8
    """Number of layers."""
    layer_kinds: dict[str, dict[str, Any]] = Field(
        default_factory=dict,
        examples=[{"local": {"attention": {"mask": {"kind": "window", "size": 64}}}}],
    )
    """Layers that differ from the default: name -> the values that differ."""
    layers: Arrangement = Arrangement()
    """Order of the kinds of layers."""

    def layer(self, index: int) -> LayerSpec:
        """Return the full spec of layer `index`."""
        return self.layers_by_kind[self.layer_order[index]]

    @cached_property
    def layer_order(self) -> tuple[str, ...]:
        """Kind of every layer, first to last."""
        return self.layers.names(self.num_layers)

    @cached_property
    def layer_indices(self) -> tuple[int, ...]:
        """Index of each layer's parameters; equal for layers that share them."""
        if not self.layers.shared:
            return tuple(range(self.num_layers))
        kinds = [*dict.fromkeys(self.layer_order)]
        return tuple(kinds.index(name) for name in self.layer_order)

    @property
    def distinct_layers(self) -> list[LayerSpec]:
        """Layers with different parameters, in order."""
        first = {index: i for i, index in reversed([*enumerate(self.layer_indices)])}
        return [self.layer(first[index]) for index in sorted(first)]

    @cached_property
    def layers_by_kind(self) -> dict[str, LayerSpec]:
        """Every kind of layer by name, including the default."""
        axes = {axis: getattr(self, axis) for axis in LayerSpec.model_fields}
        kinds: dict[str, dict[str, Any]] = {"default": {}, **self.layer_kinds}
        return {name: _layer(axes, partial, name) for name, partial in kinds.items()}

    def identity(self) -> dict[str, Any]:
        """Return the fields of the hash, with layers in full however their file writes them."""
        kinds = {name: self.layers_by_kind[name] for name in self.layer_kinds}
        return super().identity() | {"layer_kinds": kinds}

    @field_validator("layer_kinds")
    @classmethod
    def _are_layers(
        cls, kinds: dict[str, dict[str, Any]], info: ValidationInfo
    ) -> dict[str, dict[str, Any]]:
        """Refuse invalid layers; leave out invalid axes of the default layer."""
        lines = ["default: found the name of the layer that stands outside; expected another"] * (
            "default" in kinds
        )
        wrong = {axis for axis in LayerSpec.model_fields if axis not in info.data}
        axes = {axis: info.data[axis] for axis in LayerSpec.model_fields if axis not in wrong}
        kinds = {name: _as_tables(partial) for name, partial in kinds.items()}
        for name, partial in kinds.items():
            try:
                _layer(axes, {k: v for k, v in partial.items() if k not in wrong}, name)
            except UserError as error:
                lines += error.lines
        if lines:
            raise UserError(*lines)
        return kinds


class Encoder(Choice):
    """The axis of encoders, which read another text for the decoder."""

    axis: ClassVar[str] = "encoder"

    def model(self, decoder: "ModelSpec") -> "ModelSpec | None":
        """Return the encoder as a separate model; None if there is none."""
        return None

    @property
    def shares_embedding(self) -> bool:
        """True if the source uses the decoder's embedding table."""
        return True


class NoEncoder(Encoder):
    """No encoder: a decoder-only or encoder-only model."""

    kind: Literal["none"] = "none"


class TwoWayStack(StackSpec):
    """A second stack of a model, with bidirectional attention by default."""

    attention: Attention = SoftmaxAttention(mask=Full())

    @model_validator(mode="before")
    @classmethod
    def _upon_defaults(cls, values: object) -> Any:
        """Merge tables with the defaults, so that attention stays bidirectional without a given mask."""
        if not isinstance(values, dict):
            return values
        tables = {axis: values[axis] for axis in LayerSpec.model_fields if axis in values}
        defaults = {axis: cls.model_fields[axis].get_default().model_dump() for axis in tables}
        return values | {
            axis: merge(defaults[axis], table) if _is_of_kind(defaults[axis], table) else table
            for axis, table in tables.items()
        }


class EncoderStack(Encoder, TwoWayStack):
    """A stack of layers that reads another text, the source (Vaswani et al., 2017, section 3.1). Layers of the decoder
    attend to it by their `cross_attention`. It has the axes of a layer, such as `encoder.norm`, and its own
    arrangement. Its embedding has the scale, norm and dropout of the decoder's embedding."""

    kind: Literal["stack"] = "stack"
    dim: AutoWidth = Field("auto", examples=[64])
    """Width of the encoder's residual stream; auto: the decoder's width."""
    context_length: AutoTokens = Field("auto", examples=[512])
    """Longest source in training, in tokens; auto: the decoder's context length."""
    embeddings: Literal["shared", "own"] = "shared"
    """shared: use the decoder's embedding table; own: use a separate table (FSMT)."""
    vocab_size: AutoWidth = Field("auto", examples=[32_000])
    """Rows of a separate table; auto: the decoder's vocabulary size."""

    @property
    def shares_embedding(self) -> bool:
        return self.embeddings == "shared"

    def model(self, decoder: "ModelSpec") -> "ModelSpec":
        own = {name: getattr(self, name) for name in StackSpec.model_fields}
        sizes = {
            name: getattr(decoder if getattr(self, name) == "auto" else self, name)
            for name in ("dim", "context_length", "vocab_size")
        }
        shared = {name: getattr(decoder, name) for name in ("embedding", "head", "init")}
        if not self.shares_embedding and decoder.embedding_dim == decoder.dim:
            shared["embedding"] = decoder.embedding.model_copy(update={"dim": sizes["dim"]})
        return ModelSpec.model_construct(**own, **sizes, **shared)


class Generator(Choice):
    """The axis of generators, which propose tokens. The model detects the proposed tokens that differ from the text."""

    axis: ClassVar[str] = "generator"

    def model(self, detector: "ModelSpec") -> "ModelSpec | None":
        """Return the generator as a separate model; None if there is none."""
        return None


class NoGenerator(Generator):
    """No generator: texts are read unchanged."""

    kind: Literal["none"] = "none"


class GeneratorStack(Generator, TwoWayStack):
    """A stack of layers that fills in masked tokens (Clark et al., 2020, ELECTRA, section 2). At each masked position,
    a token is drawn from the generator's distribution. The model's head, with `head.predicts = "replaced"`, detects
    replaced tokens. The generator has the axes of a layer, such as `generator.norm`, and its own arrangement. Both
    stacks share one embedding, including its positions and norm (section 3.2)."""

    kind: Literal["stack"] = "stack"
    dim: AutoWidth = Field("auto", examples=[64])
    """Width of the generator's residual stream; auto: the model's width."""
    head: Head = Head()
    """Output head of the generator."""

    def model(self, detector: "ModelSpec") -> "ModelSpec":
        own = {name: getattr(self, name) for name in StackSpec.model_fields}
        dim = detector.dim if self.dim == "auto" else self.dim
        shared = {
            name: getattr(detector, name) for name in ("context_length", "vocab_size", "init")
        }
        table = detector.embedding.model_copy(update={"dim": detector.embedding_dim})
        return ModelSpec.model_construct(**own, **shared, dim=dim, embedding=table, head=self.head)


class ModelSpec(StackSpec, Shown):
    """A transformer language model.

    `"auto"` derives a value from the others, and `kind = "none"` omits a part. `resolved()` replaces every `"auto"` by
    its number.
    """

    not_results: ClassVar[frozenset[str]] = frozenset({"name", "source", "sources"})
    table: ClassVar[str] = "model"
    name: str = ""
    """Name of the model; not part of its identity."""
    source: str = ""
    """Source of the values: paper, section, file."""
    sources: dict[str, str] = Field(default_factory=dict)
    """Sources of single values, by dotted path."""
    dim: Width = 512
    """Width of the residual stream."""
    vocab_size: AutoWidth = Field("auto", examples=[32_000])
    """Rows of the embedding; auto: the tokenizer's size rounded up to a multiple of 64."""
    context_length: Tokens = 256
    """Longest sequence in training, in tokens."""
    embedding: Embedding = Embedding()
    head: Head = Head()
    sequence_head: SequenceHead = NoSequenceHead()
    init: Init = Glorot()
    encoder: Encoder = NoEncoder()
    """A stack that reads another text; "none" for models without an encoder."""
    generator: Generator = NoGenerator()
    """A stack that proposes tokens for the model to detect; "none" for other models."""

    def identity(self) -> dict[str, Any]:
        """Return the fields of the hash; an embedding as wide as the model counts as "auto"."""
        found = super().identity()
        if self.embedding.dim == self.dim:
            found["embedding"] = self.embedding.model_copy(update={"dim": "auto"})
        return found

    @cached_property
    def encoder_model(self) -> "ModelSpec | None":
        """The encoder as a separate model, with the values it shares with the decoder; None if there is none."""
        return self.encoder.model(self)

    @cached_property
    def generator_model(self) -> "ModelSpec | None":
        """The generator as a separate model; None if there is none."""
        return self.generator.model(self)

    @cached_property
    def detector(self) -> "ModelSpec":
        """The model without its generator, for detecting replaced tokens; `self` if there is no generator."""
        if self.generator.is_none:
            return self
        values = self.model_dump() | {"generator": {"kind": "none"}}
        if self.embedding_dim == self.dim:  # without a generator, nothing is projected
            values["embedding"] |= {"project": "table", "project_bias": False}
        return validated(ModelSpec, values)

    @property
    def sizes(self) -> ModelSizes:
        """Sizes from which "auto" values of choices follow."""
        width = self.embedding.sum_width(self.dim)
        return ModelSizes(self.dim, self.num_layers, self.context_length, width)

    @cached_property
    def kv_sources(self) -> tuple[int, ...]:
        """Number, from 1, of the layer whose keys and values each layer reads, usually itself; 0 if there is none."""
        nearest: dict[Any, int] = {}
        sources = []
        for number, name in enumerate(self.layer_order, 1):
            layer, source = self.layers_by_kind.get(name, LayerSpec()), number  # rules check names
            if sizes := layer.attention.kv_sizes(self.dim):
                options = dict(layer.attention)
                key = (layer.position, options["mask"], sizes)
                source = nearest.get(key, 0) if options["shares_kv"] else number
                nearest[key] = source
            sources.append(source)
        return tuple(sources)

    @property
    def is_bidirectional(self) -> bool:
        """True if tokens of some layer see later tokens, as in BERT."""
        masks = (getattr(kind.attention, "mask", None) for kind in self.layers_by_kind.values())
        return any(isinstance(mask, Mask) and not mask.causal for mask in masks)

    @property
    def embedding_dim(self) -> int:
        """Width of the embedding table as a number."""
        return self.dim if self.embedding.dim == "auto" else self.embedding.dim

    @property
    def output_dim(self) -> int:
        """Width of the last layer's output, the input of the final norm and the head."""
        return self.layer(self.num_layers - 1).residual.output_dim(self.dim)

    @property
    def is_reversible(self) -> bool:
        """True if the layers of some stack are recomputed in the backward pass."""
        stacks = (self, self.encoder_model, self.generator_model)
        return any(stack.residual.is_reversible for stack in stacks if stack is not None)

    @property
    def head_width(self) -> int:
        """Width of the head's table: `output_dim`; for tokens, `embedding_dim` if it differs from dim or is tied."""
        follows = self.embedding_dim == self.dim and not self.head.tied
        alone = self.head.predicts == "replaced"
        return self.output_dim if follows or alone else self.embedding_dim

    def resolved(self, vocab_size: int | None = None) -> "ModelSpec":
        """Return this spec with every "auto" replaced by its number.

        Args:
            vocab_size: Size of the tokenizer, for vocab_size = "auto". Default: 4096.

        Raises:
            UserError: The spec breaks rules between axes.
        """
        enforce(self)
        values, layers = self.model_dump(), self.layers_by_kind
        values.update(_resolved_layer(layers["default"], self.sizes))
        values["layer_kinds"] = {
            name: _resolved_layer(layers[name], self.sizes) for name in self.layer_kinds
        }
        if self.vocab_size == "auto":
            values["vocab_size"] = round_up(vocab_size or DEFAULT_VOCAB_SIZE, 64)
        beside = {"encoder": self.encoder_model, "generator": self.generator_model}
        for stack, model in beside.items():
            if model is not None:
                numbers = model.resolved(vocab_size).model_dump()
                own = values[stack].keys() & numbers.keys()
                values[stack] |= {name: numbers[name] for name in own}
        values["embedding"]["dim"] = self.embedding_dim
        if values["init"].get("embedding_std") == "auto":
            std = self.init.auto_embedding_std(self.embedding_dim, tied=self.head.tied)
            values["init"]["embedding_std"] = std
        return validated(ModelSpec, values)

    def tiny(self) -> "ModelSpec":
        """Return a model with the same choices, 64 wide, that trains in seconds."""
        return tiny(self)

    def __repr__(self) -> str:
        chosen = (
            f"{name} {value.kind}"
            for name, value in self
            if isinstance(value, Choice) and not value.is_none
        )
        return (
            f"ModelSpec({self.name or 'model'}: dim {self.dim}, {self.num_layers} layers, "
            f"context {self.context_length}, {', '.join(chosen)})"
        )

    def hash(self) -> str:
        """Return a stable hash of the architecture, from values that differ from the defaults."""
        return fingerprint(self)


def _is_of_kind(default: dict[str, Any], table: object) -> bool:
    """True if a table has the kind of a choice, or no kind."""
    return isinstance(table, dict) and table.get("kind", default["kind"]) == default["kind"]


def _layer(axes: dict[str, Any], partial: dict[str, Any], name: str) -> LayerSpec:
    """Merge a partial table with the default layer's axes."""
    default = {axis: choice.model_dump() for axis, choice in axes.items()}
    return validated(LayerSpec, merge(default, partial), (name,))


def _as_tables(value: object) -> Any:
    """Return a value as in a file, with specs as tables."""
    if isinstance(value, Spec):
        return value.model_dump()
    if isinstance(value, dict):
        return {key: _as_tables(inner) for key, inner in value.items()}
    return [_as_tables(inner) for inner in value] if isinstance(value, (list, tuple)) else value


def _resolved_layer(layer: LayerSpec, sizes: ModelSizes) -> dict[str, Any]:
    """Replace "auto" in one layer's values."""
    return {axis: merge(choice.model_dump(), choice.numbers(sizes)) for axis, choice in layer}
