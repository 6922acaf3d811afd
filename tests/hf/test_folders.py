"""Folders of the ecosystem as strangers leave them: nothing is trusted, and every mistake is one line."""

import json
import os
import resource
import shutil
import struct
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import archwright as aw
from archwright import hf
from archwright.spec.errors import UserError
from archwright.text.companions import read_companions

SPEC = aw.load("modern").override(
    "dim=32",
    "num_layers=2",
    "vocab_size=64",
    "attention.num_heads=2",
    "attention.num_kv_heads=1",
    "feedforward.hidden_dim=48",
)


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small Llama, as it is published."""
    folder = tmp_path_factory.mktemp("published") / "llama"
    hf.save(aw.build(SPEC), folder)
    return folder


@pytest.fixture
def folder(published: Path, tmp_path: Path) -> Path:
    """A copy of it."""
    return Path(shutil.copytree(published, tmp_path / "llama"))


def config(folder: Path, **changes: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text("utf-8")) | changes), "utf-8")


def weights(folder: Path, change: Callable[[dict[str, torch.Tensor]], object]) -> None:
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})


def header(folder: Path, **entry: Any) -> None:
    """Write a file whose header claims something of one tensor and that has no content."""
    told = json.dumps({"lm_head.weight": entry}).encode()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(told)) + told)


def cut(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1000])


def index(folder: Path, name: str) -> None:
    shards = {"weight_map": {"lm_head.weight": name}}
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors.index.json").write_text(json.dumps(shards), "utf-8")


MISTAKES: dict[str, tuple[Callable[[Path], object], str]] = {
    "no folder": (shutil.rmtree, "there is no such folder"),
    "no config": (lambda f: (f / "config.json").unlink(), "config.json: there is no such file"),
    "config of no JSON": (lambda f: (f / "config.json").write_text("{"), "not JSON"),
    "config of a list": (lambda f: (f / "config.json").write_text("[]"), "expected a JSON object"),
    "deep config": (lambda f: (f / "config.json").write_text("[" * 100_000), "not JSON"),
    "unknown family": (
        lambda f: config(f, model_type="lama"),
        r"model_type: found 'lama'.*Did you mean \"llama\"",
    ),
    "no family": (lambda f: config(f, model_type=None), "model_type: found None"),
    "family of a list": (lambda f: config(f, model_type=["llama"]), "model_type: found"),
    "wrong type": (lambda f: config(f, hidden_size="wide"), 'dim: found "wide"'),
    "no number": (lambda f: config(f, hidden_size=-3), "dim: found -3"),
    "unknown function": (lambda f: config(f, hidden_act="sine"), "hidden_act: found 'sine'"),
    "unknown scaling": (
        lambda f: config(f, rope_parameters={"rope_type": "magic"}),
        "rope_type: found 'magic'",
    ),
    "heads that do not divide": (lambda f: config(f, num_key_value_heads=3), "divisor"),
    "compressed": (lambda f: config(f, quantization_config={"bits": 4}), "compressed weights"),
    "other size": (lambda f: config(f, hidden_size=64), r"found shape \[64, 32\]; expected"),
    "absurd size": (
        lambda f: config(f, hidden_size=10**9),
        "dim: found 1000000000; expected at most",
    ),
    "large size": (lambda f: config(f, hidden_size=2**20), "found dim = 1,048,576, but only"),
    **{
        f"{key} of {size:.0e}": (partial(config, **{key: size}), said)
        for key in ("intermediate_size", "num_attention_heads", "vocab_size", "head_dim")
        for size, said in (
            (10**30, f"{key}: found 1e[+]30; expected at most 2,147,483,647"),
            (2**63 - 1, f"{key}: found 9.22e[+]18; expected at most"),
            (2**31 - 2, "found 2147483646; expected at most"),
            (float("1e30"), f"{key}: found 1[.]00e[+]30"),
        )
    },
    "a number beyond floats": (
        lambda f: (f / "config.json").write_text('{"model_type": "llama", "rope_theta": 1e999}'),
        "rope_theta: found Infinity",
    ),
    "a scaling of 10^300": (
        lambda f: config(f, rope_parameters={"rope_type": "linear", "factor": 1e300}),
        "rope_parameters.factor: found 1[.]00e[+]300",
    ),
    "a pipe as config": (
        lambda f: ((f / "config.json").unlink(), os.mkfifo(f / "config.json")),
        "config.json: found a pipe",
    ),
    "a pipe as weights": (
        lambda f: ((f / "model.safetensors").unlink(), os.mkfifo(f / "model.safetensors")),
        "model.safetensors: found a pipe",
    ),
    "absurd depth": (lambda f: config(f, num_hidden_layers=10**9), "layers"),
    "no weights": (lambda f: (f / "model.safetensors").unlink(), "no weights"),
    "empty weights": (lambda f: (f / "model.safetensors").write_bytes(b""), "safetensors file"),
    "text as weights": (
        lambda f: (f / "model.safetensors").write_text("hello " * 99),
        "safetensors file",
    ),
    "a cut file": (cut, "not a whole safetensors file"),
    "a missing tensor": (
        lambda f: weights(f, lambda t: t.pop("model.norm.weight")),
        r"1 tensor \(model.norm.weight\) missing",
    ),
    "an extra tensor": (
        lambda f: weights(f, lambda t: t.update({"model.extra": torch.zeros(3)})),
        r"1 tensor \(model.extra\) not part of this LlamaForCausalLM",
    ),
    "a wrong shape": (
        lambda f: weights(f, lambda t: t.update({"model.norm.weight": torch.zeros(3)})),
        r"model.norm.weight: found shape \[3\]; expected \[32\]",
    ),
    "a header of 10^15 elements": (
        lambda f: header(f, dtype="F32", shape=[10**9, 10**6], data_offsets=[0, 4 * 10**15]),
        "not a whole safetensors file",
    ),
    "a header longer than the file": (
        lambda f: (f / "model.safetensors").write_bytes(struct.pack("<Q", 10**15) + b"{}"),
        "not a whole safetensors file",
    ),
    "an index that leads out": (lambda f: index(f, "../llama.safetensors"), "plain name"),
    "an index that leads to the root": (lambda f: index(f, "/etc/passwd"), "plain name"),
    "an index of what is not there": (lambda f: index(f, "a.safetensors"), "no such file"),
    "an index of numbers": (lambda f: index(f, 7), "plain name"),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_one_line_and_leaves_nothing(
    name: str, folder: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    from archwright.cli import main

    change, said = MISTAKES[name]
    change(folder)
    with pytest.raises(UserError, match=said):
        hf.load(folder)
    code = main(["import", str(folder), "--out", str(tmp_path / "run")])
    assert code == 2
    told = capfd.readouterr().err.strip().splitlines()
    assert all(line.startswith("archwright: ") and len(line) < 400 for line in told)
    assert len(told) <= 9
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("number", [10**6, 10**9, 10**30])
def test_experts_that_no_file_holds_are_refused_at_once(number: int, tmp_path: Path) -> None:
    spec = SPEC.override("feedforward.kind=experts", "feedforward.num_experts=4")
    hf.save(aw.build(spec), tmp_path / "m")
    names = {"num_experts", "num_local_experts", "n_routed_experts"}
    found = json.loads((tmp_path / "m" / "config.json").read_text("utf-8"))
    config(tmp_path / "m", **dict.fromkeys(names & set(found), number))
    began = resource.getrusage(resource.RUSAGE_SELF)
    with pytest.raises(UserError, match=r"num_.*experts"):
        hf.load(tmp_path / "m")
    ended = resource.getrusage(resource.RUSAGE_SELF)
    assert ended.ru_utime - began.ru_utime < 5
    assert (ended.ru_maxrss - began.ru_maxrss) * 1024 < 10**9


def test_old_files_may_hold_tensors_alone(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    torch.save(tensors, folder / "pytorch_model.bin")
    hf.load(folder)
    torch.save({"lm_head.weight": Ran()}, folder / "pytorch_model.bin")
    with pytest.raises(UserError, match="not a file of tensors alone"):
        hf.load(folder)
    assert not Ran.called


class Ran:
    """What runs when it is unpickled."""

    called = False

    def __reduce__(self) -> tuple[Any, ...]:
        return (exec, ("from tests.hf.test_folders import Ran; Ran.called = True",))


def test_a_file_in_the_store_of_a_hub_is_followed(folder: Path, tmp_path: Path) -> None:
    """A hub's cache has links from names to files elsewhere."""
    (folder / "model.safetensors").rename(tmp_path / "blob")
    (folder / "model.safetensors").symlink_to(tmp_path / "blob")
    hf.load(folder)


def test_shards_are_written_and_read(tmp_path: Path) -> None:
    model = aw.build(SPEC)
    hf.save(model, tmp_path / "out", max_shard_bytes=10_000)
    files = sorted(p.name for p in (tmp_path / "out").glob("*.safetensors"))
    assert len(files) > 2
    assert files[0] == f"model-00001-of-{len(files):05}.safetensors"
    table = json.loads((tmp_path / "out/model.safetensors.index.json").read_text("utf-8"))
    assert set(table["weight_map"].values()) == set(files)
    assert table["metadata"]["total_size"] == sum(p.nbytes for p in model.parameters())
    back = hf.load(tmp_path / "out").model
    for (name, own), other in zip(model.named_parameters(), back.parameters(), strict=True):
        assert torch.equal(own, other), name


@pytest.mark.slow
def test_a_tied_head_that_is_repeated_is_read_and_another_one_is_not_lost(tmp_path: Path) -> None:
    spec = SPEC.override("head.tied=true")
    hf.save(aw.build(spec), tmp_path / "tied")
    path = tmp_path / "tied"
    tensors = load_file(path / "model.safetensors")
    assert "lm_head.weight" not in tensors
    weights(path, lambda t: t.update({"lm_head.weight": t["model.embed_tokens.weight"].clone()}))
    assert hf.load(path).spec.head.tied
    weights(path, lambda t: t["lm_head.weight"].mul_(2))
    loaded = hf.load(path)
    assert not loaded.spec.head.tied
    assert torch.equal(loaded.model.head.weight, 2 * loaded.model.embedding.weight)


def test_a_narrow_checkpoint_stays_narrow_where_asked(folder: Path) -> None:
    weights(folder, lambda t: t.update({k: v.bfloat16() for k, v in t.items()}))
    assert hf.load(folder).model.head.weight.dtype == torch.float32
    assert hf.load(folder, dtype="stored").model.head.weight.dtype == torch.bfloat16


def test_what_cannot_be_said_is_told_with_the_nearest_family(tmp_path: Path) -> None:
    odd = SPEC.override("position.kind=alibi", "feedforward.kind=bilinear")
    with pytest.raises(UserError, match="no published family") as refused:
        hf.save(aw.build(odd), tmp_path / "out")
    assert len(refused.value.lines) == 1
    assert "position.kind" in str(refused.value)
    assert not (tmp_path / "out").exists()


def test_a_full_folder_is_left_alone(folder: Path) -> None:
    before = {p.name: p.read_bytes() for p in folder.iterdir()}
    with pytest.raises(UserError, match="not empty"):
        hf.save(aw.build(SPEC, seed=1), folder)
    assert {p.name: p.read_bytes() for p in folder.iterdir()} == before


def test_an_error_while_writing_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("archwright.hf.saving.write_tensors", fails)
    with pytest.raises(UserError, match="No space left"):
        hf.save(aw.build(SPEC), tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


PEAK = """
import resource, sys, torch
from archwright import hf
def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
before = peak()
loaded = hf.load(sys.argv[1])
print(peak() - before, sum(p.nbytes for p in loaded.model.parameters()))
"""


@pytest.mark.release
@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="resident memory is counted otherwise")
def test_the_peak_is_the_model_and_its_largest_tensor(tmp_path: Path) -> None:
    big = SPEC.override("dim=512", "num_layers=24", "attention.num_heads=8", "vocab_size=4096")
    model = aw.build(big.override("feedforward.hidden_dim=2048"))
    hf.save(model, tmp_path / "big", max_shard_bytes=30_000_000)
    largest = max(p.nbytes for p in model.parameters())
    total = sum(p.nbytes for p in model.parameters())
    assert total > 20 * largest
    out = subprocess.run(
        [sys.executable, "-c", PEAK, str(tmp_path / "big")],
        capture_output=True,
        text=True,
        check=True,
    )
    grown, own = map(int, out.stdout.split())
    assert own == total
    # Pages of mapped files count as resident as long as nobody else needs them.
    assert grown < total + 30_000_000 + 2 * largest + 30_000_000


def files(folder: Path) -> dict[str, tuple[bytes, int]]:
    return {
        p.name: (p.read_bytes(), p.stat().st_mtime_ns) for p in folder.rglob("*") if p.is_file()
    }


def test_an_export_that_is_there_is_done(tmp_path: Path) -> None:
    model, out = aw.build(SPEC), tmp_path / "out"
    hf.save(model, out, max_shard_bytes=10_000)
    before = files(out)
    assert hf.save(model, out, max_shard_bytes=10_000) == "llama"
    assert files(out) == before
    with pytest.raises(UserError, match="not empty"):
        hf.save(model, out)  # into one file: another folder
    (out / "notes.txt").touch()
    with pytest.raises(UserError, match="not empty"):
        hf.save(model, out, max_shard_bytes=10_000)


def test_an_export_is_the_same_with_its_keys_in_another_order(tmp_path: Path) -> None:
    model, path = aw.build(SPEC), tmp_path / "out" / "config.json"
    hf.save(model, path.parent)
    table = json.loads(path.read_text("utf-8"))
    path.write_text(json.dumps(dict(reversed(table.items()))), "utf-8")
    assert hf.save(model, path.parent) == "llama"
    path.write_text(json.dumps(table | {"rms_norm_eps": 0.5}), "utf-8")
    with pytest.raises(UserError, match="not empty"):
        hf.save(model, path.parent)


def test_an_export_is_flushed_before_it_takes_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []
    monkeypatch.setattr("archwright.files.sync", lambda path: done.append(Path(path).name))
    replace = Path.replace
    monkeypatch.setattr(
        Path, "replace", lambda self, to: (done.append("renamed"), replace(self, to))[1]
    )
    hf.save(aw.build(SPEC), tmp_path / "out")
    flushed = done[: done.index("renamed")]
    assert {p.name for p in (tmp_path / "out").iterdir()} <= set(flushed)
    assert done[-1] == tmp_path.name


@pytest.mark.release
def test_an_import_that_was_killed_when_it_was_whole_is_done(folder: Path, tmp_path: Path) -> None:
    made, _ = hf.import_run(folder, tmp_path / "run")
    before = files(made.path)
    again, model = hf.import_run(folder, tmp_path / "run")
    assert files(again.path) == before
    assert isinstance(model, torch.nn.Module)
    weights(folder, lambda t: t["model.norm.weight"].mul_(2))
    with pytest.raises(UserError, match="holds a run already"):
        hf.import_run(folder, tmp_path / "run")
    assert files(again.path) == before


@pytest.mark.skipif(os.name == "nt", reason="needs links")
@pytest.mark.parametrize("name", ["chat_template.jinja", "additional_chat_templates/a.jinja", "x/"])
def test_no_text_behind_a_link_to_elsewhere_is_taken_over(
    name: str, folder: Path, tmp_path: Path
) -> None:
    """It would be exported, too. Links inside the folder are followed."""
    secret = tmp_path / "secret" / "a.jinja"
    secret.parent.mkdir()
    secret.write_text("secret")
    if name == "x/":
        (folder / "additional_chat_templates").symlink_to(secret.parent)
    else:
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).symlink_to(secret)
    with pytest.raises(
        UserError, match=r"jinja: found a link to .*secret/a\.jinja; expected a file of"
    ):
        hf.load(folder)
    with pytest.raises(UserError, match="found a link to"):
        read_companions(folder)


@pytest.mark.skipif(os.name == "nt", reason="needs links")
def test_links_inside_a_folder_and_to_the_blobs_of_a_hub_are_followed(tmp_path: Path) -> None:
    folder, blob = (
        tmp_path / "models--x" / "snapshots" / "0a",
        tmp_path / "models--x" / "blobs" / "1",
    )
    for path in (folder / "kept.jinja", blob):
        path.parent.mkdir(parents=True)
        path.write_text(path.name)
    (folder / "additional_chat_templates").mkdir()
    (folder / "chat_template.jinja").symlink_to(Path("..", "..", "blobs", "1"))
    (folder / "additional_chat_templates" / "a.jinja").symlink_to(folder / "kept.jinja")
    (tmp_path / "named").symlink_to(folder)
    assert read_companions(tmp_path / "named") == {
        "chat_template.jinja": "1",
        "additional_chat_templates/a.jinja": "kept.jinja",
    }
