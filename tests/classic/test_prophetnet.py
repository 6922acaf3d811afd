"""ProphetNet: what its class computes in steps and not at once, all streams, and what a config must say."""

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from archwright import hf
from archwright.classic.families.prophetnet import PROPHETNET
from archwright.hf.verifying import verify
from archwright.model.encoder_decoder import EncoderDecoder
from archwright.spec.errors import UserError
from tests.hf.library import batch, build, inputs, logits, own_logits, randomise, save


def unmended(model: nn.Module) -> nn.Module:
    """Undo what `library.mended` does."""
    for module in model.modules():
        vars(module).pop("get_predict_relative_pos_embeddings", None)
    return model


def in_steps(theirs: nn.Module, tokens: Tensor, number: int) -> Tensor:
    """Return the library's logits of a decoder's first tokens, read one by one behind its cache."""
    source, cache, found = theirs.get_encoder()(tokens), None, []  # type: ignore[operator]
    for token in tokens.flip(0)[:, :number].split(1, 1):
        out = theirs(
            encoder_outputs=source, decoder_input_ids=token, past_key_values=cache, use_cache=True
        )
        cache = out.past_key_values
        found.append(out.logits)
    return torch.cat(found, 1)


@torch.no_grad()
def test_the_library_gives_these_logits_in_steps_and_others_at_once(tmp_path: Path) -> None:
    """It is as it comes here: the reason why tests of parity read it mended."""
    theirs = unmended(randomise(build("prophetnet")))
    ours = hf.load(save(theirs, tmp_path)).model
    tokens, _ = batch(theirs)
    everything = torch.ones_like(tokens, dtype=torch.bool)
    own = own_logits(ours, tokens, everything)
    stepped, at_once = in_steps(theirs, tokens, 20), logits(theirs, tokens, everything)
    torch.testing.assert_close(own[:, :20], stepped, atol=2e-5, rtol=1e-5)
    assert (stepped - at_once[:, :20]).abs().max() > 0.1


@torch.no_grad()
@pytest.mark.parametrize("number", [1, 2, 3])
def test_all_streams_are_those_of_the_library(number: int, tmp_path: Path) -> None:
    theirs = randomise(build("prophetnet", ngram=number))
    ours = hf.load(save(theirs, tmp_path)).model
    assert isinstance(ours, EncoderDecoder)
    tokens, real = batch(theirs)
    out = ours(tokens, tokens.flip(0), padding_mask=real)
    expected = theirs(**inputs(theirs, tokens, real))
    torch.testing.assert_close(out.logits, expected.logits, atol=2e-5, rtol=1e-5)
    if number == 1:
        assert out.further_logits is None is expected.logits_ngram
        return
    further = expected.logits_ngram.transpose(0, 1)  # [streams, batch, length, vocab]
    torch.testing.assert_close(out.further_logits, further, atol=2e-5, rtol=1e-5)


def test_it_is_verified_in_steps(tmp_path: Path) -> None:
    certificate = verify(save(unmended(randomise(build("prophetnet"))), tmp_path))
    assert certificate.agrees


@pytest.mark.parametrize("pad_token_id", [0, 3])
def test_positions_stand_behind_padding(pad_token_id: int) -> None:
    config = {**PROPHETNET.defaults, "pad_token_id": pad_token_id}
    spec = PROPHETNET.spec(config)
    # A table of 512 rows: those up to padding, the text, and the place behind it.
    assert spec.context_length == 512 - (pad_token_id + 1) - 1
    assert spec.encoder_model is not None
    assert spec.encoder_model.context_length == spec.context_length + 1
    written = PROPHETNET.config(spec)
    assert (written["pad_token_id"], written["max_position_embeddings"]) == (pad_token_id, 512)


def test_a_config_without_streams_is_refused() -> None:
    with pytest.raises(UserError, match=r"ngram: found 0; expected 1 or more streams"):
        PROPHETNET.spec({**PROPHETNET.defaults, "ngram": 0})
