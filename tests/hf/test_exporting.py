"""Choices that no published layout holds are named in a line."""

import pytest

from archwright.hf.exporting import exportable
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
