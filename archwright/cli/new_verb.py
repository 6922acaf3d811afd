"""archwright new"""

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
Write a file of your own to start from: a small example that works, with comments that say what each line is
for. It passes `archwright check` as it is, and what to type next is printed.

  norm         what brings a vector back to a fixed scale
  position     how a token knows where it stands
  attention    how tokens weigh each other: differential attention, with one function to edit
  mixer        how tokens exchange information otherwise: here a recurrence
  feedforward  what a layer computes of each token by itself
  optimizer    how a gradient becomes a step
  objective    what is read of a text, and what is to be predicted
  model        a model as a TOML file: what differs from a published one

A choice is called as its file, or as in the example where that name is taken: my_norm.py holds
norm.kind=my_norm. It joins with --parts FILE in every verb; nothing is installed. A file that is there
is never overwritten."""

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
"""Kinds of files with a choice, and what asks for it."""
KINDS = (*KEYS, "model")
OTHERS = {
    **dict.fromkeys(("softmax", "mha", "gqa"), "attention"),
    **dict.fromkeys(("recurrence", "ssm"), "mixer"),
    "rope": "position",
    **dict.fromkeys(("ffn", "mlp", "activation"), "feedforward"),
    "loss": "objective",
    **dict.fromkeys(("architecture", "preset"), "model"),
}
"""Words that one may type for a kind."""


def run(words: Sequence[str]) -> int:
    """Write a file to start from, and print what can be done with it."""
    parser = Parser("new", ABOUT, EXAMPLES)
    parser.add_argument("kind", metavar="KIND", help=", ".join(KINDS))
    parser.add_argument("file", metavar="FILE", help="a name ending in .py, or .toml for a model")
    options = parser.parse(words)
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
        raise UserError(
            f"{file}: is there already, and stays as it is; give another name"
        ) from None
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
    """Return a skeleton in which the choice is called as its file, and what it is called: as in the skeleton, where
    that name cannot be a kind, belongs to another one, or means something in the file."""
    own, title = f"my_{kind}", f"My{kind.capitalize()}"
    if re.fullmatch(
        r"[\w./ -]+", str(file), re.ASCII
    ):  # else it might end the comment that it stands in
        text = text.replace(f"{own}{file.suffix}", shlex.quote(str(file)))
    name = re.sub(r"\W+", "_", file.stem.lower(), flags=re.ASCII).strip("_")
    titled = "".join(word.capitalize() for word in name.split("_"))
    taken = {kind["name"] for section in listing("choices") for kind in section["kinds"]}
    is_name = name.isidentifier() and not keyword.iskeyword(name) and name not in taken
    code = re.sub(r'(?s:""".*?""")|#[^\n]*', "", text)
    if not is_name or re.search(rf"\b(?:{name}|{titled})\b", code):
        return text, own
    return re.sub(rf"\b{own}\b", name, text).replace(title, titled), name


def _next(kind: str, file: str, name: str) -> list[str]:
    """Return what to type next, without the program's name."""
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
