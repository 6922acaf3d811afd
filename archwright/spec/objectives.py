"""Objectives: what a model reads of a text, and what it is to predict."""

from typing import ClassVar, Literal

from archwright.spec.choice import Choice


class Objective(Choice):
    """The axis of training objectives: what a model reads of a text, and what it is to predict."""

    axis: ClassVar[str] = "objective"
    causal: ClassVar[bool]
    """Whether no token may see what follows it; otherwise some layer has to see both sides."""
    defines_bits_per_byte: ClassVar[bool] = False
    """Whether the targets of a window are its tokens behind the first, each once and in order, so that their losses
    add up to that of the text."""
    generates_text: ClassVar[bool] = False
    """Whether what was learned is to go on with a text, so that a run ends with a sample."""
    overlap: ClassVar[int] = 0
    """Tokens that a window of training shares with the next one."""

    def window_length(self, context_length: int) -> int:
        """Return how many tokens of a text become one row of at most `context_length` inputs."""
        return context_length + self.overlap

    def stride(self, context_length: int) -> int:
        """Return how far the windows of an evaluation are apart where nobody says: half a context, after which each
        token is predicted, where that can be, or a whole one."""
        return max(1, context_length // 2) if self.defines_bits_per_byte else context_length


class NextToken(Objective):
    """-ln p(x_(t+1) | x_1 ... x_t) at each token x_t: a language model from left to right (Bengio et al., 2003)."""

    kind: Literal["next_token"] = "next_token"
    causal: ClassVar[bool] = True
    defines_bits_per_byte: ClassVar[bool] = True
    generates_text: ClassVar[bool] = True
    overlap: ClassVar[int] = 1
