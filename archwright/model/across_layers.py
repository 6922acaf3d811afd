"""Values and states that cross layers: each one has a provider, in an earlier layer."""

from collections.abc import Iterable, Iterator

from archwright.model.layer import Layer
from archwright.spec.errors import UserError


def check(layers: Iterable[Layer], *, is_reversible: bool) -> None:
    """Refuse layers that read values or states without a provider.

    Raises:
        UserError: A line for each mistake.
    """
    numbers: dict[Layer, int] = {}  # a shared layer provides a value the first time
    for number, layer in enumerate(layers, 1):
        numbers.setdefault(layer, number)
    if lines := [*_mistakes(numbers, is_reversible)]:
        raise UserError(*lines)


def _mistakes(numbers: dict[Layer, int], is_reversible: bool) -> Iterator[str]:
    providers = {"embedding": 0}
    states: dict[str, set[int]] = {}
    for layer, number in numbers.items():
        if is_reversible and (names := [*layer.provides, *layer.reads_from]):
            yield (
                f'layer {number}: passes "{names[0]}" between layers, and reversible layers are recomputed without it; '
                "expected another residual"
            )
        for name, source in layer.reads_from.items():
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
        for name in layer.provides:
            if (other := providers.setdefault(name, number)) != number:
                yield f'layer {number}: provides "{name}", as layer {other} does; expected another name'
