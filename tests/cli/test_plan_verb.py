"""What `archwright plan` prints: pages, tables, JSON; and a line for each mistake."""

import json
import re
from pathlib import Path

import pytest
import torch

from archwright.cli import main, this_machine
from archwright.machine.peaks import Peak
from archwright.runs import RunFolder
from archwright.spec.read import load_run
from tests.cli.typing_commands import error_lines
from tests.tiny import ROOT


def out(capsys: pytest.CaptureFixture[str], words: str) -> str:
    assert main(words.split()) == 0
    return capsys.readouterr().out


def test_a_page(capsys: pytest.CaptureFixture[str]) -> None:
    text = out(
        capsys,
        "plan llama-3-70b --hardware h200 --devices 64 --tokens 15T --context 8192 --batch 4M --price 3",
    )
    assert text.startswith("llama-3-70b: 64 x NVIDIA H200 SXM, bf16\n")
    for line in (
        r"parameters +70.6B +counted",
        r"FLOPs per token +4.49e11 +counted, forward and backward",
        r"cache per token +328 kB +counted, in 16 bits",
        r"tokens +15T +given, 3,750,000 steps",
        r"device hours +3.78M to 6.31M +estimated",
        r"price +11.4M to 18.9M +estimated, at 3 an hour",
        r"memory bandwidth +4.8 TB/s +published",
        r"peak compute +989 TFLOP/s +published, bf16",
        r"step at 100 % MFU .+ lower bound, by published peak compute",
        r"fits +yes +estimated",
        r"communication time +\d+ s +lower bound, of a step, over the slower links",
        r"bound by +compute +lower bound, inside servers [\d.]+ s \(data, tensor\); between servers \d+ s \(data\); ",
        r"; compute 28 s\n",
        r"parallelism +FSDP, tensor-parallel 2 +estimated, the fastest that fits",
        r"archwright train +yes +scale.shard=32 scale.tensor=2 grad_accum_steps=\d+",
        r"checkpointing +selective +estimated",
        r"training time +[\d,]+ to [\d,]+ days +estimated, at 50 % to 30 % MFU",
        r"feed-forward +56.4B +80 % +1.13e11 +2.25e11 +75 %",
        r"decode +\d+ tokens/s +upper bound, one sequence, after the context",
        r"attention scores and mixing +- +- ",
    ):
        assert re.search(line, text), line


def test_a_split_that_is_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    words = "plan llama-3-8b --devices 64 --split tensor=4,pipeline=4,zero1"
    text = out(capsys, words)
    for line in (
        r"parallelism +ZeRO-1, tensor-parallel 4, pipeline-parallel 4 +estimated",
        r"sent in a step +[\d.]+ GB +estimated, by a device: data [\d.]+ GB, tensor [\d.]+ GB, pipeline [\d.]+ GB",
        r"micro-batch +4 sequences, 31 accumulated +estimated, the largest that fits",
        r"pipeline bubble +9.7 % +estimated, of the compute time",
        r"  parallelism +checkpointing +micro-batch +model states +activations, buffers +all +sent in a step",
        r"  ZeRO-1, tensor-parallel 4, pipeline-parallel 4 +\w+ +4 x 31 .* yes",
    ):
        assert re.search(line, text), line
    record = json.loads(out(capsys, f"{words} --json"))
    (way,) = record["ways"]
    assert (way["data"], way["tensor"], way["pipeline"], way["fits"]) == ("zero1", 4, 4, True)
    assert (way["micro_batch"], way["micro_batches"], way["why_not"]) == (4, 31, None)
    assert (record["micro_batch"], record["micro_batches"]) == (4, 31)
    fixed = out(capsys, f"{words} --micro-batch 1")
    assert re.search(r"micro-batch +1 sequence, 123 accumulated +estimated, as requested", fixed)
    assert re.search(r"pipeline bubble +2.4 % ", fixed)
    assert sum(way["memory_bytes_by_part"].values()) == pytest.approx(way["memory_bytes"])
    network = sum(way["network_bytes"].values())
    inside = sum(way["exchange_bytes"].values()) - network
    assert max(inside / 450e9, network / 50e9) == pytest.approx(way["exchange"])
    assert record["training"]["exchange_bytes"] == way["exchange_bytes"]


def test_parallelism_strategies_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    lines = out(capsys, "plan llama-3-70b --hardware h200 --devices 64").splitlines()
    at = lines.index("parallelism strategies")
    rows = lines[at + 2 : at + 8]
    assert [row.split("  ")[1] for row in rows] == [
        "DDP",
        "DDP, tensor-parallel 8",
        "FSDP",
        "HSDP, shard 16",
        "FSDP, tensor-parallel 2",
        "FSDP, tensor-parallel 8, pipeline-parallel 2",
    ]
    assert [row.split("  ")[-1] for row in rows] == [*["no: memory"] * 2, *["yes"] * 4]
    assert "parallelism strategies" not in out(capsys, "plan modern --devices 1")


UNUSUAL = "unusual, by rules of thumb"


def test_what_is_unusual_is_said_with_its_source(capsys: pytest.CaptureFixture[str]) -> None:
    words = "plan llama-3-8b attention.num_kv_heads=1"
    assert UNUSUAL not in out(capsys, "plan llama-3-8b")
    text = " ".join(out(capsys, words).partition(UNUSUAL)[2].split())
    line = (
        "attention.num_kv_heads: the number of query heads per KV head is 32, usually 1 to 16: groups of 8 "
        "lose little, one KV head for all loses more (Ainslie et al., 2023; Shazeer, 2019; strong evidence)"
    )
    assert text == line
    (record,) = json.loads(out(capsys, f"{words} --json"))["suspicions"]
    assert (record["found"], record["least"], record["most"]) == (32, 1, 16)
    beside = out(capsys, "plan llama-3-8b :attention.num_kv_heads=1").partition(UNUSUAL)[2]
    assert " ".join(beside.split()) == f":attention.num_kv_heads=1: {line}"


def test_side_by_side(capsys: pytest.CaptureFixture[str]) -> None:
    text = out(capsys, "plan llama-3-70b :attention.num_kv_heads=64 llama-3-8b")
    lines = {re.split("  +", line)[0]: line.split() for line in text.splitlines()}
    cells = ["328", "kB", "2.62", "MB", "131", "kB", "counted"]
    assert lines["cache per token"][-7:] == cells
    fits = "fits no, but on 32 devices no, but on 32 devices yes estimated"
    assert " ".join(lines["fits"]) == fits


def test_what_a_token_costs_past_windows(capsys: pytest.CaptureFixture[str]) -> None:
    """Of gemma-3-1b four layers see everything, with one head of keys and of values of 256 in 16 bits; of 26."""
    text = out(capsys, "plan gemma-3-1b")
    assert re.search(
        r"cache per token +26.6 kB +counted, in 16 bits, while no window is full", text
    )
    line = r"cache past windows +4.1 kB +counted, of each further token when all windows are full"
    assert re.search(line, text)
    assert "past windows" not in out(capsys, "plan llama-3-8b")
    lines = out(capsys, "plan gemma-3-1b llama-3-8b").splitlines()
    (row,) = (line for line in lines if line.startswith("cache past windows"))
    assert row.split()[3:] == ["4.1", "kB", "131", "kB", "counted"]
    record = json.loads(out(capsys, "plan gemma-3-1b --json"))
    assert record["kv_cache_bytes_per_later_token"] == 4 * 2 * 256 * 2
    assert record["kv_cache_bytes_per_token"] == 26 * 2 * 256 * 2


CYCLE = 'layers.cycle=["local","local","local","local","local","default"]'


def test_windows_are_written_as_keys_or_as_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    mask = "layer_kinds.local.attention.mask"
    keys = f"{mask}.kind=window,{mask}.size=1024"
    table = f'{mask}={{kind="window",size=1024}}'
    words = ["plan", "llama-3-8b", f":{CYCLE},{keys}", f":{CYCLE},{table}", "--json"]
    assert main(words) == 0
    whole, *windowed = (
        record["cache_bytes_per_text"] for record in json.loads(capsys.readouterr().out)
    )
    assert len({*windowed}) == 1
    assert windowed[0] == whole * (5 * 8192 + 27 * 1024) / (32 * 8192)


def test_a_table_that_is_none_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    word = ":layer_kinds.local.attention.mask={kind=window,size=1024}"
    (line,) = error_lines(capsys, "plan", "llama-3-8b", word)
    assert line.startswith("model.layer_kinds.local.attention.mask: found")


def test_devices_are_those_of_a_usual_machine(capsys: pytest.CaptureFixture[str]) -> None:
    assert out(capsys, "plan modern --hardware m4-max").startswith("modern: 1 x Apple M4 Max")
    assert out(capsys, "plan modern --hardware h200").startswith("modern: 8 x NVIDIA H200")
    assert json.loads(out(capsys, "plan modern --hardware rtx-4090 --json"))["devices"] == 1


def test_what_fits_nowhere_says_how_far_was_looked(capsys: pytest.CaptureFixture[str]) -> None:
    words = "plan llama-3-405b --hardware rtx-4090 --devices 2 --context 8192 --batch 16384"
    text = out(capsys, words)
    assert re.search(
        "fits +no +estimated, nor on more devices with this batch, up to 131,072\n", text
    )


LATENT = (
    "attention.kind=latent,attention.query_rank=1536,attention.kv_rank=512,"
    "attention.nope_head_dim=128,attention.rope_head_dim=64,attention.value_head_dim=128"
)


def test_four_attentions_of_one_model(capsys: pytest.CaptureFixture[str]) -> None:
    """Numbers per token and layer in 16 bits: two for each key-value head and coordinate, or latent and rotary key."""
    words = (
        f"plan llama-3-70b :attention.num_kv_heads=64 :attention.num_kv_heads=1 :{LATENT} --json"
    )
    records = json.loads(out(capsys, words))
    per_layer = [record["kv_cache_bytes_per_token"] / 80 / 2 for record in records]
    assert per_layer == [2 * 8 * 128, 2 * 64 * 128, 2 * 128, 512 + 64]
    assert [record["name"] for record in records[:2]] == [
        "llama-3-70b",
        ":attention.num_kv_heads=64",
    ]


def test_json_has_the_documented_keys(capsys: pytest.CaptureFixture[str]) -> None:
    record = json.loads(out(capsys, "plan mixtral-8x7b optimizer.kind=muon --json"))
    text = (ROOT / "docs" / "planning.md").read_text("utf-8").partition("## `--json`")[2]
    documented = [
        key
        for line in text.splitlines()
        if line.startswith("| `")
        for key in re.findall(r"`(\w+)`", line.split("|")[1])
    ]
    assert documented == [*record]
    assert record["active_parameters"] < record["parameters"]
    assert sum(record["parameters_by_part"].values()) == record["parameters"]
    memory = record["training_memory_bytes_by_part"]
    assert sum(memory.values()) == pytest.approx(record["training_memory_bytes"])
    assert record["evidence"].keys() == record.keys() - {"evidence"}
    assert record["evidence"]["serving"] == "upper bound"


def test_a_model_that_sees_what_follows_writes_nothing(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = out(capsys, "plan bert-base")
    assert re.search(r"prefill +[0-9.]+M tokens/s", found)
    assert "decode" not in found
    assert "cache" not in found
    record = json.loads(out(capsys, "plan bert-base --json --html bert.html"))
    assert (record["kv_cache_bytes_per_token"], record["cache_bytes_per_text"]) == (None, None)
    assert record["operators"]["decode"] is None
    assert "In prefill, " in (place / "bert.html").read_text("utf-8")
    serving = record["serving"]
    assert serving["prefill_tokens_per_second"] > 0
    assert {key: serving[key] for key in serving if "decode" in key or key == "largest_batch"} == {
        "largest_batch": None,
        "decode_tokens_per_second": None,
        "decode_tokens_per_second_at_largest_batch": None,
    }


def test_a_model_that_does_not_fit_is_not_served(capsys: pytest.CaptureFixture[str]) -> None:
    words = "plan llama-3-70b --hardware rtx-4090 --devices 2 --batch 64k"
    assert re.search(r"serving +does not fit on 2 of these devices", out(capsys, words))


def test_a_model_with_an_encoder_reads_sources(capsys: pytest.CaptureFixture[str]) -> None:
    found = out(capsys, "plan t5-small")
    assert re.search(r"context +512 tokens +given\n +target +114 tokens +given", found)
    assert re.search(r"prefill +[0-9.]+M tokens/s +upper bound, one source", found)


def test_an_unknown_device_is_one_line_with_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    (line,) = error_lines(capsys, "plan", "modern", "--hardware", "h20")
    assert line.endswith('Did you mean "h200"?')


@pytest.fixture
def threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leaves the number of threads, and finds the machine quiet: other tests run next to these."""
    monkeypatch.setattr(torch, "set_num_threads", lambda number: None)
    monkeypatch.setattr(this_machine, "peak_of", lambda *_: Peak(1e11, quiet=True))


LITTLE = (
    "dim=32 num_layers=2 vocab_size=64 context_length=32 attention.num_heads=2 "
    "attention.num_kv_heads=1 batch_size=4 machine.precision=fp32 "
    "machine.kernel=eager machine.compile=none machine.threads=1"
)


def test_a_step_on_this_machine(
    place: Path, threads: None, capsys: pytest.CaptureFixture[str]
) -> None:
    text = out(capsys, f"plan modern {LITTLE} --hardware this --precision fp32")
    page, _, here = text.partition("\na step on this machine\n")
    for line in (
        r"memory bandwidth +\S+ [GT]B/s +measured",
        r"peak compute +\S+ \wFLOP/s +measured, fp32",
        r"step at 100 % MFU .+ lower bound, by measured peak compute",
        r"decode +\S.* upper bound, by measured rates: one sequence, after the context",
    ):
        assert re.search(line, page), line
    for line in (
        r"a step +4 sequences of 32 tokens +fp32\n",
        r"memory +\S+ MB +estimated, weights, gradients, optimizer and activations; \S+ GB are free\n",
        r"peak memory +\S+ [MG]B +measured, of the process\n",
        r"time of a step +\S+ m?s +measured, eager kernel\n",
        r"speed +\S+ tokens/s +measured\n",
        r"the training +\S.* estimated, \S+ tokens\n",
    ):
        assert re.search(line, here), line
    words = f"plan modern {LITTLE} --hardware this --precision fp32 --json --html this.html"
    record = json.loads(out(capsys, words))
    measured = {k: how for k, how in record["evidence"].items() if "measured rates" in how}
    assert measured == {
        "training": "estimated from measured rates",
        "serving": "upper bound from measured rates",
    }
    assert record["evidence"]["hardware"] == "measured"
    step = record["this_machine"]
    documented = (ROOT / "docs" / "planning.md").read_text("utf-8")
    assert all(f"`{key}`" in documented for key in step)
    assert (step["batch_size"], step["context"], step["precision"]) == (4, 32, "fp32")
    assert step["fits"] is True
    assert step["why_not_measured"] is None
    assert step["peak_memory_bytes"] > step["memory_bytes"] > 0
    assert step["tokens_per_second"] == pytest.approx(128 / step["step_seconds"])
    tokens = record["training"]["tokens"]
    assert step["training_seconds"] == pytest.approx(tokens / step["tokens_per_second"])
    html = (place / "this.html").read_text("utf-8")
    assert "A step on this machine" in html
    assert "time of a step" in html


def test_a_step_that_does_not_fit_is_said(
    threads: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With the tokens of --batch and --context."""
    monkeypatch.setattr("archwright.training.measured_step.free_memory", lambda device: 1_000_000)
    words = f"plan modern {LITTLE} --hardware this --precision fp32 --batch 64k --context 64"
    text = out(capsys, words)
    assert re.search(r"a step +1,000 sequences of 64 tokens", text)
    line = r"measured +no +does not fit: expected at most 800 kB, 80 % of the free memory\n"
    assert re.search(line, text)
    assert "peak memory" not in text
    step = json.loads(out(capsys, f"{words} --json"))["this_machine"]
    assert step["fits"] is False
    assert step["why_not_measured"].startswith("does not fit")
    assert step["memory_bytes"] > 800_000
    assert step["peak_memory_bytes"] is step["step_seconds"] is None


def test_a_run_that_cannot_be_trained_is_planned_with_a_warning(
    threads: None, capsys: pytest.CaptureFixture[str]
) -> None:
    words = f"plan modern {LITTLE} grad_accum_steps=5 --hardware this --precision fp32"
    assert main(words.split()) == 0
    printed = capsys.readouterr()
    assert "a step on this machine" not in printed.out
    assert "warning: no step was measured: grad_accum_steps: found 5" in printed.err


def test_a_run_is_planned_as_its_model(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = load_run("modern").override("model.dim=64", "model.vocab_size=512")
    RunFolder.create(place / "runs" / "new", model)
    record = json.loads(out(capsys, "plan runs/new --json"))
    assert (
        record["parameters"]
        == json.loads(out(capsys, "plan modern dim=64 vocab_size=512 --json"))["parameters"]
    )


def test_a_peak_next_to_other_work_is_called_that(
    threads: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(this_machine, "peak_of", lambda *_: Peak(1e11, quiet=False))
    monkeypatch.setattr(this_machine, "measure_bandwidth", lambda device: 1e10)
    monkeypatch.setattr("archwright.training.measured_step.free_memory", lambda device: 1_000_000)
    text = out(capsys, f"plan modern {LITTLE} --hardware this --precision bf16")
    assert re.search(r"peak compute +100 GFLOP/s +measured next to other work", text)


def test_this_machine_is_one_device(threads: None, capsys: pytest.CaptureFixture[str]) -> None:
    (line,) = error_lines(capsys, "plan", "modern", "--hardware", "this", "--devices", "4")
    assert line == "devices: found 4; expected 1 with --hardware this, which measures one machine"


def test_a_training_of_twenty_tokens_for_each_parameter(capsys: pytest.CaptureFixture[str]) -> None:
    words = "budget=20xparams data.tokenizer.kind=bytes batch_size=8 model.context_length=64"
    text = out(capsys, f"train modern --tiny data.text=none.txt {words} --dry-run")
    parameters = int(re.search(r"parameters +([\d,]+)\n", text)[1].replace(",", ""))  # type: ignore[index]
    steps = 20 * parameters // (8 * 64)
    assert re.search(rf"the run +{steps:,} steps, {steps * 512:,} tokens", text)
    assert re.search(r"text +none yet: .*none.txt", text)
    assert re.search(r"a step +8 sequences of 64 tokens", text)
    assert re.search(r"cache +\S+ \S+ a token, in 16 bits", text)


SIZES = {"kB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12}


@pytest.mark.parametrize(
    "change",
    ["batch_size=16", "batch_size=16 machine.loss=whole", "batch_size=64 grad_accum_steps=4"],
)
def test_a_dry_run_needs_no_less_than_the_least(
    change: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Both lines are of the rows that are read at once."""
    text = out(capsys, f"train llama-3.2-1b budget=100steps {change} --dry-run")
    found = re.findall(r"memory +(\S+) (\w+) at least|memory +(\S+) (\w+), estimated", text)
    (least, unit, *_), (*_, estimated, other_unit) = found
    assert 19.8e9 < float(least) * SIZES[unit] < float(estimated) * SIZES[other_unit]


def test_why_ways_do_not_fit(capsys: pytest.CaptureFixture[str]) -> None:
    words = "plan llama-3-8b --devices 64 --context 8192 --batch 256k"
    text = out(capsys, words)
    assert re.search(r"  DDP +full +1 x 1 .* no: few sequences\n", text)
    few = "Few sequences: 31.2 a step, less than a micro-batch for each data-parallel group."
    assert few in " ".join(text.split())
    ways = json.loads(out(capsys, f"{words} --json"))["ways"]
    assert {way["why_not"] for way in ways} == {None, "few sequences"}


def test_training_in_integers_is_not_planned(capsys: pytest.CaptureFixture[str]) -> None:
    text = out(capsys, "plan llama-3-8b --precision int8")
    assert re.search(r"precision +bf16 +training in int8 is not planned, only serving\n", text)
    assert "is not planned" not in out(capsys, "plan llama-3-8b --precision fp8")


def test_a_dry_run_wants_no_text(capsys: pytest.CaptureFixture[str]) -> None:
    text = out(capsys, "train modern --tiny budget=100steps --dry-run")
    assert "100 steps" in text
    assert text.endswith("Nothing was trained.\n")


def test_groups_of_devices_without_a_text_are_why_it_does_not_fit(
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = "plan llama-3-405b --devices 16384 --batch 16M --split tensor=8,pipeline=16,fsdp"
    assert main(words.split()) == 0
    assert "128 data-parallel groups for 122 sequences a step" in capsys.readouterr().out
