"""Mixers: branches that exchange information between tokens, such as attention and recurrences."""

import math
from collections.abc import Hashable, Mapping
from typing import Any, ClassVar, Literal

from archwright.spec.choice import Choice, ScaleDown

ALL_INPUTS = frozenset(
    {"position", "position_ids", "segment_ids", "padding_mask", "attention_mask"}
)
"""Inputs of a mixer in addition to x: the layer's position encoding, and tensors of a batch other than tokens."""


class Mixer(Choice):
    """A branch that exchanges information between tokens."""

    takes: ClassVar[frozenset[str]] = frozenset()
    """Inputs of ALL_INPUTS that its part uses. Batches with other inputs are refused, because tokens would see hidden
    ones."""
    causal: ClassVar[bool] = True
    """True if no token sees later tokens under any mask."""
    chooses_keys: ClassVar[bool] = False
    """True if values decide which of the permitted tokens a token sees."""

    @property
    def one_line(self) -> str:
        """Short summary of the branch, from resolved values; empty if there is no branch."""
        return "" if self.is_none else f"{self.kind} {self.axis}"

    def num_parameters(self, dim: int) -> int:
        """Return the number of parameters, from resolved values, without positions and tables."""
        return 0

    def num_later_parameters(self, dim: int) -> int:
        """Return the parameters that the first layer of a kind lacks, from resolved values."""
        return 0

    def num_table_parameters(self, vocab_size: int) -> int:
        """Return the number of parameters of tables with a row per token id, from resolved values."""
        return 0

    def num_shared_parameters(self, dim: int) -> Mapping[Hashable, int]:
        """Return numbers of parameters shared by layers, by a key that is equal in all sharing layers."""
        return {}

    def scaled_down(self, to: ScaleDown) -> dict[str, Any]:
        """Scale options by name: num_heads, num_..._heads and ..._head_dim. Heads divide the new width, num_..._heads
        keep their ratio to num_heads, and widths keep their ratio to the first head width, the key's."""
        changes = super().scaled_down(to)
        full = dict(self) | self.numbers(to.old)
        for name, value in self:
            if name == "num_heads":
                changes[name] = to.num_heads
            elif type(value) is not int:
                continue
            elif name.startswith("num_") and name.endswith("_heads"):
                share = value / full.get("num_heads", value)
                changes[name] = _divisor(to.num_heads, to.num_heads * share)
            elif name.endswith("head_dim"):
                key_dim = next(full[name] for name in full if name.endswith("head_dim"))
                changes[name] = max(2, 2 * round(value * to.head_dim / key_dim / 2))
        return changes

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        super().__pydantic_init_subclass__(**kwargs)
        if unknown := sorted(cls.takes - ALL_INPUTS):
            raise ValueError(
                f"{cls.__name__}: takes {unknown[0]}; expected any of {', '.join(sorted(ALL_INPUTS))}"
            )


class Recurrence(Mixer):
    """The axis of recurrences: branches with a state, of one size for any length, updated from token to token. A
    recurrence replaces attention, or both read the same normed stream and are added (Falcon-H1)."""

    axis: ClassVar[str] = "recurrence"

    @property
    def rule(self) -> str:
        """Name of the recurrence in tables of models."""
        return str(self.kind)


class NoRecurrence(Recurrence):
    """No recurrence."""

    kind: Literal["none"] = "none"
    takes: ClassVar[frozenset[str]] = ALL_INPUTS


def _divisor(number: int, wanted: float) -> int:
    """Return the divisor of `number` nearest to `wanted` on a log scale."""
    divisors = [n for n in range(1, number + 1) if number % n == 0]
    return min(divisors, key=lambda n: abs(math.log(n / wanted)))
