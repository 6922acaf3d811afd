"""Synthetic tasks: random examples with a loss only at the answers."""

from collections.abc import Iterator
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from archwright.spec.choice import Choice, ModelSizes

Symbols = Annotated[int, Field(ge=2, le=2**16)]
"""Number of different tokens in a role of a task."""
MOST_TRANSITIONS = 2**20
Number = Annotated[int, Field(ge=1, le=2**16)]


class Task(Choice):
    """The axis of synthetic tasks, named by data.text, as in data.text=mqar. Examples are drawn for every step, one per
    row of a batch and model.context_length tokens long, and only the answers are scored."""

    axis: ClassVar[str] = "task"
    length_option: ClassVar[str] = ""
    """Option that determines the length of an example."""

    @property
    def words(self) -> tuple[str, ...]:
        """Names of the tokens, in the order of their ids."""
        return ()

    @property
    def shortest(self) -> int:
        """Least model.context_length for an example."""
        return 2

    @property
    def needs(self) -> str:
        """Option that determines this length, for errors."""
        return (
            f"data.task.{option} = {getattr(self, option)}"
            if (option := self.length_option)
            else "an example"
        )


class Documents(Task):
    """No task: data.text names documents, and every token is scored."""

    kind: Literal["none"] = "none"


class MQAR(Task):
    """Multi-query associative recall: pairs of a key and a value, then each key again, at distances drawn from a power
    law; the answer at a key is its value (Arora et al., 2023, Zoology, section 4; drawn as in its appendix)."""

    kind: Literal["mqar"] = "mqar"
    length_option: ClassVar[str] = "pairs"
    pairs: Number | Literal["auto"] = Field("auto", examples=[64])
    """Pairs in an example, each queried once; auto: a quarter of model.context_length, which fills the example."""
    fewest_pairs: Number | Literal["auto"] = Field("auto", examples=[64])
    """Least pairs in a training example; auto: 4. Their number n is drawn from here to `pairs`, with p(n) ~ 1 / n,
    because examples with few pairs teach most at first (Arora et al., 2024, Based, figure 2, trains on such a mixture).
    Held-out examples have `pairs`."""
    keys: Symbols = 128
    """Number of different keys; an example has each at most once."""
    values: Symbols = 128
    """Number of different values; an example has each in at most one pair."""
    power: float = Field(0.01, gt=0, le=1)
    """Exponent a of the distances: p(d) is proportional to d^(a - 1); 1 is uniform."""

    @property
    def words(self) -> tuple[str, ...]:
        return (*_numbered("k", self.keys), *_numbered("v", self.values))

    @property
    def shortest(self) -> int:
        # The input omits the value of the last queried key and includes the start token.
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
    """A Markov chain with a transition table drawn once. Its entropy rate, in closed form, is the least loss of any
    model (Shannon, 1948, section 7)."""

    kind: Literal["markov"] = "markov"
    length_option: ClassVar[str] = "order"
    order: int = Field(2, ge=1, le=8)
    """Number of tokens that the next token depends on."""
    symbols: Annotated[int, Field(ge=2, le=256)] = 8
    """Different tokens; the table has symbols^(order + 1) numbers, at most 2^20."""
    concentration: float = Field(0.3, ge=0.01, le=100)
    """Concentration of the Dirichlet distribution of each table row; less makes the chain more predictable."""
    table_seed: int = Field(0, ge=0, lt=2**63)
    """Seed of the table, independent of the run's seed."""

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
    """Pairs of a key and a value among filler, then one of the keys at the end, with its value as the answer (Kamradt,
    2023, needle in a haystack; with several pairs, Hsieh et al., 2024, RULER, section 3)."""

    kind: Literal["needle"] = "needle"
    length_option: ClassVar[str] = "pairs"
    pairs: Number = 1
    """Pairs in the text; one of them is queried."""
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
        return 2 * self.pairs + 2  # the queried key and the start token


class SelectiveCopy(Task):
    """Tokens at random positions among blanks, then a mark per token; the answers at the marks are the tokens in order
    (Gu and Dao, 2023, Mamba, section 4.1; in the sizes of Poli et al., 2024, MAD)."""

    kind: Literal["selective-copy"] = "selective-copy"
    length_option: ClassVar[str] = "copied"
    copied: Number = 16
    """Tokens to copy."""
    symbols: Symbols = 16
    """Number of different tokens to copy."""

    @property
    def words(self) -> tuple[str, ...]:
        return (*_numbered("s", self.symbols), "blank", "mark")

    @property
    def shortest(self) -> int:
        return 2 * self.copied + 1


class KHop(Task):
    """Random tokens. The answer at each token is found by k hops, each to the token after the last earlier occurrence
    of the current token. One hop is an induction head (Sanford et al., 2024, Transformers, parallel computation, and
    logarithmic depth, section 4)."""

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
