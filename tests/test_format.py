"""What a terminal is given steers it nowhere, and is no longer than a reader wants it."""

import io

import pytest

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
