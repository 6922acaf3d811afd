"""What a user gets wrong: one clear line for each mistake, exit code 2, and nothing made or lost."""

import os
import sys
from pathlib import Path

import pytest

from archwright.runs import RunFolder
from tests.cli.typing_commands import contents, said
from tests.tiny import MACHINE, SHAPE, archwright

TRAIN = f"train modern data.text=notes.txt {' '.join((*SHAPE, *MACHINE))} budget=3steps"
BUDGET = 'expected an amount with a unit, such as "3m", "400steps", "10Mtokens" or "1e15flops"'
NORMS = 'expected one of "layer", "none", "rms"'
MISTAKES: dict[str, list[str]] = {
    # verbs, options and names
    "trian demo": [
        '"trian": no such verb; there are train, compare, generate, eval, import, export, '
        'verify, profile, report, list, show, diff, cache, schema, check. Did you mean "train"?'
    ],
    "train": ["train what? Name a recipe, a model or a TOML file, such as: archwright train demo"],
    "train model.dim=64": [
        'train what? "model.dim=64" sets a value; name a recipe or model before it'
    ],
    "train notes.txt": [
        'train what? "notes.txt" is a text; name a model before it: '
        "archwright train modern data.text=notes.txt"
    ],
    "train modren": [
        '"modren": no such preset; see archwright list, or give a file ending in .toml. '
        'Did you mean "modern"?'
    ],
    "train none.toml": ["none.toml: no such file"],
    "train modern --budget 3m": [
        "--budget 3m: no such option; values are set as key=value, without dashes. "
        "See archwright train --help"
    ],
    "generate runs/demo --num-tokens 5": [
        '--num-tokens 5: no such option. Did you mean "--max-tokens"? See archwright generate --help'
    ],
    "generate runs/demo --max-token 5": [
        '--max-token 5: no such option. Did you mean "--max-tokens"? See archwright generate --help'
    ],
    "report runs/a runs/b": ["runs/b: more words than archwright report takes. See archwright report --help"],
    "profile modern --batch-size 99999999999999": [
        "--batch-size: found 99999999999999; expected 1 to 1,073,741,824"
    ],
    "compare modern textbook --lengths 0": ["lengths: found 0; expected at least 1"],
    "show modern model.norm.kind=layer": ['model.norm.kind: unknown key. Did you mean "norm.kind"?'],
    "train modern name=../../mine": [
        'name: found "../../mine"; expected a name without .., as the folder is runs/<name>'
    ],
    "train modern data.text=notes.txt machine.threads=4000": [
        f"machine.threads: found 4000; expected at most {4 * (os.cpu_count() or 1)}, 4 for each core "
        "of this machine"
    ],
    "train modern data.text=notes.txt init.from=nowhere": [
        "init.from: nowhere is no folder; expected a run folder or one with model.safetensors"
    ],
    "train modern --resume runs/demo": [
        "--resume takes the run as it was begun: leave out other words, --out, --tiny and --dry-run"
    ],
    "list choises": [
        'list "choises": expected one of models, recipes, studies, choices, families, runs. Did you mean "choices"?'
    ],
    "list runs --wide": ["list runs: --wide and --format are for models; leave them out, or list models"],
    **{
        f"{words} reka-flash": [
            '"reka-flash": its architecture is unpublished, so there is nothing to build: its report names '
            "the choices of its decoder of text, and neither its width nor its depth nor where its norms stand "
            "(Reka Team, 2024, Reka Core, Flash, and Edge: A Series of Powerful Multimodal Language Models, "
            "section 2)"
        ]
        for words in ("show", "train", "compare modern", "diff modern", "profile")
    },
    "show": ["the following arguments are required: MODEL. See archwright show --help"],
    "show demo": [
        '"demo" is a recipe, not a model; see it with: archwright train demo --dry-run'
    ],
    "diff modern textbok": [
        '"textbok": no such preset; see archwright list, or give a file ending in .toml. '
        'Did you mean "textbook"?'
    ],
    "schema models": ['schema "models": expected one of model, run, study. Did you mean "model"?'],
    # keys and values
    "train modern dim=256": ['dim: unknown key. Did you mean "model.dim"?'],
    "train modern optimiser.lr=1": [
        'optimiser.lr: unknown key. Did you mean "optimizer.lr"?'
    ],
    "train modern model.norm.kind=rsm": [
        f'model.norm.kind: found "rsm"; {NORMS}. Did you mean "rms"?'
    ],
    "train modern model.dim=big": ['model.dim: found "big"; expected a whole number'],
    "train modern model.dim=2.5": ["model.dim: found 2.5; expected a whole number"],
    "train modern model.dim=-8": ["model.dim: found -8; expected at least 1"],
    "train modern model.dim=64 model.dim=128": ["model.dim: given twice, as 64 and as 128"],
    "train modern batch_size=0": ["batch_size: found 0; expected at least 1"],
    "train modern budget=3": [f"budget: found 3; {BUDGET}"],
    "train modern budget=soon": [f'budget: found "soon"; {BUDGET}'],
    "train modern words": ['"words": expected key=value, such as model.dim=256'],
    "train modern modle.dim=2 batch_size=two seed=-1 budget=forever": [
        'modle.dim: unknown key. Did you mean "model.dim"?',
        'batch_size: found "two"; expected a whole number',
        f'budget: found "forever"; {BUDGET}',
        "seed: found -1; expected at least 0",
    ],
    # shapes and sizes
    "train modern model.dim=100 model.attention.num_heads=8 model.attention.num_kv_heads=3": [
        "model.attention.num_kv_heads: found 3; expected a divisor of num_heads = 8",
        "model.attention.num_heads: found 8; expected a divisor of dim = 100, or a given "
        "attention.head_dim",
    ],
    "train modern grad_accum_steps=99": [
        "grad_accum_steps: found 99; expected at most batch_size = 16, as each part of a batch needs a row"
    ],
    f"{TRAIN} model.vocab_size=128": [
        "model.vocab_size: found 128; expected at least 257, the size of the tokenizer, or \"auto\""
    ],
    # files of specs
    "train broken.toml": ["broken.toml: not TOML: Invalid value (at line 1, column 7)"],
    "check wrong.toml broken.toml latin.toml shape.toml run.toml": [
        "wrong.toml: num_layres: unknown option; accepted: norm, residual, position, attention, "
        "feedforward, num_layers, layer_kinds, layers, name, source, sources, dim, vocab_size, "
        'context_length, embedding, head, init, encoder. Did you mean "num_layers"?',
        f'wrong.toml: norm.kind: found "rsm"; {NORMS}. Did you mean "rms"?',
        'wrong.toml: attention.num_heads: found 0; expected at least 1 or "auto"',
        'wrong.toml: dim: found "wide"; expected a whole number',
        "broken.toml: not TOML: Invalid value (at line 1, column 7)",
        "latin.toml: not UTF-8 at byte 11; expected a TOML file",
        "shape.toml: attention.num_kv_heads: found 3; expected a divisor of num_heads = 8",
        "shape.toml: attention.num_heads: found 8; expected a divisor of dim = 100, or a given "
        "attention.head_dim",
        "run.toml: batch_size: found 0; expected at least 1",
        f'run.toml: budget: found "soon"; {BUDGET}',
        'run.toml: optimizer.kind: found "adam"; expected one of "adamw", "muon". '
        'Did you mean "adamw"?',
    ],
    # texts
    "train modern data.text=note.txt": [
        'data.text: no file or folder "note.txt". Did you mean "notes.txt"?'
    ],
    "train modern data.text=picture.png": [
        'data.text: "picture.png" is a binary file (a zero at byte 8). Give a text file in UTF-8.'
    ],
    "train modern data.text=utf16.txt": [
        'data.text: "utf16.txt" is UTF-16, not UTF-8. Give a text file in UTF-8.'
    ],
    "train modern data.text=latin.txt": [
        'data.text: "latin.txt" is not UTF-8 at byte 7 (0xe9). Convert it, or set '
        "data.errors=replace to read such bytes as \ufffd."
    ],
    "train modern data.text=empty.txt": ["data.text: there is no text; every file is empty."],
    "train modern data.text=tiny.txt data.tokenizer.kind=bytes": [
        "data.text: the text is too short: 257 tokens are needed (model.context_length + 1), there "
        "are 10. Give more text, or set model.context_length to 9 or less."
    ],
    "train modern data.text=*.md": [
        'data.text: no file found in "*.md". Name a file, a folder or a glob with text.'
    ],
    "train modern data.text=['a.txt','b.txt']": [
        'data.text: no file or folder "a.txt".',
        'data.text: no file or folder "b.txt".',
    ],
    "train modern data.text=field.jsonl": [
        'data.text: "field.jsonl" line 1: no field "text" (found "body"). Set data.field.'
    ],
    "train modern data.text=broken.jsonl": [
        'data.text: "broken.jsonl" line 2 is not JSON: Expecting value at column 10.'
    ],
    # tokenizers
    "train modern data.text=notes.txt data.tokenizer.kind=file": [
        'data.tokenizer.path: found nothing; data.tokenizer.kind = "file" expects the path of a '
        "tokenizer.json"
    ],
    "train modern data.text=notes.txt data.tokenizer.kind=file data.tokenizer.path=tik.json": [
        'data.tokenizer.path: there is no file "tik.json". Did you mean "tok.json"?'
    ],
    "train modern data.text=notes.txt data.tokenizer.kind=file data.tokenizer.path=tok.json": [
        '"tok.json" is not a tokenizer.json: it has no model with a vocabulary.'
    ],
    "train modern data.text=notes.txt data.tokenizer.path=tok.json": [
        'data.tokenizer.path: given beside data.tokenizer.kind = "bpe", which reads no file; '
        'expected kind = "file"'
    ],
    # machines
    f"{TRAIN} machine.device=gpu": [
        'machine.device: found "gpu"; expected "auto", "cpu" or "cuda"'
    ],
    f"{TRAIN.replace('precision=fp32', 'precision=fp16')} machine.device=cpu": [
        'machine.precision: found "fp16", which needs a GPU; expected "bf16" or "fp32"'
    ],
    # folders
    "train --resume runs/none": [
        "runs/none is not a run folder: it has no spec.toml."
    ],
    f"{TRAIN} --out notes.txt": ["notes.txt is a file; --out must name a folder."],
    f"{TRAIN} --out .": [
        ". is not a run folder and not empty: it holds broken.jsonl and 18 more. "
        "Give --out a new or empty folder."
    ],
    f"{TRAIN} init.from=runs/base": [
        "init.from: runs/base is no folder; expected a run folder or one with model.safetensors"
    ],
    "generate notes.txt": ["notes.txt is not a run folder: it has no spec.toml."],
    # comparisons
    "compare": [
        "compare what? Name two models or more, or a study, such as: archwright compare textbook modern"
    ],
    "compare norm-knd": [
        'compare "norm-knd" with what? Name a second model, or one of the studies activation, depth-width, '
        'kv-heads, norm-kind, norm-placement, positions, ten-choices, textbook-to-modern. Did you mean "norm-kind"?'
    ],
    "compare norm-kind modern": [
        '"norm-kind" is a study, which names its variants itself; leave out the others'
    ],
    "compare modern modren": [
        '"modren": no such preset; see archwright list, or give a file ending in .toml. '
        'Did you mean "modern"?'
    ],
    "compare modern modern": ['"modern" is named twice; there is nothing to compare'],
    "compare modern modern:norm.kind=rms": [
        '"modern:norm.kind=rms" and "modern" are the same model, trained alike; there is nothing to compare'
    ],
    "compare modern :nrom.kind=layer": [
        'nrom.kind=layer: model.nrom.kind: unknown key. Did you mean "model.norm.kind"?'
    ],
    "compare modern :batch_size=4": [
        "batch_size=4: batch_size: 16 -> 4: all variants are trained and judged alike in this; say it once "
        "for all, batch_size=..., as a word of its own"
    ],
    "compare modern textbook --budget 10": [
        'budget: found 10; expected wall time for all runs, such as "10m", or steps or tokens for each, '
        'such as "400steps" or "2Mtokens"'
    ],
    "compare modern textbook --lengths 2,x": [
        'lengths: found "2,x"; expected whole numbers, such as 2,4'
    ],
    "compare modern textbook --seeds 1": ["seeds: found 1; expected at least 2"],
    "compare modern textbook data.text=notes.txt data.tokenizer.kind=bytes": [
        "data.text: 720 tokens are held out to judge on; expected at least 8,192: give more text, or other "
        "text to judge on with data.held_out=FILE"
    ],
    # choices from outside
    "train modern --parts none.py": [
        "--parts none.py: cannot be read: No such file or directory"
    ],
    "train modern --parts raises.py": [
        "--parts raises.py, line 3: ZeroDivisionError: division by zero"
    ],
    "train modern --parts syntax.py": ["--parts syntax.py, line 1: SyntaxError: invalid syntax"],
    "list choices --parts clash.py": [
        '--parts clash.py, line 3: ValueError: norm.kind = "rms" is taken by '
        "archwright.spec.norms.RMSNorm; give Mine another kind"
    ],
    "train modern --parts partless.py": [
        "--parts partless.py: Mine has no part; end the file with archwright.register(Mine, ...) "
        "and the module that computes it"
    ],
    "check wrong.toml --parts choiceless.py --parts none.py": [
        "--parts choiceless.py: no choice is in it; see CONTRIBUTING.md, Adding a choice",
        "--parts none.py: cannot be read: No such file or directory",
    ],
}  # fmt: skip


@pytest.mark.usefixtures("visitors")
@pytest.mark.parametrize("words", MISTAKES)
def test_a_mistake(words: str, files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = contents(files)
    assert said(capsys, *words.split()) == MISTAKES[words]
    assert contents(files) == before


@pytest.mark.skipif(
    "torch" in sys.modules and __import__("torch").cuda.is_available(), reason="GPU"
)
def test_a_gpu_that_is_not_here(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (line,) = said(capsys, *f"{TRAIN} machine.device=cuda".split())
    assert line == 'machine.device: found "cuda"; expected "cpu", as no CUDA device is usable here'


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ("batch_size=100000000", "batch_size: a step needs at least "),
        ("model.dim=1000000", "model: "),
    ],
)
def test_what_does_not_fit_into_memory(
    change: str, line: str, files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [w for w in TRAIN.split() if w.partition("=")[0] != change.partition("=")[0]]
    found = [x for x in said(capsys, *words, change) if not x.startswith("warning: ")]
    assert len(found) == 1
    assert found[0].startswith(line)
    assert "this machine has" in found[0]
    assert not (files / "runs").exists()


def test_the_process_ends_with_2_and_lines_on_standard_error(files: Path) -> None:
    done = archwright("train", "modern", "data.text=note.txt", "--out", "here", cwd=files)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr == (
        'archwright: data.text: no file or folder "note.txt". Did you mean "notes.txt"?\n'
    )


def test_the_corrected_command_works(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing that a mistake leaves is in its way."""
    assert said(capsys, *TRAIN.replace("notes.txt", "note.txt").split())
    assert not (files / "runs").exists()
    assert said(capsys, *TRAIN.split(), "--quiet", code=0) == []
    assert RunFolder.open("runs/modern").finished
