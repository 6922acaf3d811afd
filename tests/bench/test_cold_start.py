from pathlib import Path

import pytest

from archwright.model import build
from archwright.spec.read import load_run
from bench.cold_start import STAGES, Start, row, start, words_of
from bench.contenders import SHAPES

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(("name", "millions"), [("0.9M", 0.9), ("3.4M", 3.4), ("29.9M", 29.9)])
def test_what_is_typed_is_the_shape(name: str, millions: float) -> None:
    model, *values = words_of(SHAPES[name])
    run = load_run(model).override(*values)
    vocab_size = run.data.tokenizer.vocab_size
    counted = build(run.model, device="meta", vocab_size=vocab_size).num_parameters()
    assert counted / 1e6 == pytest.approx(millions, abs=0.06)


def test_a_start_is_its_stages(tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("Something to train on, again and again.\n" * 100, "utf-8")
    words = ["modern", f"data.text={text}", "data.tokenizer.kind=bytes", "model.dim=16"]
    words += ["model.num_layers=1", "model.context_length=16", "batch_size=1", "budget=50steps"]
    found = start(words, tmp_path / "run", tmp_path / "cache")
    assert len(found.stages) == len(STAGES)
    assert all(seconds > 0 for seconds in found.stages)


def test_a_command_that_fails_is_told(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match=r"without a step: (.*\n)?archwright: .*nowhere"):
        start(["modern", "data.text=nowhere"], tmp_path / "run", tmp_path / "cache")


def test_a_row_has_medians_and_the_range() -> None:
    starts = [Start((1.0, 2.0, 3.0, t)) for t in (0.5, 0.6, 2.0)]
    assert row("demo", "new", starts) == (
        "| demo | new | 1.00 | 2.00 | 3.00 | 0.60 | 6.60 (6.50 to 8.00) |"
    )
