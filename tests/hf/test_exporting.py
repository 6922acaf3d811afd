"""Choices that no published layout holds are named in a line."""

from pathlib import Path

import pytest
import torch

from archwright import hf
from archwright.hf.exporting import as_computed, exportable
from archwright.model import build
from archwright.spec.errors import UserError
from archwright.spec.read import load


@pytest.mark.parametrize(
    ("words", "blocks"),
    [
        (["residual.embedding_skip=true"], "residual.embedding_skip = true (has false)"),
        (
            ["attention.value_embedding.kind=scaled"],
            'attention.value_embedding.kind = "scaled" (has "none")',
        ),
        (["norm.kind=dyt"], 'norm.kind = "dyt" (has "rms")'),
        (["attention.qk_norm.kind=dyt"], 'attention.qk_norm.kind = "dyt" (has "none")'),
    ],
)
def test_what_no_family_holds(words: list[str], blocks: str) -> None:
    with pytest.raises(UserError) as error:
        exportable(load("modern").override(*words))
    (line,) = error.value.lines
    assert "no published family has these choices together" in line
    assert line.endswith(f"which cannot have {blocks}")


MUP = ("dim=64", "num_layers=2", "vocab_size=128", "init.kind=mup", "init.base_dim=16")


@pytest.mark.parametrize("scale", ["sqrt", "inverse"])
def test_the_divisor_that_mup_brings_goes_with_its_weights(scale: str, tmp_path: Path) -> None:
    """A config says nothing of initial values, and logits must not be four times as large elsewhere."""
    transformers = pytest.importorskip("transformers")
    model = build(load("modern").override(*MUP, f"attention.scale.kind={scale}")).eval()
    assert hf.save(model, tmp_path / "hf") == "granite"
    tokens = torch.arange(24)[None]
    with torch.no_grad():
        expected = model(tokens).logits
        theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "hf").eval()
        torch.testing.assert_close(theirs(tokens).logits, expected, rtol=1e-4, atol=1e-5)
        ours = hf.load(tmp_path / "hf").model.eval()
        torch.testing.assert_close(ours(tokens).logits, expected, rtol=1e-4, atol=1e-5)


def test_a_family_without_a_divisor_of_logits_cannot_hold_what_mup_computes() -> None:
    with pytest.raises(UserError, match=r"llama .* cannot have head\.logit_divisor = 4\.0"):
        exportable(load("modern").override(*MUP), "llama")
    at_base = load("modern").override(*MUP).override("init.base_dim=64")
    assert exportable(at_base, "llama").model_type == "llama"


def test_what_is_computed_is_said_once() -> None:
    spec = load("modern").override(*MUP, "head.logit_divisor=2").resolved()
    once = as_computed(spec)
    assert (once.head.logit_divisor, once.attention.scale.kind) == (8.0, "fixed")
    assert as_computed(once) == once
    plain = load("modern").resolved()
    assert as_computed(plain) is plain
