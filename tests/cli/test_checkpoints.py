"""import, export and verify, and what can be done with an imported run."""

import json
from pathlib import Path

import pytest

import archwright as aw
from archwright import hf
from archwright.cli import main
from archwright.text.bpe import raw_bytes
from archwright.text.tokenizer import Tokenizer
from tests.tiny import MACHINE

pytestmark = pytest.mark.slow

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
    Path("notes.txt").write_text("".join(f"{i} is a number.\n" for i in range(600)), "utf-8")
    capsys.readouterr()
    assert main(["eval", "runs/llama", "--text", "notes.txt", "--json"]) == 0
    before = json.loads(capsys.readouterr().out)
    assert main(["generate", "runs/llama", "--prompt", "a", "--max-new-tokens", "3"]) == 0
    assert main(["show", "runs/llama"]) == 0
    assert main(["train", "--resume", "runs/llama"]) == 0  # there is nothing left to do
    words = ["train", "runs/llama", "data.text=notes.txt", "budget=30steps", "--quiet", *MACHINE]
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
    assert main([*words, "budget=5steps", "--quiet", *MACHINE]) == 0
    assert main(["export", "runs/modern", "out"]) == 0
    capsys.readouterr()
    assert main(["verify", "out"]) == 0
    told = capsys.readouterr().out
    assert "llama (LlamaForCausalLM)" in told
    assert "first component to diverge    none" in told
    assert main(["verify", "out", "--json"]) == 0
    found = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)  # no NaN
    assert found["agrees"]
    assert found["comparisons"][0]["rounding"] is None
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
    assert "nowhere: there is no such run" in capsys.readouterr().err


def test_a_checkpoint_is_no_run(checkpoint: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "llama"]) == 2
    told = capsys.readouterr().err
    assert "archwright import llama makes a run to continue from" in told
    assert "archwright train llama/config.json trains its architecture from scratch" in told
    with pytest.raises(aw.UserError, match=r"archwright import llama.*hf\.load_spec"):
        aw.load("llama")


@pytest.mark.parametrize("what", ["llama", "llama/config.json"])
def test_an_architecture_needs_config_json_alone(
    what: str, checkpoint: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for path in checkpoint.iterdir():
        if path.name != "config.json":
            path.unlink()
    assert main(["show", what, "--blame"]) == 0
    told = capsys.readouterr().out
    assert told.startswith("llama")
    assert "config.json" in told
    assert main(["diff", "modern", what, "num_layers=3", "--values"]) == 0
    assert "num_layers: 8 -> 3" in capsys.readouterr().out
    assert main(["diff", what, what]) == 0
    assert main(["show", what, "--exportable"]) == 0
    assert "exportable as llama" in capsys.readouterr().out
    Path("notes.txt").write_text("".join(f"{i} is a number.\n" for i in range(3000)), "utf-8")
    words = ["train", what, "data.text=notes.txt", "data.tokenizer.kind=bytes", "budget=1steps"]
    assert main([*words, "--dry-run"]) == 0
    assert "Decoder(llama: 0.036M parameters, dim 32, 2 layers" in capsys.readouterr().out
    assert main(["import", "llama"]) == 2
    told = capsys.readouterr().err
    assert "no weights" in told
    assert "can be used without weights, by archwright show, diff and train" in told
    assert not Path("runs").exists()


def test_what_config_json_does_not_describe_is_said(
    checkpoint: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (checkpoint / "config.json").write_text('{"model_type": "lama"}', "utf-8")
    for words in (["show", "llama"], ["diff", "modern", "llama/config.json"]):
        assert main(words) == 2
        told = capsys.readouterr().err
        assert "llama/config.json: model_type: found 'lama'" in told
        assert len(told.splitlines()) == 1


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
        told = capsys.readouterr().err
        assert told == "archwright: runs/one holds a run already; give --out a new folder\n"
    assert Path("runs/one/model.safetensors").read_bytes() == before


def test_families_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "families"]) == 0
    told = capsys.readouterr().out
    for name, family in hf.FAMILIES.items():
        assert name in told
        assert family.architecture in told
