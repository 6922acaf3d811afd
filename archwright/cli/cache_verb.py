"""archwright cache"""

import time
from collections.abc import Sequence
from itertools import groupby
from typing import TYPE_CHECKING

from archwright.cli.parser import Parser
from archwright.format import columns, size
from archwright.spec.errors import UserError

if TYPE_CHECKING:
    from archwright.text.cache_contents import Entry

ABOUT = """\
Show what is kept to be used again: tokenized texts, trained tokenizers, measurements of this machine, and
hashes of large files. All of it is made again where it is missing. The folder is $ARCHWRIGHT_CACHE, or the
platform's usual place."""

EXAMPLES = """\
  archwright cache
  archwright cache clean
  archwright cache clean --older-than 30d      what was not used for a month"""


def run(words: Sequence[str]) -> int:
    """Print what the cache holds, or empty it."""
    parser = Parser("cache", ABOUT, EXAMPLES)
    parser.add_argument(
        "action", nargs="?", choices=["clean"], metavar="clean", help="remove all of it"
    )
    parser.add_argument(
        "--older-than", metavar="TIME", help="remove only what was not used for so long: 12h, 30d"
    )
    options = parser.parse(words)
    if options.older_than and not options.action:
        raise UserError("--older-than: goes with archwright cache clean")
    from archwright.text.cache import cache_folder
    from archwright.text.cache_contents import clean, entries

    if options.action:
        done = clean(_seconds(options.older_than))
        print(f"removed {_amount(done.removed)}")
        if done.busy:
            print(f"kept {_amount(done.busy)} that another process is making")
        if done.refused:
            raise UserError(
                f"{done.refused[0].path}: cannot be removed, and {len(done.refused) - 1} others; "
                "is the folder yours to write?"
            )
    else:
        found = entries()
        print(f"{cache_folder()!s}: {_amount(found)}")
        rows: list[list[str]] = []
        for kind, group in groupby(found, key=lambda entry: entry.kind):
            group_entries = list(group)
            rows += [[""] * 3, _row(kind, group_entries)]
            rows += [_row(f"  {entry.name[:12]}", [entry]) for entry in group_entries]
        print("".join(f"{line}\n" for line in columns(rows, right=[1])), end="")
    return 0


def _row(name: str, found: "Sequence[Entry]") -> list[str]:
    used = time.strftime("%Y-%m-%d %H:%M", time.localtime(max(entry.used for entry in found)))
    return [name, size(sum(entry.size for entry in found)), f"last used {used}"]


def _amount(found: "Sequence[Entry]") -> str:
    entries = "1 entry" if len(found) == 1 else f"{len(found):,} entries"
    return f"{entries}, {size(sum(entry.size for entry in found))}"


def _seconds(text: str | None) -> float:
    if text is None:
        return 0
    from archwright.spec.budget import Budget

    try:
        seconds = Budget(text).seconds
    except ValueError:
        seconds = None
    if seconds is None:
        raise UserError(f'--older-than: found "{text}"; expected a time, such as 12h or 30d')
    return seconds
