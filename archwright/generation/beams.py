"""Beam search: the likeliest texts that a model goes on with, several of them followed at a time."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from archwright.generation.sampling import Reader, check_settings
from archwright.model.language_model import LanguageModel

EarlyStopping = bool | Literal["never"]


class Beam(NamedTuple):
    """A text that was begun, or that has ended."""

    score: float
    """Sum of log p of its tokens; of one that has ended, divided by their number to the power of the length penalty."""
    tokens: tuple[int, ...]


def beam_search(
    model: LanguageModel,
    prompt: Int[Tensor, " length"],
    *,
    source: Int[Tensor, " source_length"] | None = None,
    **settings: Any,
) -> list[int]:
    """Return the text that `beam_search_many` finds for one source, which only models with an encoder read."""
    sources = None if source is None else [source]
    (found,) = beam_search_many(model, prompt, sources, **settings)
    return found


@torch.inference_mode()
def beam_search_many(
    model: LanguageModel,
    prompt: Int[Tensor, " length"],
    sources: Sequence[Int[Tensor, " _"]] | None,
    *,
    max_tokens: int,
    num_beams: int,
    length_penalty: float = 1.0,
    early_stopping: EarlyStopping = False,
    stop: int | Collection[int] = (),
    num_tokens: int | None = None,
) -> list[list[int]]:
    """Return, for each source, the tokens of the text with the largest (sum of log p) / length^length_penalty found.

    At each step the `num_beams` likeliest of all texts that are one token longer are kept. A text that ends among
    them is set aside; its length counts the token that ends it. When `num_beams` have ended, `early_stopping` says
    whether the search goes on. (Lowerre, 1976; with lengths as powers, Wu et al., 2016, section 7, without its
    constant.)

    Args:
        prompt: token ids to go on from, at least one.
        sources: token ids that the encoder reads, side by side; None: a model without one, and one text.
        num_beams: how many texts are followed; 1 takes the likeliest token, always.
        length_penalty: 0 compares sums, 1 means; more favours longer texts.
        early_stopping: True: no more is sought once `num_beams` have ended. False: the search is over when no text
            that goes on is better now than the worst of these. "never": when none could become better, were it as
            long as `max_tokens` allows.
        stop: end before this token, or any of these.
        num_tokens: tokens that exist; a vocabulary rounded up has rows without a token.

    Raises:
        UserError: an empty prompt, a source that the model does not take or lacks, or settings out of their limits,
            one line each.
    """
    numbers = {"num_beams": num_beams, "length_penalty": length_penalty}
    check_settings(prompt, max_tokens=max_tokens, **numbers)
    stops = frozenset({stop} if isinstance(stop, int) else stop)
    limits = Limits(max_tokens, num_beams, length_penalty, early_stopping, stops)
    model.eval()
    reader = Reader(model, sources)
    searches = [Search(limits) for _ in (sources if sources is not None else [None])]
    read = prompt.expand(len(searches), -1)  # [sources, length]
    for _ in range(max_tokens):
        log_p = reader.read_rows(read)[:, :num_tokens].float().log_softmax(-1)
        rows, first = list[int](), 0
        going_on = [search for search in searches if search.running]
        for search in going_on:
            here = log_p[first : first + len(search.running)]
            rows += [first + row for row in search.take(here)]
            first += len(here)
        if not rows:
            break
        reader.reorder(torch.tensor(rows, device=prompt.device))
        last = [[beam.tokens[-1]] for search in going_on for beam in search.running]
        read = prompt.new_tensor(last)
    return [search.best() for search in searches]


@dataclass(frozen=True)
class Limits:
    """Settings of a search; see `beam_search_many`."""

    max_tokens: int
    num_beams: int
    length_penalty: float
    early_stopping: EarlyStopping
    stops: frozenset[int]


@dataclass
class Search:
    """The search for one text: what goes on, and the best of what has ended."""

    limits: Limits
    length: int = 0
    """Tokens of each text that goes on."""
    running: list[Beam] = field(default_factory=lambda: [Beam(0.0, ())])
    """Empty when the search is over."""
    ended: list[Beam] = field(default_factory=list)

    def take(self, log_p: Float[Tensor, "running vocab"]) -> list[int]:
        """Make each running text one token longer; return the row of `log_p` that each one kept comes from."""
        self.length += 1
        limits, found = self.limits, self._longer(log_p)
        is_last = self.length == limits.max_tokens
        ends = [is_last or beam.tokens[-1] in limits.stops for _, beam in found]
        goes_on = [one for one, is_end in zip(found, ends, strict=True) if not is_end]
        goes_on = goes_on[: limits.num_beams]
        scale = self.length**limits.length_penalty
        self.ended += [
            Beam(beam.score / scale, beam.tokens)
            for (_, beam), is_end in list(zip(found, ends, strict=True))[: limits.num_beams]
            if is_end
        ]
        self.ended = sorted(self.ended, key=lambda beam: -beam.score)[: limits.num_beams]
        self.running = [beam for _, beam in goes_on]
        if self._is_over():
            self.running, goes_on = [], []
        return [row for row, _ in goes_on]

    def best(self) -> list[int]:
        """Return the tokens of the best text that has ended, without the one that ended it."""
        tokens = self.ended[0].tokens if self.ended else ()
        return list(tokens[:-1] if tokens and tokens[-1] in self.limits.stops else tokens)

    def _longer(self, log_p: Tensor) -> list[tuple[int, Beam]]:
        """Return the likeliest texts that are one token longer, the best first, each with the row it comes from."""
        before = torch.tensor([beam.score for beam in self.running], device=log_p.device)
        scores = (log_p + before[:, None]).flatten()  # [running * vocab]
        # As many as leave enough if all that can end do.
        number = (1 + max(1, len(self.limits.stops))) * self.limits.num_beams
        best = scores.topk(min(number, len(scores)))
        found = []
        for score, place in zip(best.values.tolist(), best.indices.tolist(), strict=True):
            row, token = divmod(place, log_p.shape[1])
            found.append((row, Beam(score, (*self.running[row].tokens, token))))
        return found

    def _is_over(self) -> bool:
        limits = self.limits
        if not self.running or len(self.ended) < limits.num_beams:
            return not self.running
        if limits.early_stopping is True:
            return True
        hopes = limits.early_stopping == "never" and limits.length_penalty > 0
        length = limits.max_tokens if hopes else self.length
        best: float = self.running[0].score / length**limits.length_penalty
        return best <= self.ended[-1].score
