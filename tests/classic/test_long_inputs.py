"""Checkpoints of models for long inputs, in texts longer than their windows: what they have beside what all have."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from archwright import hf
from archwright.hf.exporting import exportable
from archwright.hf.families import FAMILIES
from archwright.model import build as build_model
from archwright.model.encoder_decoder import EncoderDecoder
from archwright.spec.errors import UserError
from tests.hf.library import batch, build, inputs, logits, own_logits, randomise, reopen, save


@pytest.fixture(autouse=True)
def _float64_longt5(monkeypatch: pytest.MonkeyPatch) -> None:
    """LongT5's norm and softmax are in float32, whatever they get, and scores without a scale make that coarse."""
    from transformers.models.longt5 import modeling_longt5

    def forward(norm: nn.Module, x: Tensor) -> Tensor:
        return F.rms_norm(x, x.shape[-1:], norm.weight, norm.variance_epsilon)

    monkeypatch.setattr(modeling_longt5.LongT5LayerNorm, "forward", forward)
    to_float32 = Tensor.float
    monkeypatch.setattr(Tensor, "float", lambda x: x if x.dtype is torch.float64 else to_float32(x))


def apart(theirs: nn.Module, ours: hf.Loaded) -> float:
    """Return the largest difference of two logits, in float64 but for what the library has in float32."""
    tokens, real = batch(theirs)
    exact = copy.deepcopy(theirs).double()
    with torch.no_grad():
        found = own_logits(ours.model.double(), tokens, real) - logits(exact, tokens, real)
    ours.model.float()
    return float(found[real].abs().max())


class TestGlobalTokens:
    """Of Longformer's models, which are told with every text which tokens see all."""

    @pytest.mark.parametrize("number", [1, 5])
    @pytest.mark.parametrize("name", ["longformer", "led"])
    def test_their_number_is_kept_in_a_key_of_its_own(
        self, name: str, number: int, tmp_path: Path
    ) -> None:
        theirs = randomise(build(name, num_global_tokens=number))
        ours = hf.load(save(theirs, tmp_path / "in"))
        assert apart(theirs, ours) < 2e-5
        hf.save(ours.model, tmp_path / "out")
        back, wrong = reopen(tmp_path / "out", theirs)
        assert not wrong
        assert apart(back, ours) < 2e-5

    @pytest.mark.parametrize("name", ["longformer", "led"])
    def test_without_them_logits_are_others(self, name: str, tmp_path: Path) -> None:
        theirs = randomise(build(name))
        ours = hf.load(save(theirs, tmp_path)).model
        tokens, real = batch(theirs)
        told = inputs(theirs, tokens, real)
        with torch.no_grad():
            expected = theirs(**{**told, "global_attention_mask": None}).logits
            assert float((own_logits(ours, tokens, real) - expected)[real].abs().max()) > 0.1

    def test_one_window_stands_for_all_layers(self) -> None:
        spec = FAMILIES["led"].spec({"attention_window": 64, "encoder_layers": 3})
        same = FAMILIES["led"].spec({"attention_window": [64] * 3, "encoder_layers": 3})
        assert spec.hash() == same.hash()
        assert FAMILIES["led"].config(spec)["attention_window"] == [64] * 3

    def test_layers_of_an_encoder_have_windows_of_their_own(self, tmp_path: Path) -> None:
        theirs = randomise(build("led", attention_window=[4, 16]))
        ours = hf.load(save(theirs, tmp_path))
        assert isinstance(ours.model, EncoderDecoder)
        assert apart(theirs, ours) < 2e-5
        assert FAMILIES["led"].config(ours.spec)["attention_window"] == [4, 16]

    @pytest.mark.parametrize(
        ("window", "said"),
        [
            (7, "attention_window: found 7; expected an even number from 2 on"),
            ([8, 0], "attention_window: found 0; expected an even number"),
            ([8], "attention_window: found 1 windows; expected 2, one for each layer"),
            ("wide", "attention_window: found 'wide'; expected an even number"),
        ],
    )
    @pytest.mark.parametrize(
        ("name", "layers"), [("longformer", "num_hidden_layers"), ("led", "encoder_layers")]
    )
    def test_windows_that_no_layer_has_are_refused(
        self, name: str, layers: str, window: Any, said: str
    ) -> None:
        with pytest.raises(UserError, match=said):
            FAMILIES[name].spec({"attention_window": window, layers: 2})


class TestBigBird:
    """Blocks, of which the last one of a text counts, and random ones."""

    def test_a_text_beside_padding_is_that_text_alone(self, tmp_path: Path) -> None:
        """In the library's batches, padding is a part of the text."""
        theirs = randomise(build("big_bird_sparse"))
        ours = hf.load(save(theirs, tmp_path)).model
        tokens, real = batch(theirs)[0], torch.ones(2, 48, dtype=torch.bool)
        real[1, 37:] = False
        with torch.no_grad():
            found = ours(tokens, padding_mask=real).logits[1, :37]
            expected = theirs(tokens[1:, :37], attention_mask=torch.ones(1, 37)).logits[0]
        torch.testing.assert_close(found, expected, atol=2e-5, rtol=1e-5)

    @pytest.mark.parametrize(("random", "length"), [(1, 48), (2, 63), (3, 128)])
    def test_blocks_are_drawn_as_in_the_library_s_training(
        self, random: int, length: int, tmp_path: Path
    ) -> None:
        still = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
        theirs = randomise(build("big_bird_sparse", num_random_blocks=random, **still))
        state = hf.load(save(theirs, tmp_path)).model.state_dict()
        spec = hf.load(tmp_path).spec.override("attention.mask.random=drawn")
        ours = build_model(spec)
        ours.load_state_dict(state)
        tokens = torch.randint(4, 128, (2, length), generator=torch.Generator().manual_seed(2))
        with torch.no_grad():
            expected = theirs.train()(tokens, attention_mask=torch.ones_like(tokens)).logits
            torch.testing.assert_close(ours(tokens).logits, expected, atol=2e-5, rtol=1e-5)
        with pytest.raises(UserError, match="random"):
            exportable(spec, "big_bird")


def test_longt5_without_a_scale_of_logits_is_tied_all_the_same(tmp_path: Path) -> None:
    """As published: the key that denies it says of the class that logits are not scaled."""
    kind = {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}
    theirs = randomise(build("longt5", **kind))
    folder = save(theirs, tmp_path / "in")
    ours = hf.load(folder)
    assert (ours.spec.head.tied, ours.spec.head.logit_scale) == (True, 1.0)
    assert apart(theirs, ours) < 2e-5
    hf.save(ours.model, tmp_path / "out")
    back, wrong = reopen(tmp_path / "out", theirs)
    assert not wrong
    assert apart(back, ours) < 2e-5


def test_longt5_keeps_a_head_of_its_own_where_the_file_has_one(tmp_path: Path) -> None:
    """As it was trained, whatever the config says; so it is written."""
    theirs = build("longt5", feed_forward_proj="gated-gelu", tie_word_embeddings=False)
    theirs.lm_head.weight = torch.nn.Parameter(torch.empty_like(theirs.lm_head.weight))
    folder = save(randomise(theirs), tmp_path / "in")
    ours = hf.load(folder)
    assert (ours.spec.head.tied, ours.spec.head.logit_scale) == (False, 1.0)
    assert apart(theirs, ours) < 2e-5
    hf.save(ours.model, tmp_path / "out")
    back, wrong = reopen(tmp_path / "out", theirs)
    assert not wrong
    assert apart(back, ours) < 2e-5
    assert torch.equal(hf.load(tmp_path / "out").model.head.weight, ours.model.head.weight)


@pytest.mark.parametrize(
    ("name", "config", "said"),
    [
        ("longt5", {"encoder_attention_type": "global"}, "encoder_attention_type: found 'global'"),
        ("big_bird", {"attention_type": "sparse"}, "attention_type: found 'sparse'"),
        ("big_bird", {"is_decoder": True}, "is_decoder: found True"),
        ("bigbird_pegasus", {"attention_type": "full"}, "attention_type: found 'full'"),
    ],
)
def test_what_is_not_here_is_refused_by_its_name(
    name: str, config: dict[str, Any], said: str
) -> None:
    with pytest.raises(UserError, match=said):
        FAMILIES[name].spec(config)
