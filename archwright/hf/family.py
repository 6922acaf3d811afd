"""Checkpoint families as data: mappings of configs and of tensor names."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

from archwright.hf.defaults import class_defaults, class_key_aliases
from archwright.hf.layer_types import Layers, arranged, getter
from archwright.hf.lenses import Config, Lens, Table, joined, lay, read_all, write_all
from archwright.hf.rope import with_older_keys
from archwright.hf.weight_map import Constant, Fused, Mapped, Slot, StackKeys, When, slots
from archwright.spec.embeddings import Head, SequenceHead
from archwright.spec.errors import UserError
from archwright.spec.merge import validated
from archwright.spec.model_spec import ModelSpec
from archwright.spec.positions import DynamicNTK

if TYPE_CHECKING:
    from torch import Tensor

LARGEST, LARGEST_COUNT = 10**15, 2**31 - 1
"""Largest magnitudes in a config: for floats and RoPE bases, and for other integers."""
MOST_LAYERS = 100_000
"""Largest accepted number of layers, so that a damaged config fails fast."""


@dataclass(frozen=True)
class Family:
    """Checkpoints with one `model_type` in config.json.

    Args:
        architecture: Class named by `architectures`.
        masked_architecture: Class of bidirectional models, trained to fill in masked tokens.
        pretraining_architecture: Class of models with a sequence head or a replaced-token head.
        lenses: Mappings between config and spec; later lenses override earlier ones.
        groups: Groups of layer types; every layer has one type of each group.
        encoder_groups: Groups of layer types of the encoder.
        layers: Name prefix of layer `{i}`.
        layer_keys: Model tensors by a layer's checkpoint names, after the prefix; see `weight_map`.
        model_keys: Model tensors by checkpoint name, for tensors outside the layers.
        other_layer_keys: Names that replace those in `layer_keys` in files with the first of these names.
        encoder_layers: Name prefix of encoder layer `{i}`; empty without an encoder.
        encoder_layer_keys: Like `layer_keys`, for an encoder layer.
        sequence_head: Tensor of the sequence head. Configs do not record this head: the model has it if the file has
            the tensor. `derive` does not inherit it.
        replaced_head: Tensor of the replaced-token head, detected and inherited like `sequence_head`.
        read_replaced_head: Function that reads the replaced-token head from a config.
        logits_bias: Bias of the logits. Configs do not record it: the model has a bias if the tensor is not zero.
        prefix: Name prefix of the body; some published files omit it.
        ignored: Patterns of tensor names outside of the model. A pattern with a group `layer` only matches layers
            after the model's last layer (multi-token prediction).
        further_aliases: Key aliases (alias -> key of lenses) that the `transformers` class does not declare.
        endings: Name suffixes in old files -> current suffixes.
        undeclared: Defaults for keys without a default, or with null, in the `transformers` class.
        counts_padding: True if the class treats padding as text, so that padding changes other positions.
        ties_unsaid: True if only the tensors show whether the head is tied to the embedding.
        further_inputs: Inputs that the class needs to match the spec, in addition to tokens and padding mask.
    """

    model_type: str
    architecture: str
    lenses: Sequence[Lens]
    layers: str
    layer_keys: Mapping[str, Mapped]
    model_keys: Mapping[str, Mapped]
    other_layer_keys: Mapping[str, Mapped] = field(default_factory=dict)
    encoder_layers: str = ""
    encoder_layer_keys: Mapping[str, Mapped] = field(default_factory=dict)
    masked_architecture: str = ""
    groups: Sequence[Layers] = ()
    encoder_groups: Sequence[Layers] = ()
    pretraining_architecture: str = ""
    sequence_head: str = ""
    replaced_head: str = ""
    read_replaced_head: Callable[[Config], Head] = lambda config: Head(predicts="replaced")
    logits_bias: str = ""
    prefix: str = "model."
    ignored: Sequence[str] = ()
    further_aliases: Mapping[str, str] = field(default_factory=dict)
    endings: Mapping[str, str] = field(default_factory=dict)
    undeclared: Mapping[str, Any] = field(default_factory=dict)
    counts_padding: Callable[[Config], bool] = lambda config: False
    ties_unsaid: bool = False
    further_inputs: Callable[[ModelSpec, Tensor], dict[str, Tensor]] = lambda spec, tokens: {}

    @cached_property
    def defaults(self) -> Mapping[str, Any]:
        """Values of keys absent from a config."""
        return _filled(class_defaults(self.model_type), self.undeclared)

    @cached_property
    def key_aliases(self) -> Mapping[str, str]:
        """All key aliases: alias -> key of lenses."""
        return {**class_key_aliases(self.model_type), **self.further_aliases}

    def derive(
        self,
        model_type: str,
        architecture: str,
        *lenses: Lens,
        undeclared: Mapping[str, object] | None = None,
        layer_keys: Mapping[str, Mapped] | None = None,
        model_keys: Mapping[str, Mapped] | None = None,
        **changes: Any,
    ) -> Family:
        """Return a related family with added lenses, defaults and names.

        A new lens replaces the inherited lens with the same key. A new name replaces inherited names of the same
        tensors. Inherited lenses are dropped if the new class lacks their key. Inherited names get a new `prefix`.
        """
        undeclared = {**self.undeclared, **(undeclared or {})}
        # A class that is not recorded yet has the keys of this one.
        declared = class_defaults(model_type) or self.defaults
        keys = _filled(declared, undeclared)
        groups = (*changes.get("groups", ()), *changes.get("encoder_groups", ()))
        group_lenses = [lens for group in groups for lens in group.lenses]
        new_keys = {_key(lens) for lens in (*lenses, *group_lenses)}
        inherited = [
            lens
            for lens in self.lenses
            if (key := _key(lens)) is None or (key not in new_keys and key.split(".")[0] in keys)
        ]
        renamed = partial(_renamed, old=self.prefix, new=changes.get("prefix", self.prefix))
        changes.setdefault("sequence_head", "")
        changes.setdefault("replaced_head", "")
        changes.setdefault("pretraining_architecture", "")
        changes.setdefault("layers", renamed(self.layers))
        changes.setdefault("encoder_layers", renamed(self.encoder_layers))
        changes.setdefault("ignored", tuple(renamed(pattern) for pattern in self.ignored))
        old_model_keys = {renamed(name): held for name, held in self.model_keys.items()}
        return replace(
            self,
            model_type=model_type,
            architecture=architecture,
            undeclared=undeclared,
            lenses=(*inherited, *lenses),
            layer_keys=_replaced(self.layer_keys, layer_keys or {}),
            model_keys=_replaced(old_model_keys, model_keys or {}),
            **changes,
        )

    def spec(self, config: Config, name: str = "") -> ModelSpec:
        """Return the resolved spec of a config.

        Raises:
            UserError: Values are missing, damaged or unsupported.
        """
        self._check_numbers(config)
        respelled = {self.key_aliases.get(key, key): value for key, value in config.items()}
        complete = joined(dict(self.defaults), {**respelled, **config})
        try:
            table = read_all(self.lenses, complete)
            for stack, groups in (
                (table, self.groups),
                (table.get("encoder"), self.encoder_groups),
            ):
                if stack is not None:
                    _arrange(stack, groups, complete)
            _stretch(table)
        except KeyError as error:
            raise UserError(f"config.json: {error.args[0]}: missing") from None
        except UserError:
            raise
        except (TypeError, AttributeError, ValueError) as error:
            raise UserError(
                f"config.json: a value has another type than expected: {error}"
            ) from None
        except ArithmeticError as error:
            raise UserError(f"config.json: a number makes no sense: {error}") from None
        table["name"] = name
        return validated(ModelSpec, table).resolved()

    def architecture_of(self, spec: ModelSpec) -> str:
        """Return the model's class, as named by `architectures`."""
        classifies = self.sequence_head and not spec.sequence_head.is_none
        if classifies or (self.replaced_head and spec.head.predicts == "replaced"):
            return self.pretraining_architecture
        masked = self.masked_architecture if spec.is_bidirectional else ""
        return masked or self.architecture

    def config(self, spec: ModelSpec) -> dict[str, Any]:
        """Return the config of a resolved spec, without unsupported values."""
        architectures = [self.architecture_of(spec)]
        keys: dict[str, Any] = {"model_type": self.model_type, "architectures": architectures}
        spec = _unstretched(spec)
        keys |= write_all(self.lenses, getter(spec))
        for group in self.groups:
            keys = joined(keys, group.write(spec))
        if spec.encoder_model is not None:
            for group in self.encoder_groups:
                keys = joined(keys, group.write(spec.encoder_model))
        return with_older_keys(keys)

    def with_unsaid(self, spec: ModelSpec, original: ModelSpec) -> ModelSpec:
        """Copy heads, and ties to the embedding, from `original` if the family's configs do not record them."""
        replaced = original.head.predicts == "replaced"
        spec = self.with_heads(spec, original.head.bias, original.sequence_head, replaced)
        return self.tied(spec, original.head.tied) if self.ties_unsaid else spec

    @staticmethod
    def tied(spec: ModelSpec, tied: bool) -> ModelSpec:
        """Tie a spec's head to its embedding, or untie it."""
        return spec.model_copy(update={"head": spec.head.model_copy(update={"tied": tied})})

    def with_heads(
        self, spec: ModelSpec, bias: bool, sequence_head: SequenceHead, replaced: bool
    ) -> ModelSpec:
        """Add heads to a spec, in families with tensors for them.

        Args:
            bias: True if logits have a bias.
            sequence_head: Head that classifies sequences.
            replaced: True if the head detects replaced tokens.
        """
        update: dict[str, Any] = {}
        if self.logits_bias:
            update["head"] = spec.head.model_copy(update={"bias": bias})
        if self.sequence_head:
            update["sequence_head"] = sequence_head
        if self.replaced_head and replaced:
            update["head"] = self.read_replaced_head({**self.defaults, **self.config(spec)})
        return spec.model_copy(update=update)

    def as_stored(self, names: Iterable[str]) -> Family:
        """Return the family with `other_layer_keys`, if files with tensors of these names have the first of them."""
        start = self.layers.partition("{i}")[0]
        for first in list(self.other_layer_keys)[:1]:
            if any(name.startswith(start) and f".{first}" in name for name in names):
                return replace(self, layer_keys=_replaced(self.layer_keys, self.other_layer_keys))
        return self

    def ignores(self, name: str, num_layers: int) -> bool:
        """True if a tensor is outside a model with `num_layers` layers."""
        for pattern in self.ignored:
            if match := re.fullmatch(pattern, name):
                layer = match.groupdict().get("layer")
                return layer is None or int(layer) >= num_layers
        return False

    def slots(self, spec: ModelSpec, tensors: Mapping[str, Tensor]) -> dict[str, Slot]:
        """Return the slot of each checkpoint tensor, by its name in files."""
        return slots(spec, tensors, stacks=self.stacks, model_keys=self.model_keys)

    @property
    def stacks(self) -> tuple[StackKeys, ...]:
        """Layer names of the main stack and of the encoder."""
        encoder = StackKeys(
            self.encoder_layers, "encoder.layers.{i}.", self.encoder_layer_keys, in_encoder=True
        )
        return (StackKeys(self.layers, "layers.{i}.", self.layer_keys), encoder)

    def _check_numbers(self, config: Config) -> None:
        """Reject numbers out of range, before anything is computed from them."""
        for key, value in config.items():
            has_default = self.key_aliases.get(key, key) in self.defaults
            if not has_default and not isinstance(value, Mapping | list):
                continue
            for path, number in _numbers(key, value):
                counts = isinstance(number, int) and "theta" not in path
                most = LARGEST_COUNT if counts else LARGEST
                if not abs(number) <= most and path != "time_step_limit":  # which may be infinite
                    shown = f"{Decimal(number):.3g}"
                    raise UserError(
                        f"config.json: {path}: found {shown}; expected at most {most:,}"
                    )


def _arrange(stack: Table, groups: Sequence[Layers], config: Config) -> None:
    """Add the values of layer types to a stack's table, in place."""
    number = stack["num_layers"]
    if not isinstance(number, int) or not 1 <= number <= MOST_LAYERS:
        shown = repr(number)[:80]
        raise UserError(f"config.json: found {shown} layers; expected 1 to {MOST_LAYERS:,}")
    if not groups:
        return
    roles = [group.names(config, number) for group in groups]
    tables_by_role = {
        (g, role): group.of(role, config)
        for g, group in enumerate(groups)
        for role in dict.fromkeys(roles[g])
    }
    distinct = [g for g, names in enumerate(roles) if len(set(names)) > 1]
    tables, names = [], []
    for i in range(number):
        layer: Table = {}
        for g in range(len(groups)):
            lay(layer, tables_by_role[g, roles[g][i]])
        tables.append(layer)
        names.append("_".join(roles[g][i] for g in distinct) or "default")
    arranged(stack, tables, names)


def _numbers(path: str, value: object) -> Iterator[tuple[str, int | float]]:
    """Yield each number inside a value, with its path."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _numbers(f"{path}.{key}", inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _numbers(path, inner)
    elif isinstance(value, int | float):
        yield path, value


def _stretch(table: Table) -> None:
    """Multiply the context length by the factor of dynamic NTK, in place."""
    for layer in (table, *table.get("layer_kinds", {}).values()):
        scaling = layer.get("position", {}).get("scaling", {})
        if scaling.get("kind") == "dynamic":
            table["context_length"] = int(scaling["original_length"] * scaling["factor"])
            return


def _unstretched(spec: ModelSpec) -> ModelSpec:
    """Return a spec with the original context length of dynamic NTK."""
    for layer in spec.layers_by_kind.values():
        scaling = getattr(layer.position, "scaling", None)
        if isinstance(scaling, DynamicNTK):
            return spec.model_copy(update={"context_length": scaling.original_length})
    return spec


def _key(lens: Lens) -> str | None:
    """Return the config key of a lens; None if it has no single key."""
    return getattr(lens, "key", None)


def _renamed(name: str, old: str, new: str) -> str:
    """Replace the prefix of a name or pattern."""
    for start, other in ((old, new), (re.escape(old), re.escape(new))):
        if old != new and name.startswith(start):
            return other + name.removeprefix(start)
    return name


def _replaced(held: Mapping[str, Mapped], new: Mapping[str, Mapped]) -> dict[str, Mapped]:
    """Add names; a new name replaces old names of the same tensors."""
    new_parts = [part + "." for contents in new.values() for part in _contents(contents)]
    remaining = {
        name: contents
        for name, contents in held.items()
        if not any(p.startswith(part + ".") for part in _contents(contents) for p in new_parts)
    }
    return {**remaining, **new}


def _contents(held: Mapped) -> tuple[str, ...]:
    """Return the names of the model's modules and tensors in `held`."""
    if isinstance(held, str):
        return (held,)
    if isinstance(held, When):
        return _contents(held.ours)
    if isinstance(held, Constant):
        return ()
    parts = held.ours if isinstance(held, Fused) else held
    return tuple(name for part in parts for name in _contents(part))


def _filled(declared: Mapping[str, Any], undeclared: Mapping[str, Any]) -> dict[str, Any]:
    """Fill missing and null defaults from `undeclared`, also within tables."""
    filled = dict(declared)
    for key, value in undeclared.items():
        if filled.get(key) is None:
            filled[key] = value
        elif isinstance(value, Mapping) and isinstance(filled[key], Mapping):
            filled[key] = _filled(filled[key], value)
    return filled
