"""What goes wrong with sources, pairs and encoders, word for word, and what goes right."""

from pathlib import Path

import pytest

import archwright as aw
from archwright.cli import main
from archwright.spec.read import load_run
from tests.cli.typing_commands import error_lines
from tests.tiny import MACHINE, SHAPE, write_text

ENCODER = (
    *(
        "model.encoder.kind=stack",
        "model.encoder.num_layers=1",
        "model.cross_attention.kind=softmax",
    ),
    *("model.encoder.attention.num_heads=2", "model.encoder.attention.num_kv_heads=1"),
)
MODELS = {
    "decoder": ("data.text={text}",),
    "masked": (
        "data.text={text}",
        "model.attention.mask.kind=full",
        "objective.kind=masked_tokens",
    ),
    "pairs": ("data.pairs={pairs}", *ENCODER),
    "spans": ("data.text={text}", "objective.kind=span_corruption", *ENCODER),
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run of each kind, and files to ask about."""
    folder = tmp_path_factory.mktemp("runs")
    places = {"text": write_text(folder / "text.txt", 100), "pairs": folder / "pairs.tsv"}
    places["pairs"].write_text("".join(f"{a} {b}\t{b} {a}\n" for a in "abcde" for b in "fghij"))
    (folder / "half.tsv").write_text("a b\tb a\nonly a source\n")
    (folder / "half.jsonl").write_text('{"source": "a b"}\n')
    few = ("evaluate.max_tokens=50", "evaluate.final_max_tokens=50", "budget=1steps")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ARCHWRIGHT_CACHE", str(folder / "cache"))
        patch.setattr("archwright.training.finalize.stream", lambda *_, **__: iter([""]))
        for name, words in MODELS.items():
            own = [word.format(**places) for word in words]
            run = load_run("modern").override(*SHAPE, *MACHINE, *few, *own)
            aw.train(run, out=folder / name, quiet=True)
    return folder


@pytest.fixture(autouse=True)
def there(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(runs)


NO_ENCODER = "found one; the model has no encoder: give a prompt instead"
NO_SOURCE = "found none; expected a text for the model's encoder"
WRONG = {
    "generate decoder --source abc": f"--source: {NO_ENCODER}",
    "generate decoder --source-file text.txt": f"--source-file: source: {NO_ENCODER}",
    "generate pairs --prompt abc": f"--source: {NO_SOURCE}",
    "generate masked --prompt the": "model: found a mask with which tokens see later ones (Full), as in an encoder; "
    "expected a decoder or an encoder-decoder",
    "generate pairs --source a --source-file text.txt": "--source-file: given together with --source; "
    "expected one of them",
    "generate pairs --source-file none.txt": '--source-file: cannot read "none.txt": No such file or directory',
    "generate pairs --source a --num-beams 0": "--num-beams: found 0; expected 1 to 1,024",
    "generate pairs --source a --num-beams 3 --length-penalty nan": "--length-penalty: found nan; expected -10 to 10",
    "generate pairs --source a --num-beams 3 --length-penalty long": "--length-penalty: found \"long\"; expected a "
    "number. See archwright generate --help",
    "generate pairs --source a --early-stopping": "--early-stopping: found True with num_beams = 1, which ignores it; "
    "expected num_beams of 2 or more",
    "eval decoder --pairs pairs.tsv": "--pairs: decoder has a model without an encoder, which would read the sources; "
    "judge it on a text: --text",
    "eval pairs --pairs half.tsv": '--pairs: "half.tsv" line 2: found 1 column; expected a source, a tab and a target',
    "eval pairs --pairs half.jsonl": '--pairs: "half.jsonl" line 1: "target": found none; expected a text',
    "eval pairs --text text.txt": "--text: pairs was trained on pairs of a source and a target; leave it out to judge "
    "on held-out pairs, or give others: archwright eval pairs --pairs FILE",
    "eval pairs --pairs pairs.tsv --text text.txt": "--text: given together with --pairs; expected one of them",
    "eval pairs --pairs pairs.tsv --stride 4": "--stride: has no effect on --pairs, which are not cut "
    "into windows; leave it out",
    "eval pairs --answers": "--answers: expected --pairs, a file with the sources to answer",
    "eval pairs --pairs pairs.tsv --num-beams 2": "--num-beams: a setting of --answers; add --answers or leave it out",
    "train pairs objective.kind=span_corruption data.text=text.txt --out new": 'objective.sentinel: found '
    '"<extra_id_0>"; expected a special token of the tokenizer, or add it to data.tokenizer.special_tokens.',
    "train modern data.pairs=half.tsv model.encoder.kind=stack model.cross_attention.kind=softmax": 'data.pairs: '
    '"half.tsv" line 2: found 1 column; expected a source, a tab and a target',
    "train spans objective.kind=sequence_to_sequence data.text=text.txt": 'objective.kind: found '
    '"sequence_to_sequence", which reads pairs of a source and a target; expected data.pairs=FILE.tsv, '
    "data.pairs=FILE.jsonl or data.pairs=synthetic",
    "compare bert-base:data.tokenizer.vocab_size=300 bert-base:data.tokenizer.vocab_size=400 data.text=text.txt "
    "--dry-run": 'objective.kind: found "masked_tokens" where tokenizers differ; bits per byte, by which they are '
    'judged, are defined for "next_token"',
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("words", WRONG)
def test_a_mistake_is_one_clear_line(
    words: str, capsys: pytest.CaptureFixture[str], recwarn: pytest.WarningsRecorder
) -> None:
    assert error_lines(capsys, *words.split()) == [WRONG[words]]


def out(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(words) == 0
    return capsys.readouterr().out


@pytest.mark.slow
def test_each_line_of_a_file_is_answered_as_it_is_alone(
    runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = ["a f", "b g e", "", "c"]
    (runs / "sources.txt").write_bytes("\r\n".join(lines).encode() + b"\r\n")
    given = ("--max-new-tokens", "6", "--num-beams", "3")
    found = out(capsys, "generate", "pairs", "--source-file", "sources.txt", *given)
    alone = [out(capsys, "generate", "pairs", "--source", line, *given) for line in lines]
    assert found.split("\n")[:-1] == [" ".join(text[:-1].splitlines()) for text in alone]


@pytest.mark.slow
def test_pairs_of_a_file_are_judged(capsys: pytest.CaptureFixture[str]) -> None:
    found = out(capsys, "eval", "pairs", "--pairs", "pairs.tsv", "--answers", "--num-beams", "2")
    assert [line.split("  ")[0] for line in found.splitlines()] == [
        *("nats per predicted token", "perplexity", "text", "exact answers", "BLEU")
    ]
    assert out(capsys, "eval", "spans", "--pairs", "pairs.tsv").startswith("nats per predicted")
