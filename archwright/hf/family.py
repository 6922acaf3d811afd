"""Families of checkpoints as data: how a config maps to a spec, and how names of tensors map to ours."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
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
"""Numbers of a config that are read at most: bases of frequencies alone are larger than anything counted."""
MOST_LAYERS = 100_000
"""Layers of a model that are read at most, so that a damaged number is not counted through."""


@dataclass(frozen=True)
class Family:
    """Checkpoints whose config.json has one `model_type`.

    Args:
        architecture: the class that `architectures` names.
        masked_architecture: the same where tokens see what follows them, and masked ones are filled in.
        lenses: correspondences of config and spec; later ones count over earlier ones.
        groups: types that layers have, one of each group.
        encoder_groups: the same of the encoder's layers.
        layers: what the names of layer `{i}` begin with.
        layer_keys: which of our tensors each of a layer's holds; see `weight_map`.
        model_keys: the same of what stands around the layers.
        encoder_layers: what the names of the encoder's layers begin with, in families that have one.
        encoder_layer_keys: which of our tensors each of theirs holds.
        pretraining_architecture: the same where rows are judged, too, or replaced tokens are found.
        sequence_head: the tensor that a file has where rows are judged, which no config speaks of. It belongs to this
            family alone.
        replaced_head: the same where the head finds replaced tokens.
        read_replaced_head: what reads that head from a config.
        logits_bias: the tensor that is added to logits, which no config speaks of: a model has a bias where a
            file's is not zero.
        prefix: what the names of the body begin with, and some published files leave out.
        ignored: patterns of names in files that are no part of the model; one with a group `layer` is of
            layers behind the last, which predict further tokens.
        further_aliases: other words for keys that the class of `transformers` does not declare, with those of lenses.
        endings: how names of old files end, and how they would today.
        undeclared: defaults of keys for which the class of `transformers` declares nothing, or null.
        counts_padding: whether the class of a config takes padding for a part of a text, so that it changes the rest.
        ties_unsaid: whether tensors alone tell if the head is the embedding's table.
        in_steps: whether the class computes the spec only where it reads a decoder's text token by token, with a cache.
        further_inputs: what the class is told with a text, beside tokens and padding, so that it computes the spec.
    """

    model_type: str
    architecture: str
    lenses: Sequence[Lens]
    layers: str
    layer_keys: Mapping[str, Mapped]
    model_keys: Mapping[str, Mapped]
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
    in_steps: bool = False
    further_inputs: Callable[[ModelSpec, Tensor], dict[str, Tensor]] = lambda spec, tokens: {}

    @cached_property
    def defaults(self) -> Mapping[str, Any]:
        """Values of keys that a config leaves out."""
        return _filled(class_defaults(self.model_type), self.undeclared)

    @cached_property
    def key_aliases(self) -> Mapping[str, str]:
        """Other words for keys, with the words that lenses use."""
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
        """Return a family like this one with further lenses, and other defaults and names.

        What is new takes the place of what it had: a lens, of those with its key; a name, of that for the same
        tensors; a `prefix`, of its own in names. Lenses of keys that the other class does not have are left
        out.
        """
        undeclared = {**self.undeclared, **(undeclared or {})}
        # A class that is not recorded yet has the keys of this one.
        declared = class_defaults(model_type) or self.defaults
        known = _filled(declared, undeclared)
        groups = (*changes.get("groups", ()), *changes.get("encoder_groups", ()))
        group_lenses = [lens for group in groups for lens in group.lenses]
        own = {_key(lens) for lens in (*lenses, *group_lenses)}
        kept = [
            lens
            for lens in self.lenses
            if (key := _key(lens)) is None or (key not in own and key.split(".")[0] in known)
        ]
        renamed = partial(_renamed, old=self.prefix, new=changes.get("prefix", self.prefix))
        changes.setdefault("sequence_head", "")
        changes.setdefault("replaced_head", "")
        changes.setdefault("pretraining_architecture", "")
        changes.setdefault("layers", renamed(self.layers))
        changes.setdefault("encoder_layers", renamed(self.encoder_layers))
        changes.setdefault("ignored", tuple(renamed(pattern) for pattern in self.ignored))
        own_model_keys = {renamed(name): held for name, held in self.model_keys.items()}
        return replace(
            self,
            model_type=model_type,
            architecture=architecture,
            undeclared=undeclared,
            lenses=(*kept, *lenses),
            layer_keys=_replaced(self.layer_keys, layer_keys or {}),
            model_keys=_replaced(own_model_keys, model_keys or {}),
            **changes,
        )

    def spec(self, config: Config, name: str = "") -> ModelSpec:
        """Return the resolved spec that a config describes.

        Raises:
            UserError: values that this package does not know, one line each.
        """
        self._check_numbers(config)
        respelled = {self.key_aliases.get(key, key): value for key, value in config.items()}
        whole = joined(dict(self.defaults), {**respelled, **config})
        try:
            table = read_all(self.lenses, whole)
            for stack, groups in (
                (table, self.groups),
                (table.get("encoder"), self.encoder_groups),
            ):
                if stack is not None:
                    _arrange(stack, groups, whole)
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
        """Return the class that a model of this family is."""
        judges = self.sequence_head and not spec.sequence_head.is_none
        if judges or (self.replaced_head and spec.head.predicts == "replaced"):
            return self.pretraining_architecture
        masked = self.masked_architecture if spec.is_bidirectional else ""
        return masked or self.architecture

    def config(self, spec: ModelSpec) -> dict[str, Any]:
        """Return the config of a resolved spec, as far as this family can say it."""
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

    def with_unsaid(self, spec: ModelSpec, own: ModelSpec) -> ModelSpec:
        """Return a spec that was read from a config, with what only tensors tell as another spec has it."""
        replaced = own.head.predicts == "replaced"
        spec = self.with_heads(spec, own.head.bias, own.sequence_head, replaced)
        return self.tied(spec, own.head.tied) if self.ties_unsaid else spec

    @staticmethod
    def tied(spec: ModelSpec, tied: bool) -> ModelSpec:
        """Return a spec whose head is the embedding's table, or has one of its own."""
        return spec.model_copy(update={"head": spec.head.model_copy(update={"tied": tied})})

    def with_heads(
        self, spec: ModelSpec, bias: bool, sequence_head: SequenceHead, replaced: bool
    ) -> ModelSpec:
        """Return a spec that was read from a config, with the heads that only tensors tell, in families that have them.

        Args:
            bias: whether logits have one.
            replaced: whether the head finds replaced tokens.
        """
        update: dict[str, Any] = {}
        if self.logits_bias:
            update["head"] = spec.head.model_copy(update={"bias": bias})
        if self.sequence_head:
            update["sequence_head"] = sequence_head
        if self.replaced_head and replaced:
            update["head"] = self.read_replaced_head({**self.defaults, **self.config(spec)})
        return spec.model_copy(update=update)

    def ignores(self, name: str, num_layers: int) -> bool:
        """Tell whether a tensor of a file is no part of a model of so many layers."""
        for pattern in self.ignored:
            if found := re.fullmatch(pattern, name):
                layer = found.groupdict().get("layer")
                return layer is None or int(layer) >= num_layers
        return False

    def slots(self, spec: ModelSpec, tensors: Mapping[str, Tensor]) -> dict[str, Slot]:
        """Return every tensor of a checkpoint by its name there, with those of ours that it holds."""
        return slots(spec, tensors, stacks=self.stacks, model_keys=self.model_keys)

    @property
    def stacks(self) -> tuple[StackKeys, ...]:
        """The names of the layers of each stack."""
        encoder = StackKeys(
            self.encoder_layers, "encoder.layers.{i}.", self.encoder_layer_keys, in_encoder=True
        )
        return (StackKeys(self.layers, "layers.{i}.", self.layer_keys), encoder)

    def _check_numbers(self, config: Config) -> None:
        """Refuse numbers that no model has, before anything is computed from them."""
        for key, value in config.items():
            known = self.key_aliases.get(key, key) in self.defaults
            if not known and not isinstance(value, Mapping | list):
                continue
            for path, number in _numbers(key, value):
                counts = isinstance(number, int) and "theta" not in path
                most = LARGEST_COUNT if counts else LARGEST
                if not abs(number) <= most:
                    shown = f"{Decimal(number):.3g}"
                    raise UserError(
                        f"config.json: {path}: found {shown}; expected at most {most:,}"
                    )


def _arrange(stack: Table, groups: Sequence[Layers], config: Config) -> None:
    """Lay what the groups say of each layer into the table of a stack."""
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
    """Yield each number of a value with its path."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _numbers(f"{path}.{key}", inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _numbers(path, inner)
    elif isinstance(value, int | float):
        yield path, value


def _stretch(table: Table) -> None:
    """Set the context length to that of dynamic NTK: its factor times the length of the config."""
    for layer in (table, *table.get("layer_kinds", {}).values()):
        scaling = layer.get("position", {}).get("scaling", {})
        if scaling.get("kind") == "dynamic":
            table["context_length"] = int(scaling["original_length"] * scaling["factor"])
            return


def _unstretched(spec: ModelSpec) -> ModelSpec:
    """Return a spec with the length that a config says, which dynamic NTK counts from."""
    for layer in spec.layers_by_kind.values():
        scaling = getattr(layer.position, "scaling", None)
        if isinstance(scaling, DynamicNTK):
            return spec.model_copy(update={"context_length": scaling.original_length})
    return spec


def _key(lens: Lens) -> str | None:
    """Return the key of a config that a lens is of, if it is of one."""
    return getattr(lens, "key", None)


def _renamed(name: str, old: str, new: str) -> str:
    """Return a name with the beginning that another family has."""
    for start, other in ((old, new), (re.escape(old), re.escape(new))):
        if old != new and name.startswith(start):
            return other + name.removeprefix(start)
    return name


def _replaced(held: Mapping[str, Mapped], new: Mapping[str, Mapped]) -> dict[str, Mapped]:
    """Return names with new ones, in the place of those for the same tensors."""
    own = [part + "." for contents in new.values() for part in _contents(contents)]
    kept = {
        name: contents
        for name, contents in held.items()
        if not any(one.startswith(part + ".") for part in _contents(contents) for one in own)
    }
    return {**kept, **new}


def _contents(held: Mapped) -> tuple[str, ...]:
    """Return our modules and tensors that a name of a checkpoint stands for."""
    if isinstance(held, str):
        return (held,)
    if isinstance(held, When):
        return _contents(held.ours)
    if isinstance(held, Constant):
        return ()
    parts = held.ours if isinstance(held, Fused) else held
    return tuple(name for part in parts for name in _contents(part))


def _filled(declared: Mapping[str, Any], undeclared: Mapping[str, Any]) -> dict[str, Any]:
    """Return defaults with others in the place of null, within tables too."""
    filled = dict(declared)
    for key, value in undeclared.items():
        if filled.get(key) is None:
            filled[key] = value
        elif isinstance(value, Mapping) and isinstance(filled[key], Mapping):
            filled[key] = _filled(filled[key], value)
    return filled
