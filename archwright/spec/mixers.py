"""Mixers: how tokens exchange information. What axes of attention and of recurrence have in common."""

import math
from collections.abc import Hashable, Mapping
from typing import Any, ClassVar, Literal

from archwright.spec.choice import Choice, ScaleDown

ALL_INPUTS = frozenset(
    {"position", "position_ids", "segment_ids", "padding_mask", "attention_mask"}
)
"""Inputs of a mixer beside x: the layer's position encoding, and what a batch has beside its tokens."""


class Mixer(Choice):
    """A branch in which tokens exchange information."""

    takes: ClassVar[frozenset[str]] = frozenset()
    """Which of ALL_INPUTS its part does not ignore. A batch that has others is refused, as tokens would see what they
    must not."""
    causal: ClassVar[bool] = True
    """Whether no token sees what follows it, whatever the mask."""
    chooses_keys: ClassVar[bool] = False
    """Whether values decide which tokens a token sees, among those that it may see."""

    @property
    def one_line(self) -> str:
        """Summary of a branch whose values are resolved, in a few words; empty where there is no branch."""
        return "" if self.is_none else f"{self.kind} {self.axis}"

    def num_parameters(self, dim: int) -> int:
        """Return the number of parameters of a branch whose values are resolved, positions and tables aside."""
        return 0

    def num_later_parameters(self, dim: int) -> int:
        """Return how many of these the first layer of a kind lacks, of resolved values."""
        return 0

    def num_table_parameters(self, vocab_size: int) -> int:
        """Return the number of parameters of its tables with a row for each token, of resolved values."""
        return 0

    def num_shared_parameters(self, dim: int) -> Mapping[Hashable, int]:
        """Return the numbers of parameters that layers with such a branch share, by what is the same in them all."""
        return {}

    def scaled_down(self, to: ScaleDown) -> dict[str, Any]:
        """Options that are called num_heads, num_..._heads and ..._dim of a head: heads share the new width out,
        groups of them keep their share, and widths keep their ratio to that of a head's key, the first of them."""
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
    """The axis of recurrences: branches whose state, of one size for any length, is carried from token to token. One
    stands in place of attention, or beside it: both then read the same normed stream and are added (Falcon-H1)."""

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
    """Return the divisor of `number` that is nearest to `wanted` in ratio."""
    divisors = [n for n in range(1, number + 1) if number % n == 0]
    return min(divisors, key=lambda n: abs(math.log(n / wanted)))
