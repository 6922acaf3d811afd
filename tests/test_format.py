"""What a terminal is given steers it nowhere, and is no longer than a reader wants it; numbers and columns."""

import contextlib
import io
import math
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from archwright import format as fmt
from archwright.format import LINE, QUOTED, PrintableStream, number_text, one_line, printable
from archwright.spec.errors import UserError

STEERING = "\x00\x07\x08\x0b\x0c\x1b\x7f\x85\x9b\u2028\u202a\u202e\u2066\u2069\ud800"


def test_what_steers_a_terminal_is_replaced() -> None:
    assert printable("a\x1b[31mb\r\x00\n\tü") == "a\ufffd[31mb\ufffd\ufffd\n\tü"
    assert printable(STEERING) == "\ufffd" * len(STEERING)
    assert printable("a\r\nb") == "a\nb"


@pytest.mark.parametrize(
    "text", ["plain", "naïve\u00a0text", "全角\u3000空白", "👩\u200d💻", "שלום\u200e", "a\tb\n\n"]
)
def test_text_stays(text: str) -> None:
    assert printable(text) == text


def test_a_line_is_one_line_and_short() -> None:
    assert one_line("a\nb") == "a\\nb"
    assert one_line(f'found "{"x" * 5000}"; expected') == (
        f'found "{"x" * 97}...{"x" * 98}"; expected'
    )
    assert len(one_line("/".join(["folder"] * 1000))) == QUOTED
    assert len(one_line("many words " * 1000)) == LINE
    assert one_line(one_line("a\x1b" * 400)) == one_line("a\x1b" * 400)
    short = f'{"x" * QUOTED} "{"a b" * 60}"'
    assert one_line(short) == short


def test_what_is_wrong_is_said_in_such_lines() -> None:
    error = UserError(f'"{"x" * 5000}": no such\x1b]0;file\x07', "b\nc")
    assert error.lines[1] == "b\\nc"
    assert len(error.lines[0]) < QUOTED + 50
    assert "\x1b" not in str(error)
    assert str(error) == "\n".join(error.lines)


def test_numbers_of_many_digits() -> None:
    assert [number_text(n) for n in (3, -8, 2.5, 10**39)] == ["3", "-8", "2.5", "1" + "0" * 39]
    assert number_text(10**5000) == "about 1e5000"


def test_a_stream_passes_on_what_is_printable() -> None:
    beneath = io.StringIO()
    stream = PrintableStream(beneath)
    print("a\x1b[2J", file=stream)  # type: ignore[call-overload]
    stream.writelines(["b\x07", "c"])
    assert beneath.getvalue() == "a\ufffd[2J\nb\ufffdc"
    assert not stream.isatty()


@pytest.mark.parametrize(
    ("least", "most", "expected"),
    [
        (0.6, 0.994, "600 to 994 ms"),
        (1.0, 1.0, "1 s"),
        (63.6, 105.6, "1.06 to 1.76 minutes"),
        (51300, 85500, "14.2 to 23.8 hours"),
        (24.2 * 86400, 40.3 * 86400, "24.2 to 40.3 days"),
    ],
)
def test_a_span_of_time_has_the_unit_of_its_end(least: float, most: float, expected: str) -> None:
    assert fmt.time_span(least, most) == expected


EXAMPLES: list[tuple[Callable[..., str], dict[float, str]]] = [
    (fmt.count, {0: "0", 7: "7", 999: "999", 1000: "1k", 3_412_992: "3.41M", 999_600: "1M"}),
    (fmt.count, {2.5e9: "2.5B", 1e12: "1T", 5e15: "5000T"}),
    (
        fmt.duration,
        {0: "0 s", 0.147: "0.1 s", 9.96: "10 s", 59.6: "1 min 0 s", 170.5: "2 min 50 s"},
    ),
    (fmt.duration, {3600: "1 h 0 min", 12300: "3 h 25 min", 86400 * 2 + 3600: "2 d 1 h"}),
    (fmt.size, {512: "512 bytes", 1_044_000: "1.04 MB", 999_900: "1 MB", 8.2e9: "8.2 GB"}),
    (fmt.rate, {4.35e11: "435 GFLOP/s", 9.89e14: "989 TFLOP/s"}),
    (fmt.energy, {2.654e9: "2.65 GWh"}),
    (fmt.flops, {4.23e13: "4.23e13"}),
    (fmt.percent, {0: "0 %", 0.0312: "3.1 %", 0.384: "38 %", 1: "100 %"}),
    (fmt.decimal, {math.nan: "not finite"}),
    (fmt.significant, {math.inf: "not finite"}),
    (partial(fmt.significant, digits=4), {11.434: "11.43", 1e304: "1.000e+304"}),
    (partial(fmt.significant, digits=3), {4096.4: "4,096"}),
]


@pytest.mark.parametrize(("write", "said"), EXAMPLES)
def test_numbers(write: Callable[..., str], said: dict[float, str]) -> None:
    assert {value: write(value) for value in said} == said


def test_lists() -> None:
    assert fmt.listed(["a"]) == "a"
    assert fmt.listed(["a", "b", "c"]) == "a, b and c"


def test_columns() -> None:
    rows = [("part", "ms"), ("attention", "1.25"), ("head", "")]
    assert list(fmt.columns(rows, right=[1])) == ["part         ms", "attention  1.25", "head"]
    assert list(fmt.columns([("a", "b")], first_width=3)) == ["a    b"]


def test_long_cells_are_broken_and_none_is_cut() -> None:
    text = "words that go on and on until the line is full"
    rows = [("name", text, "short"), ("other", "short", text)]
    lines = list(fmt.columns(rows, wrapped=[1, 2], width=60))
    assert all(len(line) <= 60 for line in lines)
    assert lines[0].startswith("name   words that go on and on")
    assert sum(line.count("on") for line in lines) == 2 * text.count("on")
    narrow = list(fmt.columns(rows, wrapped=[1, 2], width=1))
    assert max(map(len, narrow)) <= 5 + 2 * (2 + fmt.NARROWEST)


@pytest.mark.parametrize(
    ("number", "text"),
    [(21_040_000, "21.0M"), (999_400_000, "999M"), (999_600_000, "1.00B"), (27.0e9, "27.0B")],
)
def test_parameters_in_millions_or_billions(number: int, text: str) -> None:
    assert fmt.parameters(int(number)) == text


def test_a_share_of_answers_never_looks_like_all_of_them() -> None:
    shares = (0.0, 0.0078, 0.31249, 0.9994, 0.99995, 0.9999999, 1.0, float("nan"))
    expected = ("0.0 %", "0.8 %", "31.2 %", "99.9 %", "99.99 %", "99.99 %", "100.0 %", "–")
    assert tuple(map(fmt.accuracy, shares)) == expected


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_stream_that_may_fail_drops_what_finds_no_room() -> None:
    for may_fail in (True, False):
        with contextlib.suppress(OSError), Path("/dev/full").open("w", buffering=1) as full:
            stream = PrintableStream(full, may_fail=may_fail)
            for _ in range(2):
                with (
                    contextlib.nullcontext() if may_fail else pytest.raises(OSError, match="space")
                ):
                    print("words", file=stream, flush=True)
