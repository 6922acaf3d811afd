"""DeBERTa's files: the older names of its head, and what is not here."""

from pathlib import Path

import pytest
import torch

from archwright import hf
from archwright.spec.errors import UserError
from tests.hf.library import batch, build, logits, own_logits, randomise, save


@pytest.mark.parametrize("name", ["deberta", "deberta_v3"])
def test_a_head_with_older_names_is_the_same_head(name: str, tmp_path: Path) -> None:
    theirs = randomise(build(name, legacy=True))
    ours = hf.load(save(theirs, tmp_path / "in"))
    tokens, real = batch(theirs)
    with torch.no_grad():
        expected = logits(theirs, tokens, real)[real]
        torch.testing.assert_close(
            own_logits(ours.model, tokens, real)[real], expected, atol=2e-5, rtol=1e-5
        )
    hf.save(ours.model, tmp_path / "out")
    with torch.no_grad():
        again = hf.load(tmp_path / "out").model
        torch.testing.assert_close(
            own_logits(again, tokens, real)[real], expected, atol=2e-5, rtol=1e-5
        )


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"conv_kernel_size": 3}, "conv_kernel_size"),
        ({"pos_att_type": []}, "pos_att_type"),
        ({"norm_rel_ebd": "batch_norm"}, "norm_rel_ebd"),
        ({"embedding_size": 32}, "embedding_size"),
        ({"attention_head_size": 32}, "attention_head_size"),
    ],
)
def test_what_is_not_here_is_refused_in_one_line(changes: dict[str, object], key: str) -> None:
    config = build("deberta_v3").config.to_dict() | changes
    with pytest.raises(UserError, match=key) as refused:
        hf.FAMILIES["deberta-v2"].spec(config)
    assert len(refused.value.lines) == 1
