"""Byte-level BPE tokenizers (GPT-2) from vocab.json and merges.txt."""

from collections.abc import Iterator, Mapping
from pathlib import Path

import tokenizers
from tokenizers import decoders, models, pre_tokenizers

from archwright.spec.errors import UserError
from archwright.text.bpe import byte_names
from archwright.text.foreign import LARGEST, check_ids
from archwright.text.json_table import read_table

VOCABULARY, MERGES = "vocab.json", "merges.txt"
CLASSES = ("", "GPT2Tokenizer", "CodeGenTokenizer", "RobertaTokenizer", "BartTokenizer")
"""Values of `tokenizer_class` with the pre-tokenization of GPT-2."""
SPECIAL = ("bos_token", "eos_token", "unk_token", "pad_token", "cls_token", "sep_token")


def read_byte_level(
    folder: Path, settings: Mapping[str, object], added: Mapping[str, object]
) -> tokenizers.Tokenizer | None:
    """Return the byte-level BPE tokenizer of a folder, or None if unsupported.

    Args:
        settings: Content of tokenizer_config.json.
        added: Content of added_tokens.json: token -> id.

    Raises:
        UserError: A file is damaged, or an added token does not have the next id.
    """
    if str(settings.get("tokenizer_class") or "").removesuffix("Fast") not in CLASSES:
        return None
    check_ids(read_table(folder / VOCABULARY, LARGEST).items(), str(folder / VOCABULARY))
    try:
        model = models.BPE.from_file(str(folder / VOCABULARY), str(folder / MERGES))
    except Exception as error:  # the library raises nothing narrower
        raise UserError(f"{folder / VOCABULARY}: found no BPE with {MERGES}: {error}") from None
    inner = tokenizers.Tokenizer(model)
    names = inner.get_vocab()
    if not set(byte_names().values()) <= set(names):
        return None
    prefix = bool(settings.get("add_prefix_space"))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=prefix)
    inner.decoder = decoders.ByteLevel()
    special = list(_added(names, settings, added))
    check_ids([(token.content, i) for token, i in special], str(folder))
    for token, i in special:
        inner.add_tokens([token])
        if inner.token_to_id(token.content) != i:
            raise UserError(
                f'{folder}: the added token "{token.content}": found id {i}; expected the next id, '
                f"{inner.token_to_id(token.content)}"
            )
    return inner


def _added(
    names: Mapping[str, int], settings: Mapping[str, object], added: Mapping[str, object]
) -> Iterator[tuple[tokenizers.AddedToken, int]]:
    """Yield the added tokens and their ids, sorted by id."""
    entries = [settings.get(key) for key in SPECIAL]
    special = {str(t.get("content") if isinstance(t, Mapping) else t) for t in entries if t}
    special |= {"<|endoftext|>"}
    listed = settings.get("added_tokens_decoder")
    ids = {name: i for name, i in added.items() if isinstance(i, int)}
    if isinstance(listed, Mapping):
        for i, token in listed.items():
            if isinstance(token, Mapping) and str(i).isdecimal():
                ids[str(token.get("content"))] = int(i)
                special |= {str(token.get("content"))} if token.get("special") else set()
    ids |= {name: names[name] for name in special if name in names}
    for name, i in sorted(ids.items(), key=lambda item: item[1]):
        yield tokenizers.AddedToken(name, special=name in special, normalized=False), i
