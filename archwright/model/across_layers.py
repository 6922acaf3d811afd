"""Values and states that cross layers: each one has a provider, in an earlier layer."""

from collections.abc import Iterable, Iterator, Sequence

from archwright.model.layer import Layer
from archwright.spec.errors import UserError


def check(layers: Iterable[Layer], *, is_reversible: bool) -> None:
    """Refuse layers that read values or states without a provider.

    Raises:
        UserError: A line for each mistake.
    """
    if lines := [*dict.fromkeys(_mistakes([*layers], is_reversible))]:
        raise UserError(*lines)


def _mistakes(layers: Sequence[Layer], is_reversible: bool) -> Iterator[str]:
    providers, seen = {"embedding": 0}, set[Layer]()
    for number, layer in enumerate(layers, 1):
        at = f"layers.{number - 1}"
        if is_reversible and (names := [*layer.provides, *layer.reads_from]):
            yield (
                f'{at}: passes "{names[0]}" between layers, and reversible layers are recomputed without it; expected '
                "another residual"
            )
            return
        for name, source in layer.reads_from.items():
            if providers.get(name) != source:
                known = ", ".join(f'"{name}" of layer {i}' for name, i in providers.items())
                yield (
                    f'{at}: reads "{name}" of layer {source}, which does not provide it before; expected one of '
                    f"{known}"
                )
        for name, mixer in layer.mixers().items():
            state_of = mixer.reads_state_of
            if state_of is not None and not _has_state(layers[: number - 1], state_of, name):
                yield (
                    f"{at}.{name}: reads the state of layer {state_of}; expected an earlier layer with {name} "
                    "that has a state of its own"
                )
        # A shared layer provides a value the first time.
        for name in () if layer in seen else layer.provides:
            if (other := providers.setdefault(name, number)) != number:
                yield f'{at}: provides "{name}", as layer {other} does; expected another name, as {name}_{number}'
        seen.add(layer)


def _has_state(layers: Sequence[Layer], number: int, name: str) -> bool:
    mixer = layers[number - 1].mixers().get(name) if 0 < number <= len(layers) else None
    return mixer is not None and mixer.reads_state_of is None
