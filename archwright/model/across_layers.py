"""Values and states that cross layers: each one has a provider, in an earlier layer."""

from collections.abc import Iterable, Iterator, Mapping

from archwright.model.layer import Layer
from archwright.spec.errors import UserError


def check(layers: Iterable[Layer], *, is_reversible: bool) -> None:
    """Refuse layers that read values or states without a provider.

    Raises:
        UserError: One line per mistake.
    """
    lines = [*dict.fromkeys(_mistakes([*layers], is_reversible))]
    if lines:
        raise UserError(*lines)


def _mistakes(layers: list[Layer], is_reversible: bool) -> Iterator[str]:
    providers: dict[str, int] = {"embedding": 0}
    seen: set[Layer] = set()
    for number, layer in enumerate(layers, 1):
        at = f"layers.{number - 1}"
        if is_reversible and (layer.provides or layer.reads_from):
            name = next(iter({**layer.provides, **layer.reads_from}))
            yield (
                f'{at}: passes "{name}" between layers, and reversible layers are recomputed without it; expected '
                "another residual"
            )
            return
        yield from (f"{at}: {line}" for line in _of_reads(layer.reads_from, providers))
        for name, mixer in layer.mixers().items():
            if (source := mixer.reads_state_of) is None:
                continue
            earlier = layers[source - 1].mixers() if 0 < source < number else {}
            if name not in earlier or earlier[name].reads_state_of is not None:
                yield (
                    f"{at}.{name}: reads the state of layer {source}; expected an earlier layer with {name} that has "
                    "a state of its own"
                )
        if layer in seen:  # a shared layer provides a value the first time
            continue
        seen.add(layer)
        for name in layer.provides:
            if providers.setdefault(name, number) != number:
                yield (
                    f'{at}: provides "{name}", as layer {providers[name]} does; expected another name, such as '
                    f'"{name}_{number}"'
                )


def _of_reads(reads_from: Mapping[str, int], providers: Mapping[str, int]) -> Iterator[str]:
    for name, source in reads_from.items():
        if providers.get(name) != source:
            names = ", ".join(f'"{name}" of layer {number}' for name, number in providers.items())
            yield f'reads "{name}" of layer {source}, which does not provide it before; expected one of {names}'
