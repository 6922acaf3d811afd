"""import, export and verify, and what can be done with an imported run."""

import json
from pathlib import Path

import pytest

import archwright as aw
from archwright import hf
from archwright.cli import main
from archwright.text.bpe import raw_bytes
from archwright.text.tokenizer import Tokenizer

SMALL = ("dim=32", "num_layers=2", "vocab_size=320", "feedforward.hidden_dim=48")
HEADS = ("attention.num_heads=2", "attention.num_kv_heads=1", "context_length=64")


@pytest.fixture
def checkpoint(place: Path) -> Path:
    """A small Llama with a tokenizer, as somebody else wrote it."""
    model = aw.build(aw.load("modern").override(*SMALL, *HEADS))
    end = "<|endoftext|>"
    hf.save(model, place / "llama", Tokenizer(raw_bytes([end]), end))
    return place / "llama"


def test_in_and_out_again(checkpoint: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["import", "llama", "--out", "runs/llama"]) == 0
    assert "Decoder(llama: " in capsys.readouterr().out
    assert main(["export", "runs/llama", "again"]) == 0
    assert "family  llama (LlamaForCausalLM)" in capsys.readouterr().out
    for name in ("model.safetensors", "config.json", "tokenizer.json"):
        assert Path("again", name).read_bytes() == (checkpoint / name).read_bytes()


def test_an_imported_run_is_used_like_any_other(
    checkpoint: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["import", "llama"]) == 0
    Path("notes.txt").write_text("".join(f"{i} is a number.\n" for i in range(3000)), "utf-8")
    capsys.readouterr()
    assert main(["eval", "runs/llama", "--text", "notes.txt", "--json"]) == 0
    before = json.loads(capsys.readouterr().out)
    assert main(["generate", "runs/llama", "--prompt", "a", "--max-tokens", "3"]) == 0
    assert main(["show", "runs/llama"]) == 0
    assert main(["train", "--resume", "runs/llama"]) == 0  # there is nothing left to do
    words = ["train", "runs/llama", "data.text=notes.txt", "budget=30steps", "--quiet"]
    assert main([*words, "optimizer.lr=0.01"]) == 0
    run = aw.open_run("runs/llama-onwards")
    assert run.spec.model.norm == aw.load("runs/llama").norm
    capsys.readouterr()
    assert main(["eval", "runs/llama-onwards", "--text", "notes.txt", "--json"]) == 0
    after = json.loads(capsys.readouterr().out)
    assert after["bits_per_byte"] < 0.8 * before["bits_per_byte"]


def test_a_run_is_written_for_transformers(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("transformers")
    Path("notes.txt").write_text("".join(f"{i} is a number.\n" for i in range(3000)), "utf-8")
    model = [f"model.{value}" for value in (*SMALL[:2], *HEADS)]
    words = ["train", "modern", "data.text=notes.txt", "data.tokenizer.kind=bytes", *model]
    assert main([*words, "budget=5steps", "--quiet"]) == 0
    assert main(["export", "runs/modern", "out"]) == 0
    capsys.readouterr()
    assert main(["verify", "out"]) == 0
    told = capsys.readouterr().out
    assert "llama (LlamaForCausalLM)" in told
    assert "first component to diverge    none" in told
    assert main(["verify", "out", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["agrees"]
    assert [c["dtype"] for c in found["comparisons"]] == ["float32", "bfloat16"]
    from transformers import AutoModelForCausalLM, AutoTokenizer

    text = AutoTokenizer.from_pretrained("out")("3 is a", return_tensors="pt")
    AutoModelForCausalLM.from_pretrained("out").generate(**text, max_new_tokens=3)


def test_a_certificate_names_what_diverges(
    checkpoint: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An error is planted where the second layer's feed-forward begins."""
    pytest.importorskip("transformers")
    from archwright.hf import verifying

    load = hf.load

    def wrong(*args: object, **kwargs: object) -> hf.Loaded:
        loaded = load(*args, **kwargs)  # type: ignore[arg-type]
        loaded.model.get_parameter("layers.1.feedforward.gate.weight").data *= 1.5
        return loaded

    monkeypatch.setattr(verifying, "load", wrong)
    assert main(["verify", "llama"]) == 1
    told = capsys.readouterr().out
    assert "layers.1.feedforward.gate" in told
    assert "within rounding" in told


def test_what_cannot_be_exported_is_said_before_and_after(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    odd = ["norm.kind=layer", "position.kind=alibi", "feedforward.kind=bilinear"]
    assert main(["show", "modern", *odd, "--exportable"]) == 0
    assert "position.kind" in capsys.readouterr().out
    assert main(["show", "gemma-2-27b", "--exportable"]) == 0
    assert "exportable as gemma2 (Gemma2ForCausalLM)" in capsys.readouterr().out
    assert main(["export", "nowhere", "out"]) == 2
    assert "not a run folder" in capsys.readouterr().err


def test_a_checkpoint_is_no_run(checkpoint: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["train", "llama"], ["show", "llama"]):
        assert main(words) == 2
        assert "archwright import llama" in capsys.readouterr().err


def test_without_a_tokenizer_it_comes_in_and_goes_out(
    checkpoint: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (checkpoint / name).unlink()
    assert main(["import", "llama"]) == 0
    assert "tokenizer  none" in capsys.readouterr().out
    assert main(["eval", "runs/llama", "--text", "stdlib"]) == 2
    assert "holds no tokenizer" in capsys.readouterr().err
    assert main(["export", "runs/llama", "again"]) == 0


def test_a_run_is_not_overwritten(checkpoint: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["import", "llama", "--out", "runs/one"]) == 0
    before = Path("runs/one/model.safetensors").read_bytes()
    for i, eps in enumerate(("1e-5", "1e-6")):  # of the same architecture, and of another
        spec = aw.load("modern").override(*SMALL, *HEADS, f"norm.eps={eps}")
        hf.save(aw.build(spec, seed=1), f"other-{i}")
        assert main(["import", f"other-{i}", "--out", "runs/one"]) == 2
        assert "runs/one holds" in capsys.readouterr().err
    assert Path("runs/one/model.safetensors").read_bytes() == before


def test_families_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "families"]) == 0
    told = capsys.readouterr().out
    for name, family in hf.FAMILIES.items():
        assert name in told
        assert family.architecture in told
