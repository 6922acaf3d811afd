"""Several runs on one page: what is compared in which unit, what is refused, and what differs between their specs."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from archwright.reporting.comparability import MOST
from archwright.reporting.document import MADE_BY, Chart, Page, Table
from archwright.reporting.history import read_history
from archwright.reporting.overlay import overlay_page, write_overlay
from archwright.reporting.page import write_report
from archwright.runs import RunFolder
from archwright.spec.errors import UserError
from tests.reporting.conftest import ENVIRONMENT

BYTES = ("data.tokenizer.kind=bytes",)
TASK = {"name": "mqar", "floor": 0.0, "chance": 0.01, "num_held_out": 64}
ON_TASK = ENVIRONMENT | {"data": ENVIRONMENT["data"] | {"task": TASK}}


def ended(
    made: Any, name: str, *overrides: str, nats: float = 2.5, steps: int = 60, **given: Any
) -> RunFolder:
    """Write a run whose last evaluation is of so many nats per token."""
    lines = [
        *made.steps(steps, evaluations=0, spike=False),
        {"kind": "eval", **made.at(steps // 2), **made.evaluation(nats + 1)},
        {"kind": "eval", **made.at(steps), **made.evaluation(nats)},
        made.event("finished", steps),
    ]
    return made.run(lines, *overrides, name=name, **given)


def page_of(*runs: RunFolder) -> Page:
    return overlay_page([read_history(run) for run in runs])


def chart(page: Page, name: str) -> Chart:
    return next(chart for chart in page.charts if chart.name == name)


def section(page: Page, title: str) -> Any:
    (block,) = next(found for found in page.sections if found.title == title).blocks
    return block


def refused(*runs: RunFolder) -> list[str]:
    with pytest.raises(UserError) as error:
        page_of(*runs)
    return list(error.value.lines)


def test_curves_lie_over_each_other_in_one_unit(made: Any) -> None:
    runs = [ended(made, "one", nats=2.5), ended(made, "two", "model.norm.kind=layer", nats=2.4)]
    page = page_of(*runs)
    titles = [chart.title for chart in page.charts]
    assert titles == [
        "Held-out loss",
        "Training loss",
        "Bits per byte",
        "Learning rate",
        "Gradient norm",
        "Throughput",
        "Utilisation",
    ]
    held_out = chart(page, "held-out")
    assert held_out.unit == "nats per token"
    assert [trace["y"] for trace in held_out.traces] == [[3.5, 2.5], [3.4, 2.4]]
    bits = 2.4 / math.log(2) / 3.3
    assert chart(page, "bits-per-byte").traces[1]["y"][-1] == pytest.approx(bits, rel=1e-3)
    for name, run in zip(("one", "two"), runs, strict=True):
        (raw,) = (t for t in chart(page, "training").traces if t["name"] == f"{name}, each step")
        np.testing.assert_array_equal(raw["y"], read_history(run).train["loss"])
    groups = [{trace["legendgroup"] for trace in drawn.traces} for drawn in page.charts]
    assert groups == [{"run-0", "run-1"}] * 7
    assert page.notes == []
    assert page.verdict == f"two ends lowest: {bits:.3f} bits per byte"
    assert "not a verdict: another seed may change a loss by as much" in page.verdict_rest


def test_other_tokenizers_are_compared_in_bits_per_byte(made: Any) -> None:
    one, two = ended(made, "one"), ended(made, "two", *BYTES, nats=2.7)
    page = page_of(one, two)
    (note,) = page.notes
    assert note.startswith("Tokenizers differ (one: bpe")
    assert "two: bytes" in note
    held_out = chart(page, "held-out")
    assert held_out.unit == chart(page, "training").unit == "bits per byte"
    assert "bits-per-byte" not in [found.name for found in page.charts]
    for run, trace in zip((one, two), held_out.traces, strict=True):
        assert trace["y"] == [e["bits_per_byte"] for e in read_history(run).evals]
    train = ENVIRONMENT["data"]["train"]
    factor = train["num_tokens"] / train["num_bytes"] / math.log(2)
    raw = next(trace for trace in chart(page, "training").traces if trace.get("raw"))
    np.testing.assert_allclose(raw["y"], read_history(one).train["loss"] * factor)
    assert "Bits per byte" not in section(page, "Runs").head
    assert page.verdict.startswith("one ends lowest: ")


def test_other_texts_have_no_lowest_loss(made: Any) -> None:
    data = ENVIRONMENT["data"] | {
        "held_out": ENVIRONMENT["data"]["held_out"]
        | {"num_tokens": 9, "num_bytes": 900, "num_documents": 2}
    }
    other = ended(
        made, "two", "data.held_out=other.txt", environment=ENVIRONMENT | {"data": data}, nats=0.5
    )
    page = page_of(ended(made, "one"), other)
    assert page.verdict == "2 runs without comparable losses"
    assert any(
        note.startswith(
            "Held-out texts differ (one: of stdlib, 1 MB; two: of other.txt, 900 bytes)"
        )
        for note in page.notes
    )


def test_the_same_text_elsewhere_is_the_same_text(made: Any) -> None:
    page = page_of(ended(made, "one"), ended(made, "two", "data.text=elsewhere.txt"))
    assert page.notes == []


def test_what_else_is_not_comparable_is_said(made: Any) -> None:
    gpu = ENVIRONMENT | {"gpu": "Testing GPU"}
    longer = ended(made, "two", steps=90, environment=gpu)
    part = ended(made, "three")
    text = part.metrics_file.read_text().replace('"num_bytes": 1000000', '"num_bytes": 330000')
    part.metrics_file.write_text(text)
    page = page_of(ended(made, "one"), longer, part)
    notes = page.notes
    assert page.verdict == "3 runs, trained on different numbers of tokens"
    assert page.verdict_rest.startswith("bits per byte of held-out text: ")
    assert [note.split(" (")[0] for note in notes] == [
        "Last evaluations read different amounts of the held-out text",
        "Numbers of tokens differ",
        "Devices differ",
    ]
    assert "(one and two: 1 MB; three: 330 kB)" in notes[0]
    assert "(one and three: 246k; two: 369k): curves are comparable at equal tokens" in notes[1]


def test_what_cannot_be_compared_is_refused_in_a_line(made: Any) -> None:
    one = ended(made, "one")
    masked = ended(made, "masked", "objective.kind=masked_tokens")
    task = ended(made, "task", environment=ON_TASK)
    assert refused(one, masked) == [
        f"{masked.path}: its losses are nats per predicted token of masked_tokens, but the losses of {one.path} are "
        "nats per token of next_token; give runs of one objective and one task"
    ]
    assert "its losses are nats per answer of mqar, but the losses of" in refused(one, task)[0]
    assert refused(one, one) == [f"{one.path}: given twice; give each run once"]
    empty = made.run([], name="empty")
    assert refused(one, empty) == [
        f"{empty.path}: nothing was trained there yet, so there is no curve; leave it out"
    ]
    many = [one, *(ended(made, f"run-{i}") for i in range(MOST))]
    assert refused(*many) == [
        "found 17 runs; expected at most 16, so that a page can distinguish them"
    ]


def test_other_tokenizers_without_bits_per_byte_are_refused(made: Any) -> None:
    one, two = (
        ended(made, name, "objective.kind=masked_tokens", *words)
        for name, words in (("one", ()), ("two", BYTES))
    )
    for run in (one, two):
        text = run.metrics_file.read_text().replace('"bits_per_byte"', '"other"')
        run.metrics_file.write_text(text)
    (line,) = refused(one, two)
    assert line.startswith(
        f"{two.path} and {one.path}: their tokenizers differ, and {one.path} has"
    )


@pytest.mark.parametrize("number", [2, 5])
def test_the_table_has_all_that_differs_and_nothing_else(made: Any, number: int) -> None:
    words = [(), ("model.norm.kind=layer", "seed=3"), ("model.norm.kind=layer",), (), ()]
    runs = [ended(made, f"run-{i}", *words[i]) for i in range(number)]
    table = section(page_of(*runs), "Differences")
    assert isinstance(table, Table)
    found = {row.cells[0]: row.cells[1:] for row in table.rows}
    assert {"model.norm.kind", "seed"} <= {*found}
    assert all(path == "seed" or path.startswith("model.") for path in found)
    if number == 2:
        assert table.head == ("Key", "run-0", "run-1")
        assert found["model.norm.kind"] == ('"rms"', '"layer"')
    else:
        assert found["model.norm.kind"] == (
            '"rms": run-0, run-3 and run-4\n"layer": run-1 and run-2',
        )


def test_runs_of_one_name_are_called_by_their_folders(made: Any, tmp_path: Path) -> None:
    one = ended(made, "one")
    made.folder = tmp_path / "others"
    page = page_of(one, ended(made, "one"))
    names = [row.cells[0] for row in section(page, "Runs").rows]
    assert names == [str(one.path), str(tmp_path / "others" / "one")]


def test_runs_on_a_task_are_compared_by_their_answers(made: Any) -> None:
    def solved(name: str, accuracy: float) -> RunFolder:
        line = {"kind": "eval", **made.at(9), **made.evaluation(0.1), "accuracy": accuracy}
        del line["bits_per_byte"]
        lines = [*made.steps(9, evaluations=0), line, made.event("finished", 9)]
        return made.run(lines, name=name, environment=ON_TASK)

    page = page_of(solved("one", 0.5), solved("two", 0.75))
    assert page.verdict == "two ends highest: 75.0 % of answers right"
    assert [t["y"] for t in chart(page, "accuracy").traces] == [[0.5], [0.75]]
    assert chart(page, "held-out").unit == "nats per answer"


def test_only_pages_are_written_over(made: Any, tmp_path: Path) -> None:
    runs = [ended(made, "one"), ended(made, "two")]
    path = tmp_path / "notes.html"
    path.write_text("mine")
    for write in (lambda: write_overlay(runs, path), lambda: write_report(runs[0], path)):
        with pytest.raises(UserError, match="found a file that archwright did not write"):
            write()
    assert path.read_text() == "mine"
    path.unlink()
    for _ in range(2):
        assert write_overlay(runs, path) == path
    assert MADE_BY in path.read_text()
