"""Values and states that cross layers: each one has a provider, in an earlier layer."""

from collections import ChainMap
from collections.abc import Iterator, Mapping

from archwright.model.model import Layer, Stack
from archwright.parts.branch import Branch
from archwright.parts.residuals import Wiring
from archwright.spec.errors import UserError


def provides(layer: Layer) -> Mapping[str, int]:
    """Return the values for later layers: name -> numbers per token."""
    return ChainMap(*({**part.provides} for part in _parts(layer)))


def reads_from(layer: Layer) -> Mapping[str, int]:
    """Return the values of earlier layers: name -> number of the layer; 0 is the stream before the first one."""
    skip = {"embedding": 0} if reads_embedding(layer) else {}
    return ChainMap(skip, *({**part.reads_from} for part in _parts(layer)))


def reads_embedding(layer: Layer) -> bool:
    """True if a part between the branches reads the stream before the first layer."""
    return layer.embedding_skip is not None or layer.layer_embedding is not None


def check(stack: Stack) -> None:
    """Refuse layers that read values or states without a provider.

    Raises:
        UserError: A line for each mistake.
    """
    numbers: dict[Layer, int] = {}  # a shared layer provides a value the first time
    for number, layer in enumerate(stack.stack, 1):
        numbers.setdefault(layer, number)
    if lines := [*_mistakes(numbers, stack.spec.residual.is_reversible)]:
        raise UserError(*lines)


def _parts(layer: Layer) -> list[Branch | Wiring]:
    return [layer.residual, *map(layer.branch, layer.branches)]


def _mistakes(numbers: dict[Layer, int], is_reversible: bool) -> Iterator[str]:
    providers = {"embedding": 0}
    states: dict[str, set[int]] = {}
    for layer, number in numbers.items():
        if is_reversible and (names := [*provides(layer), *reads_from(layer)]):
            yield (
                f'layer {number}: passes "{names[0]}" between layers, and reversible layers are recomputed without it; '
                "expected another residual"
            )
        for name, source in reads_from(layer).items():
            if providers.get(name) != source:
                known = ", ".join(f'"{name}" of layer {i}' for name, i in providers.items())
                yield f'layer {number}: reads "{name}" of layer {source}; expected one of {known}'
        for name, mixer in layer.mixers().items():
            if mixer.reads_state_of is None:
                states.setdefault(name, set()).add(number)
            elif mixer.reads_state_of not in states.get(name, ()):
                yield (
                    f"layer {number}: {name} reads the state of layer {mixer.reads_state_of}; expected an earlier "
                    "layer with a state of its own"
                )
        for name in provides(layer):
            if (other := providers.setdefault(name, number)) != number:
                yield f'layer {number}: provides "{name}", as layer {other} does; expected another name'
