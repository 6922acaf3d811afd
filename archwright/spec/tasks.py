"""Synthetic tasks: texts whose examples are drawn, and of which only the answers are scored."""

from collections.abc import Iterator
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from archwright.spec.choice import Choice, ModelSizes

Symbols = Annotated[int, Field(ge=2, le=2**16)]
"""How many different tokens play a part of a task."""
MOST_TRANSITIONS = 2**20
Number = Annotated[int, Field(ge=1, le=2**16)]


class Task(Choice):
    """The axis of synthetic tasks, which data.text names, as in data.text=mqar: examples are drawn afresh for every
    step, one for each row of a batch and as long as model.context_length, and only the answers are scored."""

    axis: ClassVar[str] = "task"
    length_option: ClassVar[str] = ""
    """The option that decides how long an example is."""

    @property
    def words(self) -> tuple[str, ...]:
        """The names of the tokens, in the order of their ids."""
        return ()

    @property
    def shortest(self) -> int:
        """The least model.context_length that an example fits into."""
        return 2

    @property
    def needs(self) -> str:
        """The option that needs such a length, for the user."""
        return (
            f"data.task.{option} = {getattr(self, option)}"
            if (option := self.length_option)
            else "an example"
        )


class Documents(Task):
    """No task: data.text names documents, of which every token is scored."""

    kind: Literal["none"] = "none"


class MQAR(Task):
    """Multi-query associative recall: pairs of a key and a value, then each key again, at distances drawn from a power
    law; the answer at a key is its value (Arora et al., 2023, Zoology, section 4; drawn as in its appendix)."""

    kind: Literal["mqar"] = "mqar"
    length_option: ClassVar[str] = "pairs"
    pairs: Number | Literal["auto"] = Field("auto", examples=[64])
    """Pairs in an example, each asked once; auto: a quarter of model.context_length, which leaves no room between."""
    fewest_pairs: Number | Literal["auto"] = Field("auto", examples=[64])
    """Pairs in an example of training at least: their number n is drawn from here to `pairs`, with p(n) ~ 1 / n, as
    examples with few teach the most at first (Arora et al., 2024, Based, figure 2, trains on such a mixture); held-out
    examples have `pairs`; auto: 4."""
    keys: Symbols = 128
    """Different keys that pairs are drawn from, without repetition."""
    values: Symbols = 128
    """Different values that pairs are drawn from, without repetition."""
    power: float = Field(0.01, gt=0, le=1)
    """Exponent a of the distances: p(d) is proportional to d^(a - 1), so that 1 is uniform."""

    @property
    def words(self) -> tuple[str, ...]:
        return (*_numbered("k", self.keys), *_numbered("v", self.values))

    @property
    def shortest(self) -> int:
        # The value of the last key that is asked need not stand in the text, but the token that begins it does.
        return 4 * (1 if self.pairs == "auto" else self.pairs)

    def numbers(self, sizes: ModelSizes) -> dict[str, Any]:
        most = max(1, min(self.keys, self.values, sizes.context_length // 4))
        pairs = most if self.pairs == "auto" else self.pairs
        fewest = min(4, pairs) if self.fewest_pairs == "auto" else self.fewest_pairs
        return {"pairs": pairs, "fewest_pairs": fewest}

    def contradictions(self, sizes: ModelSizes) -> Iterator[str]:
        for name, number in (("keys", self.keys), ("values", self.values)):
            if self.pairs != "auto" and self.pairs > number:
                yield (f"{name}: found {number}; expected at least pairs = {self.pairs}")
        fewest = self.fewest_pairs
        if self.pairs != "auto" and fewest != "auto" and fewest > self.pairs:
            yield (f"fewest_pairs: found {fewest}; expected at most pairs = {self.pairs}")


class Markov(Task):
    """A Markov chain whose table of transitions is drawn once: the entropy rate, in closed form, is the least loss
    that any model can reach (Shannon, 1948, section 7)."""

    kind: Literal["markov"] = "markov"
    length_option: ClassVar[str] = "order"
    order: int = Field(2, ge=1, le=8)
    """Tokens that the next one depends on."""
    symbols: Annotated[int, Field(ge=2, le=256)] = 8
    """Different tokens; the table has symbols^(order + 1) numbers, at most 2^20."""
    concentration: float = Field(0.3, ge=0.01, le=100)
    """Of the Dirichlet distribution that each row of the table is drawn from: less makes a chain more certain."""
    table_seed: int = Field(0, ge=0, lt=2**63)
    """Of the table, which is the same for all seeds of a run."""

    def contradictions(self, sizes: ModelSizes) -> Iterator[str]:
        if self.symbols ** (self.order + 1) > MOST_TRANSITIONS:
            most = max(s for s in range(2, 257) if s ** (self.order + 1) <= MOST_TRANSITIONS)
            yield (
                f"symbols: found {self.symbols}; expected at most {most} with order = {self.order}, as the table has "
                "symbols^(order + 1) numbers"
            )

    @property
    def words(self) -> tuple[str, ...]:
        return _numbered("s", self.symbols)

    @property
    def shortest(self) -> int:
        return self.order + 2


class Needle(Task):
    """Pairs of a key and a value somewhere among filler, and at the end one of the keys again, where the answer is its
    value (Kamradt, 2023, needle in a haystack; with several pairs, Hsieh et al., 2024, RULER, section 3)."""

    kind: Literal["needle"] = "needle"
    length_option: ClassVar[str] = "pairs"
    pairs: Number = 1
    """Pairs in the text, one of which is asked."""
    keys: Symbols = 16
    """Different keys."""
    values: Symbols = 16
    """Different values."""
    fillers: Symbols = 32
    """Different tokens of filler."""

    def contradictions(self, sizes: ModelSizes) -> Iterator[str]:
        if self.pairs > self.keys:
            yield (f"keys: found {self.keys}; expected at least pairs = {self.pairs}")

    @property
    def words(self) -> tuple[str, ...]:
        parts = (("k", self.keys), ("v", self.values), ("f", self.fillers))
        return tuple(word for letter, number in parts for word in _numbered(letter, number))

    @property
    def shortest(self) -> int:
        return 2 * self.pairs + 2  # and the key that is asked, and the token that begins a text


class SelectiveCopy(Task):
    """Tokens at places drawn at random among blanks, then as many marks, at which the answers are the tokens in their
    order (Gu and Dao, 2023, Mamba, section 4.1; in the sizes of Poli et al., 2024, MAD)."""

    kind: Literal["selective-copy"] = "selective-copy"
    length_option: ClassVar[str] = "copied"
    copied: Number = 16
    """Tokens to copy."""
    symbols: Symbols = 16
    """Different tokens that are copied."""

    @property
    def words(self) -> tuple[str, ...]:
        return (*_numbered("s", self.symbols), "blank", "mark")

    @property
    def shortest(self) -> int:
        return 2 * self.copied + 1


class KHop(Task):
    """Random tokens; the answer at each is found by hops, each to the token behind the last earlier one that equals
    the present one, k times. One hop is an induction head (Sanford et al., 2024, Transformers, parallel computation,
    and logarithmic depth, section 4)."""

    kind: Literal["k-hop"] = "k-hop"
    length_option: ClassVar[str] = "k"
    k: int = Field(2, ge=1, le=64)
    """Number of hops."""
    symbols: Symbols = 16
    """Different tokens."""

    @property
    def words(self) -> tuple[str, ...]:
        return _numbered("s", self.symbols)

    @property
    def shortest(self) -> int:
        return self.k + 3


def _numbered(letter: str, number: int) -> tuple[str, ...]:
    return tuple(f"{letter}{i}" for i in range(number))
