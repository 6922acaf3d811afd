"""Beam search: the likeliest texts that a model goes on with, several of them followed at a time."""

from collections.abc import Collection
from typing import NamedTuple

import torch
from jaxtyping import Int
from torch import Tensor

from archwright.generation.sampling import Reader
from archwright.model.language_model import LanguageModel
from archwright.spec.errors import UserError

MOST_BEAMS = 1024


class Beam(NamedTuple):
    """A text that was begun, or that has ended."""

    score: float
    """Sum of log p of its tokens; of one that has ended, divided by their number to the power of the length penalty."""
    tokens: tuple[int, ...]


@torch.inference_mode()
def beam_search(
    model: LanguageModel,
    prompt: Int[Tensor, " length"],
    *,
    max_tokens: int,
    num_beams: int,
    length_penalty: float = 1.0,
    source: Int[Tensor, " source_length"] | None = None,
    stop: int | Collection[int] = (),
    num_tokens: int | None = None,
) -> list[int]:
    """Return the tokens of the text with the largest (sum of log p) / length^length_penalty that is found.

    At each step the `num_beams` likeliest of all texts that are one token longer are kept. A text that ends among
    them is set aside; its length counts the token that ends it. The search is over when `num_beams` have ended and no
    text that goes on is better now than the worst of these. (Lowerre, 1976; with lengths as powers, Wu et al., 2016,
    section 7, without its constant.)

    Args:
        prompt: token ids to go on from, at least one.
        num_beams: how many texts are followed; 1 takes the likeliest token, always.
        length_penalty: 0 compares sums, 1 means; more favours longer texts.
        source: token ids that the encoder reads, of a model that has one.
        stop: end before this token, or any of these.
        num_tokens: tokens that exist; a vocabulary rounded up has rows without a token.

    Raises:
        UserError: an empty prompt, a source that the model does not take or lacks, or settings out of their limits,
            one line each.
    """
    _check(prompt, max_tokens, num_beams, length_penalty)
    stops = {stop} if isinstance(stop, int) else {*stop}
    model.eval()
    reader = Reader(model, source)
    running, ended = [Beam(0.0, ())], list[Beam]()
    read = prompt[None]
    for length in range(1, max_tokens + 1):
        logits = reader.read_rows(read)[:, :num_tokens]
        found = _continued(running, logits, (1 + max(1, len(stops))) * num_beams)
        ends = [beam.tokens[-1] in stops or length == max_tokens for _, beam in found]
        goes_on = [one for one, is_end in zip(found, ends, strict=True) if not is_end][:num_beams]
        ended += [
            Beam(beam.score / length**length_penalty, beam.tokens)
            for (_, beam), is_end in list(zip(found, ends, strict=True))[:num_beams]
            if is_end
        ]
        ended = sorted(ended, key=lambda beam: -beam.score)[:num_beams]
        if not goes_on or _is_over(ended, num_beams, goes_on[0][1].score / length**length_penalty):
            break
        rows, running = torch.tensor([row for row, _ in goes_on]), [beam for _, beam in goes_on]
        reader.reorder(rows.to(prompt.device))
        read = prompt.new_tensor([[beam.tokens[-1]] for beam in running])
    best = ended[0].tokens if ended else ()
    return list(best[:-1] if best and best[-1] in stops else best)


def _continued(running: list[Beam], logits: Tensor, number: int) -> list[tuple[int, Beam]]:
    """Return the likeliest texts that are one token longer, the best first, each with the row that it comes from.

    Shape: logits [rows, vocab].
    """
    before = torch.tensor([beam.score for beam in running], device=logits.device)
    scores = logits.float().log_softmax(-1) + before[:, None]
    best = scores.flatten().topk(min(number, scores.numel()))  # [rows * vocab]
    places = zip(best.values.tolist(), best.indices.tolist(), strict=True)
    found = []
    for score, place in places:
        row, token = divmod(place, logits.shape[1])
        found.append((row, Beam(score, (*running[row].tokens, token))))
    return found


def _is_over(ended: list[Beam], num_beams: int, best_running: float) -> bool:
    return len(ended) == num_beams and best_running <= ended[-1].score


def _check(prompt: Tensor, max_tokens: int, num_beams: int, length_penalty: float) -> None:
    """Refuse settings out of their limits; comparisons are such that nan is one of them."""
    allowed = [
        (len(prompt) > 0, "prompt: found no token; expected one at least to go on from"),
        (max_tokens >= 0, f"max_tokens: found {max_tokens}; expected 0 or more"),
        (
            1 <= num_beams <= MOST_BEAMS,
            f"num_beams: found {num_beams}; expected 1 to {MOST_BEAMS:,}",
        ),
        (
            -10 <= length_penalty <= 10,
            f"length_penalty: found {length_penalty}; expected -10 to 10",
        ),
    ]
    lines = [line for legal, line in allowed if not legal]
    if lines:
        raise UserError(*lines)
