"""Activations of layers for the backward pass, traced at the size of a rank."""

from collections.abc import Iterator, Mapping
from typing import NamedTuple, get_args

from archwright.model.model import Decoder
from archwright.planning.counter import Held
from archwright.planning.trace import Precision, Trace, trace
from archwright.spec.machine import ActivationCheckpointing

CHECKPOINTING: tuple[ActivationCheckpointing, ...] = get_args(ActivationCheckpointing)
"""Values of `machine.activation_checkpointing`. The backward pass recomputes: nothing; all except products with weights
and attention; all of a layer."""


class Activations(NamedTuple):
    """Bytes of activations per text."""

    kept: float
    """Bytes held until the backward pass."""
    again: float
    """Maximum of the bytes recomputed by one layer."""


class LayerActivations:
    """Activations of a model's layers by kind, traced on fake tensors.

    The trace assumes eager kernels, and attention that keeps no scores. `checkpointing` keeps:

        none        tensors that operations save for their backward pass
        selective   inputs of layers, and results of products with weights and of attention; one layer recomputes the
                    rest (Korthikanti et al., 2022, section 5)
        full        inputs of layers; one layer recomputes the rest

    Reversible layers keep the output of the last layer, and one layer is recomputed, for every value.

    With tensor parallelism, layers are built with the heads and columns of a rank. With sequence parallelism,
    replicated tensors are divided by tokens, except partial sums (Korthikanti et al., 2022, section 4.2.2).
    """

    def __init__(
        self,
        model: Decoder,
        length: int,
        target_length: int,
        precision: Precision = "autocast",
    ) -> None:
        self.model, self.precision = model, precision
        self.length, self.target_length = length, target_length
        self.is_reversible = model.spec.residual.is_reversible
        self._sums: dict[tuple[int, bool], list[dict[str, Activations]]] = {}

    def of(
        self, layers: Mapping[int, int], checkpointing: str, tensor: int, *, sequence: bool
    ) -> Activations:
        """Return a rank's activations for a number of layers of each kind."""
        if (tensor, sequence) not in self._sums:
            self._sums[tensor, sequence] = self._by_kind(tensor, sequence)
        name = "full" if self.is_reversible else checkpointing
        found = {kind: self._sums[tensor, sequence][kind][name] for kind in layers}
        again = max(each.again for each in found.values())
        if self.is_reversible:
            return Activations(max(each.kept for each in found.values()), again)
        return Activations(sum(found[kind].kept * n for kind, n in layers.items()), again)

    def _by_kind(self, tensor: int, sequence: bool) -> list[dict[str, Activations]]:
        """Return the activations of a layer of each kind, by checkpointing."""
        whole, own = self._trace(1), self._trace(tensor)
        stream = 1 / tensor if sequence else 1.0
        kept, results = (
            [*_on_rank(a, b, stream, whole_in)]
            for a, b, whole_in in (
                (whole.kept, own.kept, own.gathered),
                (whole.results, own.results, own.gathered | own.partial),
            )
        )
        sums: list[dict[str, Activations]] = []
        for kind, entering in own.entering.items():
            itemsize = 4 if self.precision == "fp32" else 2
            first = stream * entering.num_bytes + itemsize * own.provided[kind]
            stays = {held.storage for held, _ in results} | {entering.storage}
            of_kind = [(held, size) for held, size in kept if held.layer == kind]
            everything = sum(size for _, size in of_kind)
            again = sum(size for held, size in of_kind if held.storage not in stays)
            selected = first + sum(size for held, size in results if held.layer == kind)
            sums.append(
                {
                    "none": Activations(everything, 0.0),
                    "selective": Activations(selected, again),
                    "full": Activations(first, everything - first),
                }
            )
        return sums

    def _trace(self, tensor: int) -> Trace:
        return trace(
            self.model,
            "activations",
            length=self.length,
            target_length=self.target_length,
            precision=self.precision,
            tensor=tensor,
        )


def _on_rank(
    whole: list[Held], own: list[Held], stream: float, whole_in: set[str]
) -> Iterator[tuple[Held, float]]:
    """Yield tensors of a rank and their bytes; replicated tensors are divided by tokens."""
    alike = whole if len(whole) == len(own) else [None] * len(own)
    for all_of_it, held in zip(alike, own, strict=True):
        is_whole = all_of_it is not None and all_of_it.num_bytes == held.num_bytes
        is_shared = is_whole and held.part not in whole_in
        yield held, held.num_bytes * (stream if is_shared else 1.0)
