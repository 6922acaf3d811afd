"""The command `archwright new`: write a file to start from."""

import keyword
import re
import shlex
from collections.abc import Sequence
from pathlib import Path

from archwright import presets
from archwright.cli.listings import listing
from archwright.cli.parser import Parser
from archwright.spec.errors import UserError, nearest
from archwright.spec.files import check_utf8

ABOUT = """\
Write a starting file: a small working example with comments, which passes `archwright check`. The next
commands are printed.

  norm         normalization of hidden states
  position     position encoding
  attention    differential attention, with one function to edit
  mixer        a recurrence, as another way to mix tokens (also: recurrence)
  feedforward  computation on each token separately
  optimizer    update rule from gradients to steps
  objective    inputs and targets from a text
  model        a TOML file with the differences from a published model

The name of a choice is the name of its file, or the example's name if that is taken: my_norm.py defines
norm.kind=my_norm. Every verb loads it with --parts FILE; nothing is installed. Existing files are never
overwritten."""

EXAMPLES = """\
  archwright new norm my_norm.py
  archwright new attention sigmoid.py
  archwright new model mine.toml"""

FOLDER = presets.FOLDER / "skeletons"

KEYS = {
    "norm": "model.norm.kind",
    "position": "model.position.kind",
    "attention": "model.attention.kind",
    "mixer": "model.recurrence.kind",
    "feedforward": "model.feedforward.kind",
    "optimizer": "optimizer.kind",
    "objective": "objective.kind",
}
"""Key that selects the choice in a new file, by kind of file."""
KINDS = (*KEYS, "model")
OTHERS = {
    **dict.fromkeys(("softmax", "mha", "gqa"), "attention"),
    **dict.fromkeys(("ssm", "rnn"), "mixer"),
    "rope": "position",
    **dict.fromkeys(("ffn", "mlp", "activation"), "feedforward"),
    "loss": "objective",
    **dict.fromkeys(("architecture", "preset"), "model"),
}
"""Kind of file, by its alternative names."""


def run(words: Sequence[str]) -> int:
    """Write a starting file and print the next commands."""
    parser = Parser("new", ABOUT, EXAMPLES)
    parser.add_argument("kind", metavar="KIND", help=", ".join(KINDS))
    parser.add_argument("file", metavar="FILE", help="a name ending in .py, or .toml for a model")
    options = parser.parse(words)
    options.kind = "mixer" if options.kind == "recurrence" else options.kind
    if options.kind not in KINDS:
        alike = OTHERS.get(options.kind.lower())
        hint = f' Did you mean "{alike}"?' if alike else nearest(options.kind, KINDS)
        raise UserError(f'new "{options.kind}": expected one of {", ".join(KINDS)}.{hint}')
    file = Path(options.file)
    skeleton = next(FOLDER.glob(f"{options.kind}.*"))
    if file.suffix != skeleton.suffix:
        raise UserError(f"{file}: expected a name ending in {skeleton.suffix}")
    text, name = _named(skeleton.read_text("utf-8"), options.kind, file)
    check_utf8(file)
    try:
        with file.open("x", encoding="utf-8", newline="\n") as new:
            new.write(text)
    except FileExistsError:
        raise UserError(f"{file}: already exists; give another name") from None
    except (FileNotFoundError, NotADirectoryError):
        raise UserError(f"{file}: there is no folder {file.parent}; make it first") from None
    except OSError as error:
        file.unlink(missing_ok=True)
        raise UserError(f"{file}: cannot be written: {error.strerror}") from None
    print(
        f"{file}: {options.kind}{f' {name}' if options.kind in KEYS else ''}, to start from. Next:\n"
    )
    for line in _next(options.kind, shlex.quote(str(file)), name):
        print(f"  archwright {line}")
    return 0


def _named(text: str, kind: str, file: Path) -> tuple[str, str]:
    """Rename a skeleton's choice after the file; return text and name.

    The skeleton keeps its name if the new name is not an identifier, exists already, or occurs in the code."""
    example, title = f"my_{kind}", f"My{kind.capitalize()}"
    if re.fullmatch(r"[\w./ -]+", str(file), re.ASCII):  # others may end the comment around it
        text = text.replace(f"{example}{file.suffix}", shlex.quote(str(file)))
    name = re.sub(r"\W+", "_", file.stem.lower(), flags=re.ASCII).strip("_")
    titled = "".join(word.capitalize() for word in name.split("_"))
    taken = {kind["name"] for section in listing("choices") for kind in section["kinds"]}
    is_name = name.isidentifier() and not keyword.iskeyword(name) and name not in taken
    code = re.sub(r'(?s:""".*?""")|#[^\n]*', "", text)
    if not is_name or re.search(rf"\b(?:{name}|{titled})\b", code):
        return text, example
    return re.sub(rf"\b{example}\b", name, text).replace(title, titled), name


def _next(kind: str, file: str, name: str) -> list[str]:
    """Return the next commands, without the name of the program."""
    if kind == "model":
        return [
            f"check {file}",
            f"show {file}",
            f"train {file} --tiny budget=60s",
            f"compare modern {file} --budget 5m",
        ]
    ask, parts = f"{KEYS[kind]}={name}", f"--parts {file}"
    # Variants share their objective.
    arms = f":norm.kind=layer {ask}" if kind == "objective" else f":{ask}"
    return [
        f"check {file}",
        f"train demo {ask} budget=60s {parts}",
        f"compare modern {arms} --budget 5m {parts}",
    ]
