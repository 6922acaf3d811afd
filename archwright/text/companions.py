"""Companion files of a tokenizer from where it came: its settings, chat templates, the ids that begin and
end a text, defaults of sampling. It is kept as it is, and goes where the tokenizer goes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from archwright.spec.errors import UserError
from archwright.spec.files import check_inside
from archwright.text.json_table import Table, parse_table, read_text

CONFIG = "tokenizer_config.json"
GENERATION = "generation_config.json"
TOKEN_IDS = "token_ids.json"
"""The ids that config.json gives; a file of ours, as the rest of config.json follows from the model."""
TABLES = (CONFIG, GENERATION, TOKEN_IDS, "special_tokens_map.json", "chat_template.json")
TEXTS = ("chat_template.jinja", "additional_chat_templates/*.jinja")

DECODER_START, FORCED_FIRST = "decoder_start_token_id", "forced_bos_token_id"
"""Of a model of two stacks: what its decoder reads first, and what it writes first where that is settled."""
ID_KEYS = ("bos_token_id", "eos_token_id", "pad_token_id", DECODER_START, FORCED_FIRST)


def read_companions(folder: Path) -> dict[str, str]:
    """Return the texts of a folder's companions by name.

    Raises:
        UserError: one is damaged, or a link to a file elsewhere.
    """
    found = {}
    for pattern in (*TABLES, *TEXTS):
        for path in sorted(folder.glob(pattern)):
            name = path.relative_to(folder).as_posix()
            check_inside(path, folder)
            found[name] = read_text(path)
            if name in TABLES:
                parse_table(found[name], path)
    return found


def write_companions(files: Mapping[str, str], folder: Path) -> None:
    """Write companions into a folder."""
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")


def table(files: Mapping[str, str], name: str) -> Table:
    """Return the table of a companion; an empty one where there is none."""
    return parse_table(files[name], Path(name)) if name in files else {}


def content(token: object) -> str:
    """Return the text of a token, which a config has as it is or in a table."""
    found = token.get("content") if isinstance(token, Mapping) else token
    return found if isinstance(found, str) else ""


def ids(table: Mapping[str, object]) -> Table:
    """Return the ids of the tokens that a config names, without those that it leaves open."""
    return {key: table[key] for key in ID_KEYS if table.get(key) is not None}


def first_id(files: Mapping[str, str], key: str) -> int | None:
    """Return the id that the files give under a key, where they give one."""
    found = (table(files, name).get(key) for name in (GENERATION, TOKEN_IDS))
    return next((i for i in found if type(i) is int), None)


def end_ids(files: Mapping[str, str]) -> set[int]:
    """Return all ids that end a text."""
    found: set[int] = set()
    for name in (GENERATION, TOKEN_IDS):
        given = table(files, name).get("eos_token_id")
        given = given if isinstance(given, list) else [given]
        found |= {i for i in given if type(i) is int}
    return found


def as_text(table: Mapping[str, object]) -> str:
    """Return a table as such files have it."""
    return json.dumps(table, indent=2, ensure_ascii=False) + "\n"


def check_ids(table: Mapping[str, Any], path: Path) -> None:
    """Refuse what is no id of a token, or no list of them.

    Raises:
        UserError: the first such value.
    """
    for key, value in ids(table).items():
        given = value if isinstance(value, list) else [value]
        if not all(type(i) is int and 0 <= i < 1 << 31 for i in given):
            shown = json.dumps(value)[:80]
            raise UserError(f"{path}: {key}: found {shown}; expected the id of a token, or several")
