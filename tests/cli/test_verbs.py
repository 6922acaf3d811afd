"""What each verb prints, and that the quick ones wait for nothing."""

import csv
import io
import json
import os
import re
import shlex
import subprocess
import sys
import time
from importlib import import_module, resources
from pathlib import Path

import jsonschema
import pytest
import torch

from archwright import format as fmt
from archwright.cli import main
from archwright.cli.main import VERBS
from archwright.runs import RunFolder
from archwright.spec.masks import Mask
from archwright.spec.read import load_run
from tests.tiny import archwright, command, surroundings, tiny_words, write_text

INSTANT = (
    "--help",
    "--version",
    "list",
    "list models --format csv",
    "list families",
    "list choices",
    "list choices mask",
    "list norm=layer year>=2024 --by-year",
    "completion bash",
    "schema run",
    "new norm my_norm.py",
    *(f"{verb} --help" for verb in VERBS),
)
"""What reads no spec: pydantic takes longer to import than all of these take."""
QUICK = (
    "list runs",
    "show modern",
    "show modern --all --blame dim=256",
    "show gemma-3-27b --toml",
    "show gemma-3-27b --tiny norm.kind=layer",
    "show modern norm.kind=layer --exportable",
    "show {config}",
    "diff textbook modern",
    "diff modern {config}",
    "check {preset}",
)
HEAVY = {
    "torch",
    "numpy",
    "scipy",
    "transformers",
    "rich",
    "tokenizers",
    "tiktoken",
    "plotly",
    "safetensors",
}
TINY_CONFIGS = Path(__file__).parents[1] / "hf" / "tiny_configs.json"
PRESET = resources.files("archwright.presets") / "models" / "modern.toml"


def out(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(words) == 0
    return capsys.readouterr().out


@pytest.mark.sampled(fast=3)
@pytest.mark.parametrize("words", [*INSTANT, *QUICK])
def test_quick_verbs_import_nothing_heavy(words: str, place: Path) -> None:
    config = place / "foreign" / "config.json"
    config.parent.mkdir()
    config.write_text(json.dumps(json.loads(TINY_CONFIGS.read_text("utf-8"))["llama"]))
    program = (
        "import sys; from archwright.cli import main\n"
        "try: code = main(sys.argv[1:])\n"
        "except SystemExit as end: code = end.code\n"
        "print(code, *sys.modules, file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, *words.format(preset=PRESET, config=config).split()],
        capture_output=True,
        text=True,
        check=True,
        cwd=place,
        env=surroundings(),
    )
    code, *modules = done.stderr.splitlines()[-1].split()
    assert code == "0"
    assert HEAVY & set(modules) == set()
    if words in INSTANT:
        assert "pydantic" not in modules
        # Installed packages may name choices.
        is_needed = words == "--version" or words.startswith("list choices")
        assert "importlib.metadata" not in modules or is_needed


@pytest.mark.parametrize(
    ("prints", "words", "expected"),
    [
        ("", ["verify", "x"], "archwright: preparing to verify\n"),
        ("a line", ["verify", "x"], ""),
        ("", ["verify", "x", "--quiet"], ""),
        ("", ["check", "x"], "archwright: preparing to check\n"),
        ("", ["show", "x"], ""),
    ],
)
def test_a_slow_verb_says_that_it_is_at_work(
    prints: str,
    words: list[str],
    expected: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def run(_: object) -> int:
        print(prints, end="")
        time.sleep(0.3)
        return 0

    monkeypatch.setattr(sys, "argv", ["archwright", *words])
    monkeypatch.setattr(import_module("archwright.cli.main"), "PATIENCE", 0.05)
    monkeypatch.setattr(import_module(f"archwright.cli.{words[0]}_verb"), "run", run)
    assert main() == 0
    assert capsys.readouterr().err == expected


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_has_help(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main([verb, "--help"])
    text = capsys.readouterr().out
    assert end.value.code == 0
    assert text.startswith(f"usage: archwright {verb}")
    assert max(map(len, text.splitlines())) <= 110
    if verb != "schema":
        assert "examples:" in text


@pytest.mark.parametrize("words", [[], ["--help"], ["-h"], ["help"]])
def test_help_names_every_verb(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    text = out(capsys, *words)
    for verb, about in VERBS.items():
        assert f"  {verb} " in text
        assert about in text


def test_as_a_module_and_with_a_code(place: Path) -> None:
    done = archwright("schema", "nonsense", cwd=place)
    assert done.returncode == 2
    assert done.stderr.startswith("archwright: ")


@pytest.mark.slow
def test_a_reader_that_stops_reading_is_no_error(place: Path) -> None:
    with subprocess.Popen(
        command("schema", "run"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=place,
        env=surroundings(),
    ) as process:
        assert process.stdout
        assert process.stderr
        process.stdout.read(10)
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait() == 141


@pytest.mark.skipif(os.name == "nt", reason="has no such streams")
def test_a_closed_stream_is_no_traceback(place: Path) -> None:
    done = subprocess.run(
        ["sh", "-c", f"{shlex.join(command('--version'))} >&-"],
        capture_output=True,
        check=False,
        cwd=place,
        env=surroundings(),
    )
    assert (done.returncode, done.stderr) == (0, b"")


# list, show, diff --------------------------------------------------------------------------------


@pytest.mark.slow
def test_list(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "132")
    models, unpublished, recipes, studies, last = out(capsys, "list").split("\n\n")
    assert models.splitlines()[0].split() == [
        *("model", "year", "parameters", "norm", "wiring", "position", "heads", "activation")
    ]
    rows = {line.split()[0]: line.split()[1:] for line in models.splitlines()[1:]}
    assert rows["textbook"] == ["2017", "21.0M", "LayerNorm", "post", "sinusoidal", "8/8", "ReLU"]
    assert rows["mixtral-8x7b"] == ["2024", "46.7B", "RMSNorm", "pre", "RoPE", "32/8", "SwiGLU"]
    assert rows["gpt-4"] == ["2023", *"??????"]
    assert max(map(len, models.splitlines())) <= 132
    assert "gpt-4: unpublished: " in unpublished
    assert recipes.splitlines()[1].split()[:2] == ["demo", "modern"]
    assert studies.splitlines()[1].split()[:2] == ["activation", "modern"]
    assert "archwright show NAME" in last


@pytest.mark.slow
def test_list_in_other_formats(capsys: pytest.CaptureFixture[str]) -> None:
    written = list(csv.DictReader(io.StringIO(out(capsys, "list", "--format", "csv"))))
    records = json.loads(out(capsys, "list", "models", "--format", "json"))
    assert [{k: str(v) for k, v in record.items()} for record in records] == written
    mixtral = next(record for record in records if record["model"] == "mixtral-8x7b")
    assert (mixtral["parameters"], mixtral["experts"]) == (46702792704, "2 of 8")
    page = out(capsys, "list", "--format", "markdown").splitlines()
    assert page[0].startswith("| model | year |")
    assert len(page) == len(records) + 2
    assert len({line.count(" | ") for line in page}) == 1
    assert "5 of 6" in out(capsys, "list", "models", "--wide")


@pytest.mark.slow
def test_list_choices_of_an_axis(capsys: pytest.CaptureFixture[str]) -> None:
    text = out(capsys, "list", "choices", "mask")
    assert text.startswith("mask\n    The axis of attention masks")
    assert "set at model.attention.mask, by default causal" in text
    for kind, choice in Mask.kinds.items():
        assert f"mask: {kind}\n    {(choice.__doc__ or '').split()[0]}" in text
    kind = "model.attention.mask.kind=window model.attention.mask.size=64"
    assert f"    archwright train modern {kind}\n        model.attention.mask.size=64\n" in text
    assert "Takes a whole number at least 1; by default 4096." in text
    assert re.search(r"Used by original-transformer, .* and others\.", " ".join(text.split()))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mask", "attention.mask", "model.attention.mask", "mask.kind"])
def test_an_axis_is_found_by_name_and_by_path(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert out(capsys, "list", "choices", name) == out(capsys, "list", "choices", "mask")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["relu", "feedforward.relu", "feedforward.kind=relu", "Re-LU"])
def test_list_choices_of_a_kind(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    text = out(capsys, "list", "choices", name)
    assert "down(f(up(x)))" in text  # what it shares with others
    assert "gate(x)" not in text
    assert [line for line in text.splitlines() if ": " in line and line[0] != " "] == [
        "feedforward: relu"
    ]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["choices", "nrom"], 'archwright: list choices "nrom": expected an axis, a table or a'),
        (["choices", "norm.rsm"], 'Did you mean "norm.rms"?'),
        (["choices", "model.nrom"], "expected an axis, a table or a kind"),
        (["choices", "d-ff"], "an option, not a kind; see archwright explain d-ff"),
        (["runs", "norm"], "archwright: list runs: norm: more words than it takes"),
    ],
)
def test_list_of_what_is_not_there(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["list", *words]) == 2
    assert said in capsys.readouterr().err


def test_show_is_a_card(capsys: pytest.CaptureFixture[str]) -> None:
    text = out(capsys, "show", "gemma-3-27b")
    assert text.startswith("gemma-3-27b, 27.0B parameters\nGemma Team, 2025")
    assert "tokens ─ embedding ─ × √width ─ 62 layers ─ RMSNorm ─ head ─ logits\n" in text
    assert "local: 52 of 62 layers\n  x ─┬─ RMSNorm ─ attention ─ RMSNorm ─ + ─┬" in text
    assert "arrangement   5 local + default, repeated\n" in text
    card = " ".join(text.split())
    assert "attention softmax, 32/16 heads of 128, scale sqrt (width 168), QK-norm RMSNorm" in card
    assert "attention.qk_norm section 2: QK-norm replaces soft-capping" in card
    assert "norm.weight published code (gemma-7b.toml)" in card
    assert "feed-forward 21.5B 80 % all 27B costs cache per token 508 kB, in 16 bits" in card
    assert card.endswith("training memory 432 GB, weights, gradients and AdamW's moments")
    assert max(map(len, text.splitlines()[2:])) <= 115


def test_a_card_has_no_source_of_what_was_changed(capsys: pytest.CaptureFixture[str]) -> None:
    assert "Xiong et al., 2020" in out(capsys, "show", "modern")
    text = out(capsys, "show", "modern", "residual.kind=deepnorm")
    assert "wiring        DeepNorm" in text
    assert "Xiong et al., 2020" not in text
    assert "Su et al., 2021" in text


def test_show_names_the_objective_of_a_model(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    card = "trained by default with objective.kind=masked_tokens"
    file = tmp_path / "mine.toml"
    file.write_text('[objective]\nkind = "masked_tokens"\n[attention.mask]\nkind = "full"\n')
    assert card in out(capsys, "show", str(file)).splitlines()
    assert ": OK" in out(capsys, "check", str(file))
    assert "objective" not in out(capsys, "show", "modern")
    words = "trained by default with objective.kind=masked_tokens objective.share=0.3\n  section 2.2.1: 30 %"
    assert words in out(capsys, "show", "modernbert-base")


def test_show_counts_what_was_changed(capsys: pytest.CaptureFixture[str]) -> None:
    """Four layers of 4 heads of 16 that share keys, of 2 of 4 experts 224 wide, for 4,096 tokens."""
    card = " ".join(out(capsys, "show", "mixtral-8x7b", "--tiny", "head.tied=true").split())
    experts = 4 * (64 * 4 + 4 * 3 * 64 * 224)
    attention = 4 * (2 * 64 * 64 + 2 * 64 * 16)
    total = 4096 * 64 + 9 * 64 + attention + experts
    active = total - 4 * 2 * 3 * 64 * 224
    assert card.startswith(f"mixtral-8x7b-tiny, {total / 1e6:.2f}M parameters Jiang et al., 2024")
    assert f"feed-forward {experts / 1e3:.0f}k" in card
    assert f"all {total / 1e3:.0f}k active {active / 1e3:.0f}k per token" in card
    assert "mixture of experts, 2 of 4, expert SwiGLU (d_ff 224)" in card


def test_costs_are_those_of_the_plan(capsys: pytest.CaptureFixture[str]) -> None:
    """Of a published model as they were counted with the package, of a changed one when they are asked for."""
    for words in (["mixtral-8x7b"], ["modern", "dim=256", "vocab_size=1000", "--costs"]):
        shown = " ".join(out(capsys, "show", *words).split())
        (model, *changes) = [word for word in words if word != "--costs"]
        plan = json.loads(out(capsys, "plan", model, *changes, "--json"))
        assert f"cache per token {fmt.size(plan['kv_cache_bytes_per_token'])}, in 16 bits" in shown
        assert f"FLOPs per token {fmt.flops(plan['flops_per_token'])}, in training" in shown
        assert f"training memory {fmt.size(16 * plan['parameters'])}, weights" in shown
    assert "costs all counted with --costs" in " ".join(
        out(capsys, "show", "modern", "dim=256").split()
    )


def test_costs_of_what_differs(capsys: pytest.CaptureFixture[str]) -> None:
    """Llama 3 8B: 2 * 32 layers * 8 heads * 128 in 16 bits; with a key for each query four times as many."""
    change = "attention.num_kv_heads=32"
    assert "cache" not in out(capsys, "diff", "llama-3-8b", change)
    assert re.search(
        r"cache per token +131 kB +524 kB", out(capsys, "diff", "llama-3-8b", change, "--costs")
    )
    assert re.search(
        r"cache per token +131 kB +328 kB", out(capsys, "diff", "llama-3-8b", "llama-3-70b")
    )
    assert "cache" not in out(capsys, "diff", "llama-3-8b", "norm.eps=1e-3", "--costs")


def test_a_wide_list_has_costs(capsys: pytest.CaptureFixture[str]) -> None:
    text = out(capsys, "list", "models", "--wide").splitlines()
    assert re.search(
        r"context +cache per token +state per sequence +flops per token +training memory$", text[0]
    )
    row = next(line for line in text if line.startswith("llama-3-8b "))
    assert row.split()[-6:] == ["131", "kB", "none", "5.15e10", "128", "GB"]
    written = out(capsys, "list", "--format", "csv")
    records = {record["model"]: record for record in csv.DictReader(io.StringIO(written))}
    assert records["llama-3-8b"]["cache_per_token"] == "131072"
    assert records["gpt-4"]["training_memory"] == ""


def test_tiny_values_have_lost_their_source(capsys: pytest.CaptureFixture[str]) -> None:
    text = out(capsys, "show", "mixtral-8x7b", "--tiny", "--blame", "dim=32")
    said = dict(line.split("# ") for line in text.splitlines()[3:] if "# " in line)
    origins = {values.split()[0]: origin for values, origin in said.items()}
    assert origins["dim"] == "the command line"
    assert origins["num_layers"] == "--tiny"
    assert origins["position.theta"] == "mixtral-8x7b.toml: config.json"


def test_show_values(capsys: pytest.CaptureFixture[str]) -> None:
    lines = out(capsys, "show", "textbook", "--values").splitlines()
    assert lines[0].startswith("textbook, ")
    assert lines[0].endswith("M parameters")
    assert "2017" in lines[1]
    values = dict(line.split(maxsplit=1) for line in lines[3:])
    assert values["norm.kind"] == '"layer"'
    assert values["residual.kind"] == '"post"'
    assert "norm.bias" not in values  # left at its default


def test_show_all(capsys: pytest.CaptureFixture[str]) -> None:
    lines = out(capsys, "show", "modern", "--all", "dim=256").splitlines()
    values = dict(line.split(maxsplit=1) for line in lines[3:])
    assert lines[0] == "modern, 7.74M parameters"  # of the changed model, not of the preset
    assert values["feedforward.hidden_dim"] == "704   (auto)"
    assert values["attention.head_dim"] == "32   (auto)"
    assert values["embedding.dropout"] == "0.0"


def test_show_blame(capsys: pytest.CaptureFixture[str]) -> None:
    text = out(capsys, "show", "modern", "--blame", "norm.kind=layer", "dim=256")
    said = dict(line.split("# ") for line in text.splitlines()[3:])
    origins = {values.split()[0]: origin for values, origin in said.items()}
    assert origins["dim"] == "the command line"
    assert origins["norm.kind"] == "the command line"
    assert origins["norm.eps"] == "default"  # of the new kind, not of modern.toml
    assert origins["position.kind"].startswith("modern.toml: ")
    assert origins["embedding.dropout"] == "default"
    assert len({line.index("# ") for line in text.splitlines()[3:]}) == 1


def test_show_tells_values_that_are_alike_as_one(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["residual.multiplier=0.5", "attention.bias.out=true", "layer_kinds.a.norm.eps=0.1"]
    lines = out(capsys, "show", "modern", "--all", *words).splitlines()
    values = dict(line.split(maxsplit=1) for line in lines[3:] if line)
    assert values["residual.multiplier"] == "0.5"
    assert values["layer_kinds.a.residual.multiplier"] == "0.5"
    assert values["feedforward.bias"] == "false"
    assert (values["attention.bias.query"], values["attention.bias.out"]) == ("false", "true")
    text = out(capsys, "show", "modern", "--blame", "attention.bias.out=false")
    assert "attention.bias.out" in text  # as it comes from elsewhere than the others


def test_show_warns(capsys: pytest.CaptureFixture[str]) -> None:
    assert "warning: vocab_size is 100" in out(capsys, "show", "modern", "vocab_size=100")


def test_diff(capsys: pytest.CaptureFixture[str]) -> None:
    lines = [line.split("  ") for line in out(capsys, "diff", "textbook", "modern").splitlines()]
    rows = [[cell.strip() for cell in line if cell] for line in lines]
    assert rows[0] == ["textbook", "modern"]
    assert ["norm", "LayerNorm", "RMSNorm"] in rows
    assert ["attention", "8/8 heads of 64", "8/2 heads of 64"] in rows
    assert not any("vocabulary" in row for row in rows)
    assert out(capsys, "diff", "modern", "modern") == "no difference\n"


def test_diff_of_kinds_of_layers(capsys: pytest.CaptureFixture[str]) -> None:
    text = " ".join(out(capsys, "diff", "gemma-2-27b", "gemma-3-27b").split())
    assert "local: attention mask window (size 4,096) mask window (size 1,024)" in text
    assert text.count("QK-norm RMSNorm") == 1  # local layers have it from the default layer
    text = " ".join(out(capsys, "diff", "llama-3-70b", "llama-4-scout").split())
    assert "chunked: attention - mask chunked (size 8,192)" in text


def test_diff_of_values(capsys: pytest.CaptureFixture[str]) -> None:
    lines = out(capsys, "diff", "textbook", "modern", "--values").splitlines()
    assert 'norm.kind: "layer" -> "rms"' in lines
    assert "norm.bias: true -> -" in lines
    assert out(capsys, "diff", "modern", "modern", "--values") == "no difference\n"
    assert out(capsys, "diff", "modern", "modern", "dim=64", "--values") == "dim: 512 -> 64\n"


@pytest.mark.slow
def test_schema(capsys: pytest.CaptureFixture[str]) -> None:
    for what in ("model", "run"):
        schema = json.loads(out(capsys, "schema", what))
        jsonschema.Draft202012Validator.check_schema(schema)
        assert "base" in json.dumps(schema)


def test_check(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (place / "mine.toml").write_text('base = "modern"\nvocab_size = 100\n')
    (place / "run.toml").write_text('model = "mine.toml"\nbudget = "5steps"\n')
    assert out(capsys, "check", "mine.toml", "run.toml", str(PRESET)).splitlines() == [
        "mine.toml: OK",
        "mine.toml: warning: vocab_size is 100: not a multiple of 64, which slows the output head "
        "down",
        "run.toml: OK",
        "run.toml: warning: vocab_size is 100: not a multiple of 64, which slows the output head "
        "down",
        f"{PRESET}: OK",
    ]


# train -------------------------------------------------------------------------------------------


def test_any_published_model_can_be_tiny(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = write_text(place / "text.txt", 100)
    asked = ("model.num_layers=3", "data.tokenizer.kind=bytes", "budget=2steps", "--dry-run")
    found = out(capsys, "train", "mixtral-8x7b", "--tiny", f"data.text={text}", *asked)
    values = dict(line.split(maxsplit=1) for line in found.splitlines() if "  " in line)
    assert found.startswith("Decoder(mixtral-8x7b-tiny: ")
    assert values["model.dim"] == "64"
    assert values["model.num_layers"] == "3"
    assert values["model.feedforward.top_k"] == "2"


def test_dry_run(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch, "set_num_threads", lambda number: None)
    text = write_text(place / "text.txt", 100)
    words = tiny_words(text, "budget=1000steps", "optimizer.lr=0.5", "machine.threads=auto")
    found = out(capsys, *words, "--dry-run")
    values = dict(line.split(maxsplit=1) for line in found.splitlines() if "  " in line)
    assert found.startswith("Decoder(modern: 0.0359M parameters, dim 32, 1 layer of ")
    assert values["model.dim"] == "32"
    assert values["model.vocab_size"] == "320"
    assert values["model.head.tied"] == "false"
    assert values["optimizer.lr"] == "0.5"
    assert values["schedule.warmup"] == "50"
    assert values["evaluate.every"] == "100"
    assert values["machine.num_steps"] == "1000"
    assert values["machine.threads"] == "auto, settled when the run begins"
    assert values["checkpoint.every"] == "about every minute"
    assert "1,000 steps, 128,000 tokens" in found
    assert f"1 file, {text.stat().st_size / 1000:.2f} kB".replace("0 kB", " kB") in found
    assert re.search(r"^peak memory +\S+ [MG]B, measured, of the process$", found, re.MULTILINE)
    speed = re.search(r"^speed +(\S+) tokens/s, measured$", found, re.MULTILINE)
    assert speed is not None
    assert re.search(r"^the training +\S.*, estimated, 128k tokens$", found, re.MULTILINE)
    assert found.endswith("Nothing was trained.\n")
    assert sorted(path.name for path in place.iterdir()) == ["text.txt"]


def test_dry_run_of_a_time_budget(capsys: pytest.CaptureFixture[str]) -> None:
    found = out(capsys, "train", "demo", "--dry-run", "budget=7m")
    assert "about as many steps as fit into 7m" in found
    values = dict(line.split(maxsplit=1) for line in found.splitlines() if len(line.split()) > 1)
    assert values["schedule.warmup"] == "auto, settled when the run begins"


def test_dry_run_says_what_is_missing(capsys: pytest.CaptureFixture[str]) -> None:
    found = out(capsys, "train", "modern", "--tiny", "data.text=none.txt", "--dry-run")
    assert re.search(r'^text +none yet: .*no file or folder "none.txt"', found, re.MULTILINE)


@pytest.mark.slow
def test_a_run_from_the_command_line(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Trained, trained again, shown, evaluated, made to write, reported, listed."""
    text = write_text(place / "text.txt", 100)
    words = [*tiny_words(text, "budget=12steps"), "name=small"]
    assert main(words) == 0
    printed = capsys.readouterr()
    for part in ("bits per byte", "gzip -9", "xz -9e", "runs/small", "report.html"):
        assert part in printed.out
    for part in ("Decoder(", "tokens to train on", "step 12 of 12", "12 steps of"):
        assert part in printed.err
    assert printed.err.splitlines()[3].startswith("step 1 of 12 ")

    before = RunFolder("runs/small").metrics_file.read_bytes()
    assert main(words) == 0
    again = capsys.readouterr()
    assert "runs/small is finished already" in again.err
    assert again.out == printed.out
    assert RunFolder("runs/small").metrics_file.read_bytes() == before
    assert main(["train", "--resume", "runs/small", "--quiet"]) == 0
    assert capsys.readouterr() == ("", "")

    found = json.loads(out(capsys, "eval", "runs/small", "--text", str(text), "--json"))
    assert found["num_bytes"] == text.stat().st_size
    shown = out(capsys, "eval", "runs/small", "--text", str(text))
    assert f"{found['bits_per_byte']:.4f}" in shown
    assert f"{found['nats_per_token']:.4f}" in shown

    written = out(capsys, "generate", "runs/small", "--prompt", "the", "--max-new-tokens", "20")
    assert written.startswith("the")
    assert (
        out(capsys, "generate", "runs/small", "--prompt", "the", "--max-new-tokens", "20")
        == written
    )
    assert out(capsys, "report", "runs/small") == "runs/small/report.html\n"
    assert out(capsys, "list", "runs").splitlines()[1].split()[:2] == ["runs/small", "finished"]


@pytest.mark.slow
def test_a_recipe_of_ones_own(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_text(place / "text.txt", 100)
    words = tiny_words("text.txt", "budget=2steps", "evaluate.final_max_tokens=50")
    recipe = load_run("modern").override(*words[2:])
    from archwright.spec.read import to_toml

    (place / "mine.toml").write_text(to_toml(recipe).replace('name = "modern"\n', "", 1))
    assert main(["train", "mine.toml", "--quiet"]) == 0
    assert RunFolder("runs/mine").finished
    assert RunFolder("runs/mine").spec.model.dim == 32


@pytest.mark.slow
def test_standard_input(
    place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    text = write_text(place / "text.txt", 100).read_bytes()

    def pipe() -> None:
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(text)))

    pipe()
    words = tiny_words("-", "budget=2steps", "evaluate.final_max_tokens=50")
    assert main([*words, "--quiet"]) == 0
    assert RunFolder("runs/modern").finished
    pipe()
    assert json.loads(out(capsys, "eval", "runs/modern", "--text", "-", "--json"))["num_bytes"] == (
        len(text)
    )


@pytest.mark.slow
def test_what_a_console_cannot_show_is_replaced(place: Path) -> None:
    write_text(place / "text.txt", 100)
    words = tiny_words("text.txt", "budget=1steps", "evaluate.final_max_tokens=50")
    assert main([*words, "--quiet"]) == 0
    env = {"PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"}
    done = archwright("generate", "runs/modern", "--prompt", "é", "--quiet", cwd=place, env=env)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("?")


def test_a_word_is_explained(capsys: pytest.CaptureFixture[str]) -> None:
    text = out(capsys, "explain", "rope")
    assert text.startswith("position: rope\n")
    for part in ("Su et al., 2021", "theta^(-2i/r)", "all positions grow by 7", "Used by"):
        assert part in text
    assert "position: rope" in out(capsys, "explain", "position.rope")
    gqa = out(capsys, "explain", "GQA")
    assert gqa.startswith("GQA, MQA\n")
    assert "\nattention.num_kv_heads\n" in gqa
    assert "524 kB" in gqa
    assert out(capsys, "explain", "layernorm").startswith("norm: layer\n")


def test_show_says_which_init_is_a_default(capsys: pytest.CaptureFixture[str]) -> None:
    assert re.search(r"\n  init +Glorot \(default\)\n", out(capsys, "show", "llama-3.2-1b"))
    assert "(default)" not in out(capsys, "show", "llama-3.2-1b", "init.kind=gpt2")
