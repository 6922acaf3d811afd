"""What the terminal says: tidy at 80 columns, plain where it is piped, safe whatever the sample."""

import io
import re
import subprocess
import sys
from typing import Any

import pytest
from rich.console import Console

from archwright.reporting.page import write_report
from archwright.reporting.terminal import print_resolved, print_result
from archwright.runs import RunFolder
from tests.reporting.conftest import ENVIRONMENT


def printed(run: RunFolder, **settings: Any) -> str:
    """Return what is printed of a run."""
    out = io.StringIO()
    print_result(run, Console(file=out, width=80, highlight=False, **settings))
    return out.getvalue()


def test_a_reader_that_stops_reading_is_a_broken_pipe(
    made: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Closed(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError

    monkeypatch.setattr(sys, "stdout", Closed())
    run = made.run([*made.steps(20), made.event("finished", 20)])
    with pytest.raises(BrokenPipeError):
        print_result(run)


def test_the_result_of_a_run(made: Any) -> None:
    lines = [
        *made.steps(1160, evaluations=0),
        {"kind": "eval", **made.at(1160), **made.evaluation(2.4359)},
        *made.baselines(1160),
        made.event("finished", 1160),
    ]
    run = made.run(lines)
    write_report(run)
    expected = f"""
held-out loss  2.4359  nats per token
perplexity      11.43  per token, base e
bits per byte   1.065  this model
                1.710  xz -9e
                2.040  gzip -9

model           1.28M  parameters
training        4.75M  tokens in 1,160 steps, 2 min 51 s
speed           27.8k  tokens/s, median, 31 % of the measured peak
device                 Testing CPU 9000 (2 threads, bf16)

sample
  def read(path):
      with open(path) as file:
          return file.read()

run     {run.path}
report  {run.report_file}

"""
    assert printed(run) == expected


def test_a_disturbed_peak_gives_no_utilisation(made: Any) -> None:
    """Of a peak that was measured next to other work nothing can be a share."""
    lines = [{k: v for k, v in line.items() if k != "utilisation"} for line in made.steps(40)]
    run = made.run(lines, environment=ENVIRONMENT | {"peak_flops": {}})
    expected = "share of the peak unknown: it was measured on a busy machine"
    assert f"tokens/s, median, {expected}" in " ".join(printed(run).split())
    assert expected in write_report(run).read_text(encoding="utf-8")


def test_a_run_without_evaluation_or_report_says_so(made: Any) -> None:
    text = printed(made.run(list(made.steps(12, evaluations=0)), planned=20))
    assert "not evaluated yet" in text
    assert re.search(r"training loss +\d\.\d{4} +nats per token, mean of the last 10 steps\n", text)
    assert "at step 12 of 20" in text
    assert "report" not in text


def test_a_sample_cannot_steer_the_terminal(made: Any) -> None:
    text = printed(made.finished(30, sample="\x1b]0;mine\x07 [bold]brackets[/bold] \r\x08"))
    assert not {"\x1b", "\x07", "\x08", "\r"} & set(text)
    assert "[bold]brackets[/bold]" in text


def test_resolved_values_stand_in_groups_and_long_ones_stay_whole() -> None:
    out = io.StringIO()
    long = "/text/" + "folder/" * 30
    pairs = [("seed", 0), ("model.dim", 128), ("model.attention.num_heads", 2), ("data.text", long)]
    print_resolved(pairs, Console(file=out, width=80))
    assert out.getvalue() == (
        "seed                       0\n"
        "\n"
        "model.dim                  128\n"
        "model.attention.num_heads  2\n"
        "\n"
        f"data.text                  {long}\n"
        "\n"
    )


@pytest.mark.slow
def test_rich_and_plotly_are_imported_when_something_is_drawn() -> None:
    code = (
        "import sys, archwright.reporting.terminal, archwright.reporting.page;"
        "assert not {'rich', 'plotly', 'jinja2', 'torch'} & set(sys.modules), sys.modules.keys()"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("columns", ["0", "1"])
def test_a_terminal_of_no_width_has_twenty_columns(
    columns: str, made: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    print_result(made.finished(3, sample="some words of a sample that is long"))
    assert "\n  some words of a\n" in capsys.readouterr().out
