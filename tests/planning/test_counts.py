import json
import runpy
from pathlib import Path

import pytest

from archwright import presets
from archwright.planning import counts
from archwright.planning.counts import count
from archwright.spec.read import load, preset_names


@pytest.mark.slow
def test_every_preset_is_counted_without_memory() -> None:
    found = count()
    assert list(found) == preset_names("models")
    assert found["textbook"].parts == by_hand_textbook()
    assert found["textbook"].active == found["textbook"].total == 21_011_456
    # OpenAI, 2025, gpt-oss, table 1: 3.61B and 5.13B, without the embedding
    for name, active in (("gpt-oss-20b", 3.61e9), ("gpt-oss-120b", 5.13e9)):
        counts = found[name]
        assert counts.active - counts.parts["embedding"] == pytest.approx(active, rel=0.002)
    # Mistral AI, 2024, Mixtral of Experts, section 1: 13B active parameters
    assert found["mixtral-8x7b"].active == pytest.approx(12.9e9, rel=0.005)


def by_hand_textbook() -> dict[str, int]:
    """dim 512, 6 layers, hidden 2048, biases everywhere, LayerNorm, tied table of 4096."""
    spec = load("textbook").resolved()
    assert (spec.dim, spec.num_layers, spec.vocab_size, spec.head.tied) == (512, 6, 4096, True)
    attention = 4 * (512 * 512 + 512)
    feedforward = 512 * 2048 + 2048 + 2048 * 512 + 512
    return {
        "embedding": 4096 * 512,
        "norms": 6 * 2 * 2 * 512,
        "attention": 6 * attention,
        "feed-forward": 6 * feedforward,
    }


def test_the_module_writes_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(presets, "__path__", [str(tmp_path)])
    monkeypatch.setattr("archwright.spec.read.preset_names", lambda room: ["modern"])
    runpy.run_path(counts.__file__, run_name="__main__")
    assert json.loads((tmp_path / "parameters.json").read_text())["modern"]["active"] > 1e7
