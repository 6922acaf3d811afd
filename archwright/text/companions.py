"""Files saved next to a tokenizer.json: settings, chat templates, ids that begin and end a text, sampling defaults.
They are copied unchanged wherever the tokenizer is saved."""

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
"""File for the token ids of config.json. The model determines the rest of config.json."""
TABLES = (CONFIG, GENERATION, TOKEN_IDS, "special_tokens_map.json", "chat_template.json")
TEXTS = ("chat_template.jinja", "additional_chat_templates/*.jinja")

DECODER_START, FORCED_FIRST = "decoder_start_token_id", "forced_bos_token_id"
"""Encoder-decoder models: first input of the decoder, and its forced first output."""
ID_KEYS = ("bos_token_id", "eos_token_id", "pad_token_id", DECODER_START, FORCED_FIRST)


def read_companions(folder: Path) -> dict[str, str]:
    """Return the text of each settings file and chat template in a folder, by file name.

    Raises:
        UserError: A file is damaged, or a link to a file outside the folder.
    """
    texts = {}
    for pattern in (*TABLES, *TEXTS):
        for path in sorted(folder.glob(pattern)):
            name = path.relative_to(folder).as_posix()
            check_inside(path, folder)
            texts[name] = read_text(path)
            if name in TABLES:
                parse_table(texts[name], path)
    return texts


def write_companions(files: Mapping[str, str], folder: Path) -> None:
    """Write files into a folder; `files` maps names to texts."""
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")


def table(files: Mapping[str, str], name: str) -> Table:
    """Return the JSON object in the file `name`; empty if the file is missing."""
    return parse_table(files[name], Path(name)) if name in files else {}


def content(token: object) -> str:
    """Return the text of a token. Configs store a string or an object with "content"."""
    text = token.get("content") if isinstance(token, Mapping) else token
    return text if isinstance(text, str) else ""


def ids(table: Mapping[str, object]) -> Table:
    """Return the token ids of a config, without null values."""
    return {key: table[key] for key in ID_KEYS if table.get(key) is not None}


def first_id(files: Mapping[str, str], key: str) -> int | None:
    """Return the id under `key` in the files; None if no file has one."""
    values = (table(files, name).get(key) for name in (GENERATION, TOKEN_IDS))
    return next((i for i in values if type(i) is int), None)


def end_ids(files: Mapping[str, str]) -> set[int]:
    """Return all end-of-text ids."""
    stops: set[int] = set()
    for name in (GENERATION, TOKEN_IDS):
        value = table(files, name).get("eos_token_id")
        values = value if isinstance(value, list) else [value]
        stops |= {i for i in values if type(i) is int}
    return stops


def as_text(table: Mapping[str, object]) -> str:
    """Return an object as JSON text with indentation."""
    return json.dumps(table, indent=2, ensure_ascii=False) + "\n"


def check_ids(table: Mapping[str, Any], path: Path) -> None:
    """Refuse values other than a token id or a list of them.

    Raises:
        UserError: On the first such value.
    """
    for key, value in ids(table).items():
        values = value if isinstance(value, list) else [value]
        if not all(type(i) is int and 0 <= i < 1 << 31 for i in values):
            shown = json.dumps(value)[:80]
            raise UserError(f"{path}: {key}: found {shown}; expected a token id or a list of ids")
