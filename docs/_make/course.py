"""`python -m docs._make.course [PAGE ...]` runs the pages of docs/course and records what they print.

A block of Python or of commands is run if a `text` block follows it. The blocks of a page share names and a folder.
A comment above the output of a slow block has its seconds and date; `--quick` leaves such blocks as they are. `--check`
writes nothing: it compares each number with the recorded one, except times, speeds and sizes of measured memory.
"""

import argparse
import contextlib
import io
import math
import os
import platform
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import torch

from archwright.cli import main as verb

FOLDER = Path(__file__).parents[1] / "course"
SLOW = 2.0
"""Seconds of processor time above which a block is not run by `make test`."""
IN_PROCESS = {"diff", "explain", "list", "plan", "show"}
"""Verbs that leave no state behind; the others get a process of their own."""
WIDTH = 110
"""Columns of printed tables."""
TOLERANCES = {"quick": 1e-3, "slow": 0.03}
"""Largest relative change of a number. Losses of trained models differ between processors."""
MEASURED = r"(?:s|ms|µs|us|min|h|seconds|minutes|hours|tokens/s|steps/s|GB/s|[kMG]?B, measured)"
"""Units of numbers that no two runs repeat."""
NUMBER = re.compile(rf"(?<![\w.])[-+−]?\d[\d,]*(?:\.\d+)?(?:e[-+]?\d+)?(\s?k?{MEASURED}\b)?")

BLOCK = re.compile(
    r"^```(?P<language>python|sh)\n(?P<code>(?:(?!```).*\n)*)```\n\n"
    r"(?:<!-- (?P<seconds>\d+) s, (?P<date>[\d-]+) -->\n)?```text\n(?P<output>(?:(?!```).*\n)*)```$",
    re.MULTILINE,
)
FOOTER = re.compile(r"^\*Recorded on .*\*\n", re.MULTILINE)


class Block(NamedTuple):
    """A block of code and its recorded output."""

    language: str
    code: str
    output: str
    seconds: int
    """Seconds of a slow block; 0 if it is quick."""
    date: str

    @property
    def is_slow(self) -> bool:
        """True if `make test` does not run the block."""
        return self.seconds > 0

    def __str__(self) -> str:
        """Return the Markdown of the block."""
        comment = f"<!-- {self.seconds} s, {self.date} -->\n" if self.is_slow else ""
        return f"```{self.language}\n{self.code}```\n\n{comment}```text\n{self.output}```"


def pages() -> list[Path]:
    """Return the pages of the course, by name."""
    return sorted(FOLDER.glob("*.md"))


def blocks(text: str) -> list[Block]:
    """Return the recorded blocks of a page."""
    return [_block(match) for match in BLOCK.finditer(text)]


def _block(match: re.Match[str]) -> Block:
    language, code, output = match["language"], match["code"], match["output"]
    return Block(language, code, output, int(match["seconds"] or 0), match["date"] or "")


def run(recorded: list[Block], is_quick: bool = False) -> Iterator[Block]:
    """Yield each block with its new output, in a folder of its own; skip slow blocks if `is_quick`."""
    names: dict[str, Any] = {"__name__": "__main__"}
    # A block may disable gradients for the rest of its page.
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder), torch.enable_grad():
        for block in recorded:
            if block.is_slow and is_quick:
                yield block
                continue
            started = sum(os.times()[:4])  # this process and its children
            output = _printed(block, names)
            seconds = sum(os.times()[:4]) - started
            rounded = 0 if seconds < SLOW or is_quick else round(seconds)
            yield block._replace(
                output=output, seconds=rounded, date=f"{datetime.now(UTC):%Y-%m-%d}"
            )


def _printed(block: Block, names: dict[str, Any]) -> str:
    """Return what a block prints to its standard output."""
    if block.language == "sh":
        return "".join(map(_printed_by_command, block.code.splitlines()))
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(compile(block.code, "course", "exec"), names)
    return _trimmed(out.getvalue())


def _printed_by_command(line: str) -> str:
    """Return what a line of shell prints: a command, and programs behind `|`."""
    command, _, filters = line.partition(" | ")
    words = shlex.split(command)
    if words[1] in IN_PROCESS:
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            code = verb(words[1:])
        text, errors = out.getvalue(), ""
    else:
        done = _process([sys.executable, "-m", *words])
        code, text, errors = done.returncode, done.stdout, done.stderr
    if code:
        raise SystemExit(f"{line}: exit code {code}\n{errors}{text}")
    return _trimmed(_process(["bash", "-c", filters], text).stdout if filters else text)


def _process(words: list[str], text: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(words, input=text, text=True, capture_output=True, check=False)


def _trimmed(text: str) -> str:
    return "".join(f"{line.rstrip()}\n" for line in text.rstrip().splitlines())


def differences(recorded: Block, printed: Block) -> list[str]:
    """Return the lines of an output that differ from the recorded ones, measured numbers aside."""
    tolerance = TOLERANCES["slow" if recorded.is_slow else "quick"]
    before, after = recorded.output.splitlines(), printed.output.splitlines()
    if len(before) != len(after):
        return [f"{len(before)} lines recorded, {len(after)} printed:", *after]
    pairs = zip(before, after, strict=True)
    return [f"recorded: {a}\nprinted:  {b}" for a, b in pairs if not _alike(a, b, tolerance)]


def _alike(recorded: str, printed: str, tolerance: float) -> bool:
    """Return whether two lines have the same words and nearly the same numbers."""
    words = (re.sub(r"[\s─━-]+", " ", NUMBER.sub("#", line)) for line in (recorded, printed))
    if len({*words}) > 1:
        return False
    numbers = zip(NUMBER.finditer(recorded), NUMBER.finditer(printed), strict=True)
    return all(a[1] or _close(_value(a[0]), _value(b[0]), tolerance) for a, b in numbers)


def _value(number: str) -> float:
    return float(number.replace(",", "").replace("−", "-"))


def _close(recorded: float, printed: float, tolerance: float) -> bool:
    """Return whether two numbers agree. Below 1e-5, numbers are rounding errors, equal if both are small."""
    return math.isclose(recorded, printed, rel_tol=tolerance, abs_tol=1e-5)


def page_with(text: str, printed: list[Block]) -> str:
    """Return a page with new outputs and the machine that printed them."""
    new = iter(printed)
    text = FOOTER.sub("", BLOCK.sub(lambda _: str(next(new)), text)).rstrip() + "\n"
    machine = f"{os.cpu_count()} cores ({platform.machine()}), Python {platform.python_version()}"
    version = torch.__version__.partition("+")[0]
    return (
        f"{text}\n*Recorded on {datetime.now(UTC):%Y-%m-%d} with torch {version} on {machine}.*\n"
    )


def main() -> int:
    """Run pages; return 1 if `--check` found a difference."""
    os.environ |= {"COLUMNS": str(WIDTH), "NO_COLOR": "1"}
    os.environ["PYTHONPATH"] = str(FOLDER.parents[1])
    parser = argparse.ArgumentParser(prog="python -m docs._make.course", description=__doc__)
    parser.add_argument("pages", nargs="*", help="names of pages, such as norms; by default all")
    parser.add_argument("--quick", action="store_true", help="leave slow blocks as they are")
    parser.add_argument("--check", action="store_true", help="compare, and write nothing")
    options = parser.parse_args()
    wrong = 0
    for page in pages():
        if options.pages and page.stem not in options.pages:
            continue
        print(page.name, flush=True)
        text = page.read_text("utf-8")
        recorded = blocks(text)
        printed = list(run(recorded, options.quick))
        if options.check:
            found = [
                line for a, b in zip(recorded, printed, strict=True) for line in differences(a, b)
            ]
            print("\n".join(found) or "as recorded")
            wrong += bool(found)
        else:
            page.write_text(page_with(text, printed), "utf-8")
    return wrong > 0


if __name__ == "__main__":
    sys.exit(main())
