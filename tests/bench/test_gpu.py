import re
from pathlib import Path

import pytest
import torch

from bench import gpu


def run(monkeypatch: pytest.MonkeyPatch, *words: str) -> None:
    monkeypatch.setattr("sys.argv", ["gpu.py", *words])
    gpu.main()


@pytest.mark.skipif(torch.cuda.is_available(), reason="a CUDA device is available")
def test_without_a_gpu_it_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run(monkeypatch)
    assert capsys.readouterr().out.startswith("no CUDA device available")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--precision", "fp8"], 'machine.precision: found "fp8", which needs a GPU'),
        (["--fused"], 'machine.fused: found "liger"; expected "none", as it needs a GPU'),
    ],
)
def test_what_needs_a_gpu_says_so(
    words: list[str], said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run(monkeypatch, "--device", "cpu", "--shapes", "tiny", *words)
    assert re.fullmatch(re.escape(said) + ".*\n", capsys.readouterr().out)


@pytest.mark.parametrize("fused", ["none", "liger"])
def test_both_of_our_steps_run(fused: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without liger, only what it would compute is left out."""
    monkeypatch.setattr(gpu, "fuse", lambda model, machine: done.append(machine.loss))
    monkeypatch.setattr(gpu, "WHOLE_LOGITS", 1000)
    monkeypatch.setattr("sys.argv", ["gpu.py"])
    done: list[str] = []
    step = gpu.own_step(gpu.SHAPES["tiny"], torch.device("cpu"), gpu._arguments(), fused)
    tokens = torch.zeros(2, 64, dtype=torch.long)
    step(tokens, tokens)
    assert done == (["chunked"] if fused == "liger" else [])


def test_its_code_runs_on_a_cpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    words = ["--device", "cpu", "--shapes", "tiny", "--peers", "plain", "--blocks", "1"]
    run(monkeypatch, *words, "--seconds", "0.01", "--out", str(tmp_path))
    (written,) = tmp_path.glob("*-gpu.md")
    rows = re.findall(r"\| tiny \| (\w+) \| ([\d,]+) \|", written.read_text("utf-8"))
    assert [name for name, _ in rows] == ["archwright", "plain"]
    assert all(int(speed.replace(",", "")) > 0 for _, speed in rows)


def test_the_shapes_have_the_sizes_of_their_names() -> None:
    sizes = {name: gpu.model_flops(shape) / 6e6 for name, shape in gpu.SHAPES.items()}
    assert 124 < sizes["124M"] < 160  # with what attention takes
    assert 1200 < sizes["1B"] < 1400
