"""The command `archwright cache`: list or clean the cache."""

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
List or clean the cache: tokenized texts, trained tokenizers, measurements of this machine, and hashes of
large files. Missing entries are made again when needed. The folder is $ARCHWRIGHT_CACHE; by default, the
platform's cache folder."""

EXAMPLES = """\
  archwright cache
  archwright cache clean
  archwright cache clean --older-than 30d      entries unused for a month"""


def run(words: Sequence[str]) -> int:
    """List or clean the cache."""
    parser = Parser("cache", ABOUT, EXAMPLES)
    parser.add_argument(
        "action", nargs="?", choices=["clean"], metavar="clean", help="remove all entries"
    )
    parser.add_argument(
        "--older-than", metavar="TIME", help="remove only entries unused for this time: 12h, 30d"
    )
    options = parser.parse(words)
    if options.older_than and not options.action:
        raise UserError("--older-than: only for archwright cache clean")
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
        cached = entries()
        print(f"{cache_folder()!s}: {_amount(cached)}")
        rows: list[list[str]] = []
        for kind, group in groupby(cached, key=lambda entry: entry.kind):
            group_entries = list(group)
            rows += [[""] * 3, _row(kind, group_entries)]
            rows += [_row(f"  {entry.name[:12]}", [entry]) for entry in group_entries]
        print("".join(f"{line}\n" for line in columns(rows, right=[1])), end="")
    return 0


def _row(name: str, entries: "Sequence[Entry]") -> list[str]:
    used = time.strftime("%Y-%m-%d %H:%M", time.localtime(max(entry.used for entry in entries)))
    return [name, size(sum(entry.size for entry in entries)), f"last used {used}"]


def _amount(entries: "Sequence[Entry]") -> str:
    number = "1 entry" if len(entries) == 1 else f"{len(entries):,} entries"
    return f"{number}, {size(sum(entry.size for entry in entries))}"


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
