"""Templates, secrets, and places of metrics."""

import json
import math
from pathlib import Path

import pytest

from archwright.lab.external.command import Template, masked
from archwright.lab.external.metric import Reading, metric_of
from archwright.spec.errors import UserError

ALL = "{variant} {seed} {out}"


def test_words_are_split_before_they_are_filled() -> None:
    template = Template(
        "python 'my train.py' --c={variant} --s {seed} --o {out} '{{{seed}}}' {{x}}"
    )
    filled = template.fill({"variant": "a b; rm *.yaml", "seed": 3, "out": "o"})
    assert filled == (
        *("python", "my train.py", "--c=a b; rm *.yaml", "--s", "3", "--o", "o", "{3}", "{x}"),
    )


def test_a_shell_gets_quoted_values() -> None:
    template = Template("echo {variant} {seed} > {out}/x; echo ${{HOME}}", shell=True)
    filled = template.fill({"variant": "a b", "seed": 3, "out": "o"})
    assert filled == ("/bin/sh", "-c", "echo 'a b' 3 > o/x; echo ${HOME}")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            f"x {ALL} {{sed}}",
            "found {sed}; expected one of {variant}, {seed}, {lr}, {steps}, {out}",
        ),
        (f"x {ALL} {{sed}}", 'Did you mean "seed"?'),
        ("x {variant} {seed}", "--command: found no {out}"),
        (f"x {ALL} 'open", "--command: No closing quotation"),
    ],
)
def test_refused_templates(text: str, words: str) -> None:
    with pytest.raises(UserError) as refusal:
        Template(text)
    assert words in str(refusal.value)
    assert len(refusal.value.lines) == 1


SECRETS = ("--hub-token s3", "--hub_token=s3", "WANDB_API_KEY=s3", "--password s3", "--apiKey s3")
OTHERS = ("--max-tokens 5", "--tokenizer x5", "--num-key-heads 5", "--monkey 5", "--key {seed}5")


@pytest.mark.parametrize("word", [*SECRETS, "-key=s3", "--client.secret s3", "--api-key 's3 4'"])
@pytest.mark.parametrize("shell", [True, False])
def test_secret_values_are_masked(word: str, shell: bool) -> None:
    text = f"env x {word} {ALL}"
    assert "s3" not in masked(text, Template(text, shell).words)


@pytest.mark.parametrize("word", OTHERS)
def test_other_values_are_not_masked(word: str) -> None:
    text = f"x {word} {ALL}"
    assert masked(text, Template(text).words) == text


def test_the_last_match_of_a_log_counts() -> None:
    log = "step 1 loss 3.5\nstep 2 loss 2.5\nnothing\nstep 3 loss nan\n"
    metric = metric_of(r"stdout:^step (?P<step>\d+) loss (?P<value>\S+)")
    readings = metric.readings(log, Path())
    assert readings[:2] == [Reading(1, None, 3.5), Reading(2, None, 2.5)]
    assert math.isnan(readings[-1].value)
    assert metric_of(r"stdout:loss (\S+)").readings("loss 1e-3", Path()) == [(None, None, 1e-3)]


def test_a_restart_replaces_later_steps(tmp_path: Path) -> None:
    lines = [{"step": s, "tokens": 10 * s, "v/l": v} for s, v in [(1, 9), (2, 8), (3, 7), (2, 6)]]
    text = "".join(json.dumps(line) + "\n" for line in [{"other": 1}, *lines]) + '{"torn'
    (tmp_path / "m.jsonl").write_text(text)
    readings = metric_of("jsonl:m.jsonl:v/l").readings("", tmp_path)
    assert readings == [(1, 10, 9.0), (2, 20, 6.0)]


def test_the_newest_file_of_a_glob_and_cells_without_a_value(tmp_path: Path) -> None:
    for version, loss in enumerate((5.0, 4.0)):
        path = tmp_path / f"version_{version}" / "metrics.csv"
        path.parent.mkdir()
        path.write_text(f"step,train_loss,val_loss\n1,6.0,\n2,,{loss}\n3,5.9,\n")
    metric = metric_of("csv:{out}/version_*/metrics.csv:val_loss")
    assert metric.readings("", tmp_path) == [(2, None, 4.0)]


@pytest.mark.parametrize(
    ("place", "words"),
    [
        ("stdout:loss", "found no group in loss"),
        ("stdout:(loss", "--metric: (loss: missing )"),
        (
            "json:a:b",
            'expected stdout:REGEX, jsonl:FILE:KEY or csv:FILE:COLUMN. Did you mean "jsonl"?',
        ),
        ("csv:/etc/x:y", "found /etc/x; expected a path inside {out}"),
        ("csv:../x:y", "found ../x; expected a path inside {out}"),
        (
            "jsonl:m.jsonl:val_los",
            'm.jsonl has no val_los; found step, val_loss. Did you mean "val_loss"?',
        ),
        ("jsonl:n.jsonl:val_loss", "has no file n.jsonl"),
        (r"stdout:step (\S+)", "no line of the log matches"),
    ],
)
def test_refused_metrics(place: str, words: str, tmp_path: Path) -> None:
    (tmp_path / "m.jsonl").write_text('{"step": 1, "val_loss": 3}\n')
    with pytest.raises(UserError) as refusal:
        metric_of(place).readings("", tmp_path)
    assert words in str(refusal.value)
    assert len(refusal.value.lines) == 1
