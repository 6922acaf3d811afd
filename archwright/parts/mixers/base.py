"""Interface of mixers, which exchange information between tokens."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from jaxtyping import Float
from torch import Tensor

from archwright.parts.branch import Branch
from archwright.parts.context import Context
from archwright.parts.states import LayerState


class Mixer(Branch, ABC):
    """Branch with interactions between tokens: y = mix(x), shapes [batch, length, dim].

    The constructor has arguments (spec, dim, layer), with `layer` a `LayerInfo`, and builds all maps and norms.
    Only `forward` is abstract. Without a state, a mixer processes full sequences only.
    """

    reads_state_of: int | None = None
    """Number, from 1, of an earlier layer with the state that this mixer reads; None: no shared state."""

    generates_indefinitely: bool = True
    """True if the cost of the next token is bounded for any sequence length."""
    has_kernel: bool = False
    """True if the mixer computes attention with the kernel from `use_kernel`."""
    caches_unrotated: bool = False
    """True if results for cached tokens depend on the length of the text."""
    chunk_size: int | None = None
    """Tokens per chunk, which affects speed and memory but not results; None: no chunks."""

    @abstractmethod
    def forward(
        self,
        x: Float[Tensor, "batch length dim"],
        context: Context,
        state: Any = None,
        projected: Sequence[Tensor] | None = None,
    ) -> Float[Tensor, "batch length dim"]:
        """Return the mixed hidden states.

        Args:
            context: token layout, masks and rotations of this pass.
            state: state of earlier tokens, updated in place.
            projected: results of `inputs`, if the layer computed them.
        """

    def new_state(self, batch: int) -> LayerState | None:
        """Return the empty state of `batch` sequences; None: the mixer cannot continue a sequence.

        A mixer without memory returns an empty `RecurrentState`. Mixers with `reads_state_of` do not need this method.
        """
        return None

    @property
    def can_cache(self) -> bool:
        """True if the mixer can continue a sequence from its state or another layer's state."""
        return self.reads_state_of is not None or self.new_state(1) is not None

    def state_bytes(self, length: int, itemsize: int) -> int:
        """Return the bytes of the state after `length` tokens of one sequence, at `itemsize` bytes per number."""
        return 0

    @property
    def kept_blocks(self) -> int | None:
        """Number of equal blocks by which ranks may split the state: heads; 1: no split; None: any split."""
        return None

    @property
    def along_text(self) -> str:
        return "kind"

    def prepare(self, context: Context) -> None:
        """Compute masks and rotations of a pass, before a layer that may be compiled."""

    def kernels(self) -> Sequence[str]:
        """Return the names of kernels with forward and backward passes on CPU, the reference first."""
        return ()

    def use_kernel(self, name: str) -> None:
        """Select the kernel for attention or a scan, if the mixer has kernels."""
