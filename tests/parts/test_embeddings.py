import math

import numpy as np
import pytest
import torch

from archwright.parts.embeddings import Head
from archwright.parts.linear import Embedding
from archwright.spec.embeddings import Head as HeadSpec


def head(softcap: float | str = "none", **given: object) -> Head:
    made = Head(HeadSpec.model_validate({"softcap": softcap}), 4, 6, **given)
    torch.manual_seed(0)
    if not given:
        torch.nn.init.normal_(made.weight)
    return made.double()


@pytest.mark.parametrize("softcap", ["none", 2.0, 30])
def test_formula(softcap: float | str) -> None:
    part = head(softcap)
    x = torch.randn(2, 3, 4, dtype=torch.float64) * 5
    found = part(x)
    for b, t, v in np.ndindex(2, 3, 6):
        logit = math.fsum(
            w * y for w, y in zip(part.weight[v].tolist(), x[b, t].tolist(), strict=True)
        )
        expected = logit if softcap == "none" else softcap * math.tanh(logit / softcap)
        assert found[b, t, v].item() == pytest.approx(expected, rel=1e-12)
    if softcap != "none":
        assert found.abs().max() <= softcap


def test_a_tied_head_is_the_embedding() -> None:
    embedding = Embedding(6, 4).double()
    torch.nn.init.normal_(embedding.weight)
    part = head(table=embedding.weight)
    assert part.weight is embedding.weight
    x = torch.randn(2, 4, dtype=torch.float64)
    torch.testing.assert_close(part(x), x @ embedding.weight.T)
