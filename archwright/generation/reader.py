"""Next-token logits of growing sequences, with a cache."""

from collections.abc import Callable, Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from archwright.generation.engine import Engine
from archwright.model.model import Decoder
from archwright.parts.masks import prefix_size
from archwright.spec.errors import UserError


class Reader:
    """Computes the next-token logits of growing sequences, with a cache.

    A model with unbounded masks restarts at `context_length` from the last half of the tokens, so that it never sees
    more tokens than in training. A model with bounded masks never restarts. A model without a cache reads the last
    `context_length` tokens again for every token. A sequence that grows past a switch length (LongRoPE), at which
    all rotation angles change, is read again from its start.

    Args:
        sources: Encoder token ids of each sequence, for a model with an encoder.

    Raises:
        UserError: a source without an encoder, an encoder without a source, or a model that sees later tokens.
    """

    def __init__(self, model: Decoder, sources: Sequence[Tensor] | None = None) -> None:
        check_readable(model, has_source=sources is not None)
        self._sources = None if sources is None else _side_by_side(sources)
        self.model, self.context = model, model.spec.context_length
        self._text = torch.empty(1 if sources is None else len(sources), 0, dtype=torch.long)
        self._cache = model.new_cache() if model.can_cache else None
        self._switches = model.switch_lengths
        self._engine = Engine(model) if Engine.accepts(model) else None

    def read(self, tokens: Int[Tensor, " length"]) -> Float[Tensor, " vocab"]:
        """Return the logits after the next tokens of a single sequence."""
        return self.read_rows(tokens[None])[0]

    def read_rows(self, tokens: Int[Tensor, "rows length"]) -> Float[Tensor, "rows vocab"]:
        """Return the logits after the next tokens of each sequence."""
        tokens = self._with_context(tokens)
        cache, one = self._cache, tokens.shape[1] == 1
        plain = not torch.is_grad_enabled() and not torch.is_autocast_enabled(tokens.device.type)
        if self._engine is not None and cache is not None and cache.num_read and one and plain:
            return self._engine.logits(tokens, cache)
        logits: Tensor = self.model.head(self._hidden(tokens)[:, -1])
        return logits

    def read_all(self, tokens: Int[Tensor, " length"]) -> Float[Tensor, "length vocab"]:
        """Return the logits after each of the next tokens of a single sequence, at most `room`."""
        assert len(tokens) <= self.room
        logits: Tensor = self.model.head(self._hidden(self._with_context(tokens[None]))[0])
        return logits

    @property
    def room(self) -> int:
        """Number of tokens that can be read and forgotten again; 0 if states keep no single tokens."""
        cache = self._cache
        return self.context - cache.num_read if cache is not None and cache.can_forget else 0

    def forget(self, number: int) -> None:
        """Undo the reading of the last tokens, which `room` allowed."""
        assert self._cache is not None
        self._cache.forget(number)
        self._text = self._text[:, : self._text.shape[1] - number]

    def _hidden(self, tokens: Tensor) -> Tensor:
        """Return the input of the head for each token, [rows, length, dim]."""
        fresh = self._cache is None or not self._cache.num_read
        if self._sources is not None:
            source, real = self._sources if fresh else (None, None)
            read: Callable[..., Tensor] = self.model.hidden  # an encoder reads the source first
            return read(source, tokens, padding_mask=real, cache=self._cache)
        prefix = self._prefix(tokens) if self._cache is not None and fresh else None
        return self.model.hidden(tokens, prefix_lengths=prefix, cache=self._cache)

    def reorder(self, rows: Int[Tensor, " new_rows"]) -> None:
        """Reorder the sequences by index; indices may repeat or be missing."""
        self._text = self._text[rows.to(self._text.device)]
        if self._sources is not None:
            tokens, real = self._sources
            self._sources = tokens[rows], None if real is None else real[rows]
        if self._cache is not None:
            self._cache.reorder(rows)

    def _with_context(self, tokens: Tensor) -> Tensor:
        """Return the tokens to read: the new ones, after earlier ones if reading restarts."""
        cache, num_new = self._cache, tokens.shape[1]
        endless = cache is not None and self.model.can_generate_indefinitely
        if cache is not None and endless and cache.num_read > max(self._switches, default=-1):
            return tokens  # earlier tokens are never needed again
        # Without sources, the first tokens say how many sequences there are.
        text = self._text if self._text.numel() else tokens[:, :0]
        self._text = torch.cat((text, tokens), 1)
        if not endless:
            self._text = self._text[:, -self.context :]
        if cache is None:
            return self._text
        if not endless and cache.num_read + num_new > self.context:
            if cache.num_read:
                self._text = self._text[:, -max(1, self.context // 2) :]
                self._cache = self.model.new_cache()
            return self._text  # if the prompt is too long, its end
        if any(0 < cache.num_read <= s < cache.num_read + num_new for s in self._switches):
            self._cache = self.model.new_cache()
            return self._text
        return tokens

    def _prefix(self, tokens: Tensor) -> Tensor | None:
        """Return prefix lengths [rows] if a prompt is shorter than the masks' prefix."""
        rows, length = tokens.shape
        sizes = [size for mask in self.model.masks.values() if (size := prefix_size(mask))]
        if length >= max(sizes, default=0):
            return None
        return torch.full((rows,), min(length, *sizes))


def check_readable(model: Decoder, *, has_source: bool) -> None:
    """Refuse a missing or unexpected source, or a model that sees later tokens."""
    if has_source == model.spec.encoder.is_none:
        raise UserError(
            "source: found none; expected a text for the model's encoder"
            if not has_source
            else "source: found one; the model has no encoder: give a prompt instead"
        )
    for pattern in model.masks.values():
        if pattern.lookahead != 0 and not prefix_size(pattern):
            raise UserError(
                f"model: found a mask with which tokens see later ones ({type(pattern).__name__}), as in an "
                "encoder; expected a decoder or an encoder-decoder"
            )


def _side_by_side(sources: Sequence[Tensor]) -> tuple[Tensor, Tensor | None]:
    """Return padded sources [rows, longest] and their padding mask, None without padding."""
    rows = pad_sequence([*sources], batch_first=True)
    lengths = torch.tensor([len(source) for source in sources], device=rows.device)
    real = torch.arange(rows.shape[1], device=rows.device) < lengths[:, None]
    return rows, None if bool(real.all()) else real
