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
    all rotation angles change, is read again from its start. Sequences of unequal length are padded on the left; the
    cache is filled again for all of them when one restarts.

    Args:
        sources: Encoder token ids of each sequence, for a model with an encoder.

    Raises:
        UserError: a source without an encoder, an encoder without a source, or a model that sees later tokens.
    """

    def __init__(self, model: Decoder, sources: Sequence[Tensor] | None = None) -> None:
        check_readable(model, has_source=sources is not None)
        self._sources = None if sources is None else _side_by_side(sources)
        self.model, self.context = model, model.spec.context_length
        self._text, self._lengths = torch.empty(0, 0, dtype=torch.long), list[int]()
        self._cache = model.new_cache() if model.can_cache else None
        self._switches = model.switch_lengths
        self._engine = Engine(model) if Engine.accepts(model) else None

    def read(self, tokens: Int[Tensor, " length"]) -> Float[Tensor, " vocab"]:
        """Return the logits after the next tokens of a single sequence."""
        return self.read_rows(tokens[None])[0]

    def read_prompts(self, prompts: Sequence[Tensor]) -> Float[Tensor, "rows vocab"]:
        """Return the logits after the first tokens of each sequence, which may be of unequal length."""
        tokens = pad_sequence([*prompts], batch_first=True, padding_side="left")  # [rows, longest]
        return self._logits(*self._to_read(tokens, [*map(len, prompts)]))

    def read_rows(self, tokens: Int[Tensor, "rows length"]) -> Float[Tensor, "rows vocab"]:
        """Return the logits after the next tokens of each sequence."""
        return self._logits(*self._to_read(tokens))

    def _logits(self, tokens: Tensor, real: Tensor | None) -> Tensor:
        cache, one = self._cache, tokens.shape[1] == 1
        plain = not torch.is_grad_enabled() and not torch.is_autocast_enabled(tokens.device.type)
        if self._engine is not None and cache is not None and cache.num_read and one and plain:
            return self._engine.logits(tokens, cache)
        logits: Tensor = self.model.head(self._hidden(tokens, real)[:, -1])
        return logits

    def read_all(self, tokens: Int[Tensor, " length"]) -> Float[Tensor, "length vocab"]:
        """Return the logits after each of the next tokens of a single sequence, at most `room`."""
        assert len(tokens) <= self.room
        logits: Tensor = self.model.head(self._hidden(*self._to_read(tokens[None]))[0])
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
        self._lengths = [length - number for length in self._lengths]

    def _hidden(self, tokens: Tensor, padding_mask: Tensor | None) -> Tensor:
        """Return the input of the head for each token, [rows, length, dim]."""
        fresh = self._cache is None or not self._cache.num_read
        if self._sources is not None:
            source, real = self._sources if fresh else (None, None)
            read: Callable[..., Tensor] = self.model.hidden  # an encoder reads the source first
            masks = {"padding_mask": real, "decoder_padding_mask": padding_mask}
            return read(source, tokens, **masks, cache=self._cache)
        prefix = self._prefix(tokens) if self._cache is not None and fresh else None
        return self.model.hidden(
            tokens, padding_mask=padding_mask, prefix_lengths=prefix, cache=self._cache
        )

    def reorder(self, rows: Int[Tensor, " new_rows"]) -> None:
        """Reorder the sequences by index; indices may repeat or be missing."""
        if self._text.numel():
            self._text = self._text[rows]
        self._lengths = [self._lengths[row] for row in rows.tolist()]
        if self._sources is not None:
            tokens, real = self._sources
            self._sources = tokens[rows], None if real is None else real[rows]
        if self._cache is not None:
            self._cache.reorder(rows)

    def _to_read(
        self, tokens: Tensor, lengths: list[int] | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """Return the tokens to read and their padding mask: the new ones, after earlier ones if reading restarts.

        Args:
            lengths: number of tokens in each of the first sequences. Default: no padding.
        """
        cache, rows = self._cache, len(tokens)
        before = self._lengths or [0] * rows
        self._lengths = lengths or [length + tokens.shape[1] for length in before]
        endless = cache is not None and self.model.can_generate_indefinitely
        if endless and min(before) > max(self._switches, default=-1):
            return tokens, self._padding_mask(tokens)  # earlier tokens are never needed again
        self._text = torch.cat((self._text, tokens), 1) if any(before) else tokens
        if not endless and (cache is None or max(self._lengths) > self.context):
            # The end of a prompt that is too long, and of a longer text its last half.
            is_prompt = cache is None or not cache.num_read
            most = self.context if is_prompt else max(1, self.context // 2)
            self._lengths = [n if n <= self.context else most for n in self._lengths]
        elif not any(
            0 < old <= switch < new
            for old, new in zip(before, self._lengths, strict=True)
            for switch in self._switches
        ):
            return tokens, self._padding_mask(tokens)
        if cache is not None and cache.num_read:
            self._cache = self.model.new_cache()
        self._text = self._text[:, -max(self._lengths) :]
        return self._text, self._padding_mask(self._text)

    def _padding_mask(self, tokens: Tensor) -> Tensor | None:
        """Return the padding mask of tokens that a cache reads first; None without padding."""
        if (self._cache is not None and self._cache.num_read) or len({*self._lengths}) == 1:
            return None
        length = tokens.shape[1]
        lengths = torch.tensor(self._lengths, device=tokens.device)[:, None]
        return torch.arange(length, device=tokens.device) >= length - lengths

    def _prefix(self, tokens: Tensor) -> Tensor | None:
        """Return prefix lengths [rows] if a prompt is shorter than the masks' prefix."""
        rows, length = tokens.shape
        sizes = [size for mask in self.model.masks.values() if (size := prefix_size(mask))]
        if length >= max(sizes, default=0):
            return None
        return torch.full((rows,), min(length, *sizes))


def can_pad(model: Decoder) -> bool:
    """True if sequences of unequal length can be read side by side: no mask has a prefix."""
    return not any(map(prefix_size, model.masks.values()))


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
