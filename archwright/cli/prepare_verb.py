"""The command `archwright prepare`: make the tokenizer and tokens of a run before training."""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from archwright.cli.parser import Parser
from archwright.format import columns, duration, exact, size
from archwright.spec.errors import UserError

if TYPE_CHECKING:
    from archwright.spec.data import DataSpec
    from archwright.training.data import Material

ABOUT = """\
Make the tokenizer and the tokens for archwright train, and print their folders. Existing tokens are reused.
WHAT and KEY=VALUE are the same as for archwright train.

A text of several files is divided into parts of whole files, 1 GB or more each, for several processes.
The result does not depend on their number. On several machines that share the folder $ARCHWRIGHT_CACHE,
start the same command on each. Ctrl-C ends all processes of the command; finished parts are kept."""

EXAMPLES = """\
  archwright prepare modern data.text='corpus/*.jsonl' --processes 8
  archwright prepare mine.toml
  srun --nodes 4 --ntasks-per-node 1 archwright prepare mine.toml --processes 16"""


def run(words: Sequence[str]) -> int:
    """Tokenize the text of a run, and print the folders of tokenizer and tokens."""
    since = time.perf_counter()
    parser = Parser("prepare", ABOUT, EXAMPLES)
    parser.add_argument("what", nargs="?", metavar="WHAT", help="recipe, model, or TOML file")
    parser.add_argument("assignments", nargs="*", metavar="KEY=VALUE", help="values to change")
    parser.add_argument(
        "--tiny", action="store_true", help="scale the model down, as archwright train does"
    )
    parser.add_argument(
        "--processes",
        type=int,
        default=1,
        metavar="N",
        help="processes of this machine that share the work (default: 1)",
    )
    options, parts = parser.parse_with_parts(words)
    if options.processes < 1:
        raise UserError(f"--processes: found {options.processes}; expected 1 or more")
    from archwright.cli.models import requested_run

    spec, _ = requested_run("prepare", options, parts)
    if line := _nothing_to_do(spec.data):
        print(line)
        return 0
    if options.processes > 1 and "-" in (*spec.data.text, *spec.data.held_out):
        raise UserError(
            f'--processes: found {options.processes} with the text "-"; standard input is read by one process'
        )
    from archwright.lab.running.prepare import prepare_together

    material = prepare_together(spec, options.processes, [Path(file) for file in options.parts])
    _print(material, time.perf_counter() - since)
    return 0


def _nothing_to_do(data: "DataSpec") -> str:
    """Return a message if there is no text to prepare, else ''."""
    if not data.task.is_none:
        task = data.task.kind
        return f'data.text: examples of the task "{task}" are drawn for each step; there is nothing to prepare'
    if data.pairs:
        return "data.pairs: each run reads its pairs itself; there is nothing to prepare"
    return ""


def _print(material: "Material", seconds: float) -> None:
    from archwright.data.store import TokenStore

    rows = [["", "tokens", "documents", "text", "bytes per token", "folder"]]
    for name, store in (("training", material.train), ("held out", material.held_out)):
        assert isinstance(store, TokenStore), "tasks and pairs were answered before"
        ratio = f"{store.num_bytes / max(1, len(store)):.2f}"
        numbers = [exact(len(store)), exact(store.num_documents), size(store.num_bytes), ratio]
        rows.append([name, *numbers, str(store.folder)])
    print(
        "\n".join(columns(rows, right=(1, 2, 3, 4)))
    )  # without wrapping, to keep paths in one piece
    skipped = material.num_skipped
    left_out = f"; {skipped} files were skipped, as they are not text" if skipped else ""
    print(
        f"\ntokenizer of {exact(material.tokenizer.vocab_size)} tokens; ready after {duration(seconds)}{left_out}"
    )
