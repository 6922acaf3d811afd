"""`archwright generate`: files of prompts, JSON, samples, conversations, pipes and Ctrl-C."""

import io
import json
import os
import shutil
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

import archwright as aw
from archwright.cli import main
from archwright.hf import export_run
from tests.cli.typing_commands import error_lines
from tests.tiny import command, surroundings, tiny_run, write_text

TEMPLATE = "{% for m in messages %}[{{ m.role }}] {{ m.content }}\n{% endfor %}[assistant] "
FEW = ("--max-new-tokens", "6")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with a chat template."""
    folder = tmp_path_factory.mktemp("runs")
    text = write_text(folder / "text.txt", 100)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ARCHWRIGHT_CACHE", str(folder / "cache"))
        patch.setattr("archwright.training.finalize.stream", lambda *_, **__: iter([""]))
        few = (
            "budget=3steps",
            "model.context_length=128",
            "evaluate.max_tokens=50",
            "evaluate.final_max_tokens=50",
        )
        aw.train(tiny_run(text, *few), out=folder / "run", quiet=True)
    (folder / "run" / "tokenizer" / "chat_template.jinja").write_text(TEMPLATE)
    return folder / "run"


def typed(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """Type a command that succeeds; return its output."""
    assert main(["generate", *words]) == 0
    return capsys.readouterr().out


def objects(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def test_a_file_of_prompts(run: Path, place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (place / "prompts.txt").write_text("the\n\nmodel of\n", "utf-8")
    expected = aw.generate(run, ["the", "", "model of"], max_new_tokens=6)
    words = (str(run), "--prompt-file", "prompts.txt", *FEW)
    found = objects(typed(capsys, *words, "--json"))
    assert [each["text"] for each in found] == [each.text for each in expected]
    assert found[2] == {
        "prompt": "model of",
        "text": expected[2].text,
        "finish_reason": "length",
        "num_prompt_tokens": 9,
        "num_new_tokens": 6,
        "tokens": expected[2].tokens,
    }
    plain = typed(capsys, *words)
    assert [line for line in plain.splitlines() if line.startswith("---")] == [
        f"--- {i} of 3 ---" for i in (1, 2, 3)
    ]


def test_an_export_writes_what_its_run_writes(
    run: Path, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.warns(UserWarning, match="training read"):  # because of the template
        export_run(run, "export")
    words = ("--prompt", "the", *FEW)
    text = typed(capsys, str(run), *words)
    assert (
        typed(capsys, "export", *words)
        == text
        == f"{aw.generate('export', 'the', max_new_tokens=6)}\n"
    )


def test_guessed_tokens_change_no_text(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = (str(run), "--prompt", "the model", "--max-new-tokens", "150")
    greedy = typed(capsys, *words, "--temperature", "0", "--json")
    assert typed(capsys, *words, "--temperature", "0", "--json", "--lookup", "4") == greedy
    (line,) = error_lines(capsys, "generate", *words, "--lookup", "4")
    assert line.startswith("--lookup: found 4, which guesses greedy text only;")


def test_lines_of_json_have_settings(
    run: Path, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Those of the options are the defaults."""
    lines = [
        {"prompt": "the", "temperature": 0, "max_new_tokens": 4},
        {"prompt": "of", "num_samples": 2},
        {"messages": [{"role": "user", "content": "hi"}]},
    ]
    (place / "p.jsonl").write_text("\n\n".join(map(json.dumps, lines)) + "\n")
    found = objects(
        typed(capsys, str(run), "--prompt-file", "p.jsonl", "--json", *FEW, "--seed", "5")
    )
    greedy = aw.generate(run, "the", temperature=0.0, max_new_tokens=4)
    samples = aw.generate(run, "of", num_samples=2, seed=5, max_new_tokens=6)
    answer = aw.generate(run, [{"role": "user", "content": "hi"}], seed=5, max_new_tokens=6)
    assert [each["tokens"] for each in found] == [
        each.tokens for each in (greedy, *samples, answer)
    ]
    assert found[3]["messages"] == answer.prompt
    assert "prompt" not in found[3]


def test_samples_and_runs(run: Path, place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copytree(run, place / "other")
    out = typed(capsys, str(run), "other", "--prompt", "the", "-n", "2", *FEW)
    heads = [line for line in out.splitlines() if line[:3] in ("===", "---")]
    assert heads == [
        *(f"=== {run} ===", "--- 1 of 2 ---", "--- 2 of 2 ---"),
        *("=== other ===", "--- 1 of 2 ---", "--- 2 of 2 ---"),
    ]
    found = objects(typed(capsys, str(run), "other", "--prompt", "the", "--json", *FEW))
    assert [each.pop("run") for each in found] == [str(run), "other"]
    assert found[0] == found[1]


def test_the_speed_goes_to_standard_error(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["generate", str(run), "--prompt", "the", *FEW]) == 0
    out, err = capsys.readouterr()
    assert "tokens/s" not in out
    assert err.startswith("prompt tokens: 4 in ")
    assert "; new tokens: 5 in " in err
    assert main(["generate", str(run), "--prompt", "the", *FEW, "--quiet"]) == 0
    assert capsys.readouterr() == (out, "")


def test_an_answer_by_the_chat_template(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = typed(capsys, str(run), "--chat", "--system", "Be brief.", "--prompt", "Hi", *FEW)
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]
    answer = aw.generate(run, messages, max_new_tokens=6)
    assert out == f"{answer.text}\n"
    plain = aw.generate(run, "[system] Be brief.\n[user] Hi\n[assistant] ", max_new_tokens=6)
    assert answer.num_prompt_tokens == plain.num_prompt_tokens - 1  # no begin-of-text


def test_a_conversation(
    run: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("Hi\nAnd then?\n"))
    out = typed(capsys, str(run), "--chat", "-i", *FEW)
    messages = [{"role": "user", "content": "Hi"}]
    first = aw.generate(run, messages, max_new_tokens=6)
    messages += [
        {"role": "assistant", "content": first.text},
        {"role": "user", "content": "And then?"},
    ]
    second = aw.generate(run, messages, max_new_tokens=6, seed=1)
    assert out == f"{first.text}\n{second.text}\n"


def test_weights_of_few_bits_and_a_dtype(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for words in (("--weights", "int8"), ("--dtype", "bfloat16", "--device", "auto")):
        out = typed(capsys, str(run), "--prompt", "the", *FEW, *words)
        assert out.startswith("the")
        assert out != "the\n"


MISTAKES = {
    "--prompt a --prompt-file b": "--prompt-file: given together with --prompt; expected one of them",
    "-i --json": "--interactive: given together with --json; expected one of them",
    "-i -n 2": "--interactive: given together with --num-samples; expected one of them",
    "--chat --source x": "--chat: given together with --source; expected one of them",
    "--system x": "--system: found without --chat, of which it is a part; add --chat",
    "--num-beams 2 -n 3": "--num-samples: found 3 with num_beams = 2, which draws nothing; expected one of them",
    "-n 0": "--num-samples: found 0; expected 1 to 1,024",
    "--batch-size 0": "--batch-size: found 0; expected 1 or more",
    "--stop=": "--stop: found ''; expected a text of one character or more",
    "--min-p 2": "--min-p: found 2.0; expected 0 (all) to 1",
    "--device tpu": '--device: found "tpu"; expected auto, cpu, cuda or cuda:N. Did you mean "cpu"?',
    "--weights int2": '--weights: found "int2"; expected one of int8, int4. Did you mean "int8"? '
    "See archwright generate --help",
    "hello": "hello: there is no such run. Did you mean --prompt hello?",
    "--prompt-file none.txt": '--prompt-file: cannot read "none.txt": No such file or directory',
    "--prompt-file empty.txt": '--prompt-file: "empty.txt" is empty; expected a prompt in each line',
}


@pytest.mark.parametrize("words", MISTAKES)
def test_mistakes(words: str, run: Path, place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (place / "empty.txt").write_text("")
    assert error_lines(capsys, "generate", str(run), *words.split()) == [MISTAKES[words]]


LINES = {
    '{"prompt": "a"': "not JSON: Expecting ',' delimiter: line 1 column 15 (char 14)",
    "[1]": "found list; expected a JSON object",
    '{"prompt": "a", "temprature": 1}': 'temprature: unknown key. Did you mean "temperature"?',
    '{"prompt": 3}': "prompt: found 3; expected a text",
    '{"messages": "a"}': "messages: found 'a'; expected a list",
    '{"messages": [1]}': 'messages: found [1]; expected objects with "role" and "content"',
    '{"prompt": "a", "top_k": -1}': "top_k: found -1; expected 0 (all) or more",
    '{"prompt": "a", "num_samples": "3"}': "num_samples: found '3'; expected a whole number",
}


@pytest.mark.parametrize("line", LINES)
def test_mistakes_in_lines(
    line: str, run: Path, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (place / "p.jsonl").write_text('{"prompt": "the"}\n' + line + "\n")
    lines = error_lines(capsys, "generate", str(run), "--prompt-file", "p.jsonl")
    assert lines == [f"p.jsonl, line 2: {LINES[line]}"]


@pytest.mark.skipif(os.name == "nt", reason="needs POSIX pipes and signals")
def test_a_closed_pipe_and_ctrl_c(run: Path) -> None:
    """No traceback; with Ctrl-C, the text so far and the end of its line stay."""
    # A penalty below 1 repeats tokens without end.
    endless = ("--temperature", "0", "--repetition-penalty", "0.001", "--max-new-tokens", "1000000")
    words = command("generate", str(run), "--prompt", "the model", *endless)
    for is_interrupted in (False, True):
        process = subprocess.Popen(
            words, env=surroundings(), stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        assert process.stdout is not None
        begun = process.stdout.read(40)
        assert begun.startswith(b"the model")
        if is_interrupted:
            process.send_signal(signal.SIGINT)
            rest, err = process.communicate(timeout=300)
            assert rest.endswith(b"\n")
            assert err.decode().splitlines()[-1] == "archwright: stopped"
            assert process.returncode == 130
        else:
            process.stdout.close()
            assert process.stderr is not None
            err = process.stderr.read()
            assert process.wait(timeout=300) == 141
        assert b"Traceback" not in err
        assert process.stderr is not None
        process.stderr.close()
