"""Mixers: how tokens exchange information. What axes of attention and of recurrence have in common."""

from typing import Any, ClassVar, Literal

from archwright.spec.choice import Choice

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

    @property
    def one_line(self) -> str:
        """Summary of a branch whose values are resolved, in a few words; empty where there is no branch."""
        return "" if self.is_none else f"{self.kind} {self.axis}"

    def num_parameters(self, dim: int) -> int:
        """Return the number of parameters of a branch whose values are resolved, positions aside."""
        return 0

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


class NoRecurrence(Recurrence):
    """No recurrence."""

    kind: Literal["none"] = "none"
    takes: ClassVar[frozenset[str]] = ALL_INPUTS
