"""Evaluations by transformers and by lm_eval of an exported folder equal ours."""

import json
import math
import re
from pathlib import Path
from typing import Any

import pytest
import torch

import archwright as aw
from archwright import checkpoint
from archwright.cli.main import main
from archwright.hf import export_run
from archwright.spec.errors import UserError
from tests.tiny import tiny_run, write_text

transformers = pytest.importorskip("transformers")

FEW = ("budget=3steps", "evaluate.max_tokens=50", "evaluate.final_max_tokens=50")
MODELS = {
    "llama": ("data.tokenizer.kind=bpe", "data.tokenizer.vocab_size=300"),
    "gpt2": (
        *("model.position.kind=learned", "model.norm.kind=layer", "model.norm.bias=true"),
        *("model.attention.num_kv_heads=auto", "model.attention.bias=true", "model.head.tied=true"),
        *("model.feedforward.kind=gelu", "model.feedforward.approximate=tanh"),
        "model.feedforward.bias=true",
    ),
}
SAMPLES = ("one", "the model of an attention head and its residual norm", "", "key to query " * 4)
CHOICES = (("", 0), ("the layer", 1), ("the norm and " * 8, 2))
TASKS = {
    "rolling": """
output_type: loglikelihood_rolling
doc_to_text: ""
doc_to_target: "{{text}}"
metric_list: [{metric: word_perplexity}, {metric: byte_perplexity}, {metric: bits_per_byte}]
""",
    "choice": """
output_type: multiple_choice
doc_to_text: "{{text}}"
doc_to_target: "{{answer}}"
doc_to_choice: [" head", " value of it", " and "]
metric_list: [{metric: acc}, {metric: acc_norm}]
""",
    "writing": """
output_type: generate_until
doc_to_text: "{{text}}"
doc_to_target: "x"
generation_kwargs: {until: ["q"], max_gen_toks: 12, do_sample: false}
metric_list: [{metric: exact_match}]
""",
}


@pytest.fixture(scope="module", params=MODELS)
def exported(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run, its export, a text, and tasks."""
    folder = tmp_path_factory.mktemp(request.param)
    text = write_text(folder / "text.txt", 60)
    spec = tiny_run(text, *FEW, *MODELS[request.param])
    run = aw.train(spec, out=folder / "run", quiet=True)
    with torch.no_grad():  # sure of itself, so that mistakes show
        for parameter in run.model.parameters():
            parameter.mul_(1.5)
    metadata = checkpoint.read_metadata(run.folder.model_file)
    checkpoint.write_model(run.folder.model_file, run.model, metadata)
    export_run(folder / "run", folder / "export")
    return folder


@pytest.fixture
def tasks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of three tasks with their examples."""
    pytest.importorskip("lm_eval")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("HF_DATASETS_OFFLINE", "1")
    examples = {
        "rolling": [{"text": text} for text in SAMPLES if text],
        "choice": [{"text": text, "answer": answer} for text, answer in CHOICES],
        "writing": [{"text": text} for text in SAMPLES if text],
    }
    for name, lines in examples.items():
        data = tmp_path / f"{name}.jsonl"
        data.write_text("".join(json.dumps(line) + "\n" for line in lines))
        (tmp_path / f"{name}.yaml").write_text(
            f"task: aw_{name}\ndataset_path: json\ntest_split: train\n"
            f"dataset_kwargs: {{data_files: {data}}}\n{TASKS[name]}"
        )
    return tmp_path


def scored(folder: Path, tasks: Path, names: list[str], **settings: Any) -> dict[str, Any]:
    """Return lm_eval's results of its own class for an exported folder."""
    from lm_eval import simple_evaluate
    from lm_eval.tasks import TaskManager

    results = simple_evaluate(
        "hf",
        {"pretrained": str(folder / "export"), "dtype": "float32", **settings},
        tasks=names,
        device="cpu",
        batch_size=2,
        task_manager=TaskManager(include_path=str(tasks)),
    )
    return dict(results)


def test_perplexity_is_that_of_transformers(exported: Path, tmp_path: Path) -> None:
    """Windows of the context after end-of-text, as in the library's page on perplexity, and documents of any length."""
    model = transformers.AutoModelForCausalLM.from_pretrained(exported / "export").eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(exported / "export")
    context, stride = model.config.max_position_embeddings, 8
    texts = [text for text in SAMPLES if text]
    for i, text in enumerate(texts):
        (tmp_path / f"{i}.txt").write_text(text)
    nats = number = 0.0
    for text in texts:
        ids = tokenizer(text, return_tensors="pt", verbose=False).input_ids  # [1, length]
        assert ids[0, 0] == tokenizer.bos_token_id
        seen = 1
        for start in range(0, ids.shape[1], stride):
            stop = min(start + context + 1, ids.shape[1])
            window = ids[:, max(0, stop - context - 1) : stop]
            labels = window[:, 1:].clone()
            labels[:, : labels.shape[1] - (stop - seen)] = -100
            with torch.no_grad():
                logits = model(window[:, :-1]).logits
            loss = torch.nn.functional.cross_entropy(logits[0], labels[0], reduction="sum")
            nats, number, seen = nats + loss.item(), number + stop - seen, stop
            if stop == ids.shape[1]:
                break
    expected = math.exp(nats / number)
    for run in (exported / "run", exported / "export"):
        found = aw.evaluate_text(run, str(tmp_path), stride=stride)
        assert found.num_tokens == number
        assert found.perplexity == pytest.approx(expected, rel=1e-5)


def test_reading_an_export_leaves_nothing(exported: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in (exported / "export").rglob("*")}
    aw.evaluate_text(exported / "export", str(exported / "text.txt"))
    assert {path: path.stat().st_mtime_ns for path in (exported / "export").rglob("*")} == before


def test_an_export_without_a_tokenizer(exported: Path, tmp_path: Path) -> None:
    for file in (exported / "export").iterdir():
        if not file.name.startswith("token"):
            (tmp_path / file.name).write_bytes(file.read_bytes())
    with pytest.raises(
        UserError, match=f"^{tmp_path}: found no tokenizer; expected tokenizer.json"
    ):
        aw.evaluate_text(tmp_path, str(exported / "text.txt"))


@pytest.mark.parametrize("folder", ["run", "export"])
def test_lm_eval_scores_a_run_as_its_export(folder: str, exported: Path, tasks: Path) -> None:
    from archwright.training.harness import evaluate_tasks

    names = [f"aw_{name}" for name in TASKS]
    ours = evaluate_tasks(exported / folder, names, include_path=str(tasks))
    theirs = scored(exported, tasks, names)
    for name in names:
        for sample, other in zip(ours["samples"][name], theirs["samples"][name], strict=True):
            assert sample["doc"] == other["doc"]
            for (found,), (expected,) in zip(sample["resps"], other["resps"], strict=True):
                if name == "aw_writing":
                    assert found == expected
                elif name == "aw_rolling":
                    assert found == pytest.approx(expected, rel=1e-5)
                else:
                    assert found[0] == pytest.approx(expected[0], rel=1e-5)
                    assert found[1] == expected[1]
        for metric, value in theirs["results"][name].items():
            if isinstance(value, float):
                assert ours["results"][name][metric] == pytest.approx(value, rel=1e-5)


def test_bits_per_byte_are_those_of_lm_eval(exported: Path, tasks: Path, tmp_path: Path) -> None:
    """Its windows start a context apart. Without add_bos_token=False, it also counts the first token of a text."""
    folder = tmp_path / "texts"
    folder.mkdir()
    for i, text in enumerate(SAMPLES):
        if text:
            (folder / f"{i}.txt").write_text(text)
    context = aw.open_run(exported / "run").spec.model.context_length
    found = aw.evaluate_text(exported / "run", str(folder), stride=context)
    results = scored(exported, tasks, ["aw_rolling"], add_bos_token=False)["results"]["aw_rolling"]
    assert results["bits_per_byte,none"] == pytest.approx(found.bits_per_byte, rel=1e-5)
    assert found.bits_per_byte is not None
    assert results["byte_perplexity,none"] == pytest.approx(2**found.bits_per_byte, rel=1e-5)
    nats = found.bits_per_byte * found.num_bytes * math.log(2)
    words = sum(len(re.split(r"\s+", text)) for text in SAMPLES if text)  # as lm_eval counts
    ours = math.exp(nats / words)
    assert results["word_perplexity,none"] == pytest.approx(ours, rel=1e-4)


def test_the_command_prints_the_table(
    exported: Path, tasks: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["eval", str(exported / "run"), "--include-path", str(tasks), "--tasks"]
    assert main([*words, "aw_choice", "--limit", "2"]) == 0
    assert "|aw_choice|" in capsys.readouterr().out.replace(" ", "")
    assert main([*words, "aw_choise"]) == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert (
        error == 'archwright: --tasks: lm_eval has no task "aw_choise". Did you mean "aw_choice"?'
    )
    assert main([*words[:2], "--tasks", "aw_choice", "--include-path", "nowhere"]) == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert error.startswith('archwright: --include-path: no folder "nowhere"; expected one')
