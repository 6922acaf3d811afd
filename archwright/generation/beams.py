"""Beam search."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from archwright.generation.reader import Reader
from archwright.generation.sampling import check_settings
from archwright.model.model import Decoder

EarlyStopping = bool | Literal["never"]


class Beam(NamedTuple):
    """A running or finished hypothesis."""

    score: float
    """Sum of log p over the tokens; of a finished beam, divided by length^length_penalty."""
    tokens: tuple[int, ...]


def beam_search(
    model: Decoder,
    prompt: Int[Tensor, " length"],
    *,
    source: Int[Tensor, " source_length"] | None = None,
    **settings: Any,
) -> list[int]:
    """Return the best sequence for one prompt and at most one source; see `beam_search_many`."""
    sources = None if source is None else [source]
    (tokens,) = beam_search_many(model, prompt, sources, **settings)
    return tokens


@torch.inference_mode()
def beam_search_many(
    model: Decoder,
    prompt: Int[Tensor, " length"],
    sources: Sequence[Int[Tensor, " _"]] | None,
    *,
    max_new_tokens: int,
    num_beams: int,
    length_penalty: float = 1.0,
    early_stopping: EarlyStopping = False,
    stop: int | Collection[int] = (),
    num_tokens: int | None = None,
) -> list[list[int]]:
    """Return the tokens with the largest score found for each source.

    score = (sum of log p) / length^length_penalty. Each step extends all running beams by one token and continues
    with the `num_beams` most likely unfinished ones. A stop token finishes a beam and counts in its length.

    Args:
        prompt: Token ids, at least one; the same for all sources.
        sources: Encoder token ids, searched as one batch; None for a model without an encoder.
        num_beams: Number of beams; 1 is greedy decoding.
        length_penalty: 0 compares sums of log p, 1 compares means; larger values favour longer sequences.
        early_stopping: When to stop after `num_beams` beams have finished. True: immediately. False: when no running
            beam scores better than the worst of them at its current length. "never": when none would even at
            `max_new_tokens`.
        stop: Token id or ids that finish a beam; not part of the result.
        num_tokens: Vocabulary size without padding rows.

    Raises:
        UserError: an empty prompt, a missing or unexpected source, or settings out of range.

    Source: Lowerre (1976); length penalty: Wu et al. (2016), section 7, without its constant.
    """
    numbers = {"num_beams": num_beams, "length_penalty": length_penalty}
    check_settings(model, prompt, max_new_tokens=max_new_tokens, **numbers)
    stops = frozenset({stop} if isinstance(stop, int) else stop)
    limits = Limits(max_new_tokens, num_beams, length_penalty, early_stopping, stops)
    model.eval()
    reader = Reader(model, sources)
    searches = [Search(limits) for _ in (sources if sources is not None else [None])]
    read = prompt.expand(len(searches), -1)  # [sources, length]
    for _ in range(max_new_tokens):
        log_p = reader.read_rows(read)[:, :num_tokens].float().log_softmax(-1)
        rows, first = list[int](), 0
        active = [search for search in searches if search.running]
        for search in active:
            here = log_p[first : first + len(search.running)]
            rows += [first + row for row in search.take(here)]
            first += len(here)
        if not rows:
            break
        reader.reorder(torch.tensor(rows, device=prompt.device))
        last = [[beam.tokens[-1]] for search in active for beam in search.running]
        read = prompt.new_tensor(last)
    return [search.best() for search in searches]


@dataclass(frozen=True)
class Limits:
    """Settings of a search; see `beam_search_many`."""

    max_new_tokens: int
    num_beams: int
    length_penalty: float
    early_stopping: EarlyStopping
    stops: frozenset[int]


@dataclass
class Search:
    """The search for one sequence."""

    limits: Limits
    length: int = 0
    """Number of tokens of each running beam."""
    running: list[Beam] = field(default_factory=lambda: [Beam(0.0, ())])
    """Unfinished beams, best first; empty when the search is over."""
    ended: list[Beam] = field(default_factory=list)
    """Finished beams, best first."""

    def take(self, log_p: Float[Tensor, "running vocab"]) -> list[int]:
        """Extend the running beams by one token; return each new beam's row of `log_p`."""
        self.length += 1
        limits, candidates = self.limits, self._longer(log_p)
        is_last = self.length == limits.max_new_tokens
        ends = [is_last or beam.tokens[-1] in limits.stops for _, beam in candidates]
        running = [pair for pair, is_end in zip(candidates, ends, strict=True) if not is_end]
        running = running[: limits.num_beams]
        scale = self.length**limits.length_penalty
        self.ended += [
            Beam(beam.score / scale, beam.tokens)
            for (_, beam), is_end in list(zip(candidates, ends, strict=True))[: limits.num_beams]
            if is_end
        ]
        self.ended = sorted(self.ended, key=lambda beam: -beam.score)[: limits.num_beams]
        self.running = [beam for _, beam in running]
        if self._is_over():
            self.running, running = [], []
        return [row for row, _ in running]

    def best(self) -> list[int]:
        """Return the tokens of the best finished beam, without its stop token."""
        tokens = self.ended[0].tokens if self.ended else ()
        return list(tokens[:-1] if tokens and tokens[-1] in self.limits.stops else tokens)

    def _longer(self, log_p: Tensor) -> list[tuple[int, Beam]]:
        """Return the most likely extensions as (row, beam), best first."""
        before = torch.tensor([beam.score for beam in self.running], device=log_p.device)
        scores = (log_p + before[:, None]).flatten()  # [running * vocab]
        # Leaves `num_beams` unfinished candidates even if each beam's stop tokens are the most likely.
        number = (1 + max(1, len(self.limits.stops))) * self.limits.num_beams
        best = scores.topk(min(number, len(scores)))
        candidates = []
        for score, index in zip(best.values.tolist(), best.indices.tolist(), strict=True):
            row, token = divmod(index, log_p.shape[1])
            candidates.append((row, Beam(score, (*self.running[row].tokens, token))))
        return candidates

    def _is_over(self) -> bool:
        limits = self.limits
        if not self.running or len(self.ended) < limits.num_beams:
            return not self.running
        if limits.early_stopping is True:
            return True
        hopes = limits.early_stopping == "never" and limits.length_penalty > 0
        length = limits.max_new_tokens if hopes else self.length
        best: float = self.running[0].score / length**limits.length_penalty
        return best <= self.ended[-1].score
