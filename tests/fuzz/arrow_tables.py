"""Changes to tables, as Parquet and Arrow files hold them: of texts and rows, and of columns and their types."""

import io
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

from tests.fuzz.trees import STRINGS

PARQUET, ARROW_FILE = b"PAR1", b"ARROW1"
"""What such files begin with; what begins otherwise is a stream of Arrow."""


def table_values(content: bytes, dice: Random, words: Sequence[str]) -> bytes:
    """Change texts of a table, or rows and their order, and write it in other pieces; columns and types stay."""
    table = read_table(content)
    texts = table.column("text").to_pylist()
    a, b = (dice.randrange(len(texts)) for _ in range(2)) if texts else (0, 0)
    ways: list[Callable[[], list[Any]]] = [
        lambda: [*texts[:a], dice.choice((*STRINGS, *words)), *texts[a + 1 :]],
        lambda: [*texts[:a], None, *texts[a + 1 :]],
        lambda: texts[:a] + texts[a + 1 :],
        lambda: texts[:a] + texts[b:],
        lambda: texts[:a] + texts[a : a + 1] * dice.choice((2, 3000)) + texts[a + 1 :],
        lambda: dice.sample(texts, len(texts)),
        lambda: [None] * len(texts),
        lambda: texts,
    ]
    return write_table(_with_texts(table, dice.choice(ways)()), content, dice)


def table_types(content: bytes, dice: Random, words: Sequence[str]) -> bytes:
    """Write a table with other columns, or its texts as another type, in a file that is whole."""
    import pyarrow

    table = read_table(content)
    texts = table.column("text").to_pylist()
    some = [text or "" for text in texts]
    ways: list[Callable[[], Any]] = [
        lambda: table.rename_columns(
            [*dice.sample(["text", "Text", "", "\x1b[2J", "n" * 5000], 2)]
        ),
        lambda: table.rename_columns(["text", "text"]),
        lambda: table.drop_columns(["text"]),
        lambda: table.slice(0, 0),
        lambda: pyarrow.table({f"c{i}": [1] for i in range(dice.choice((0, 1, 2000)))}),
        lambda: pyarrow.table({"text": pyarrow.nulls(len(texts))}),
        lambda: pyarrow.table({"text": [text.encode() for text in some]}),
        lambda: pyarrow.table({"text": [[text] for text in some]}),
        lambda: pyarrow.table({"text": [{"text": text} for text in some]}),
        lambda: pyarrow.table({"text": [{"\x1b[31m\n": "x" * 50} for _ in some]}),
        lambda: pyarrow.table({"text": [*range(len(texts))]}),
        lambda: pyarrow.table({"text": pyarrow.array(some).dictionary_encode()}),
        lambda: pyarrow.table({"text": pyarrow.array(some, pyarrow.large_string())}),
        lambda: pyarrow.table({"text": pyarrow.array(some, pyarrow.string_view())}),
        lambda: pyarrow.table({"text": _invalid(some)}),
    ]
    try:
        return write_table(dice.choice(ways)(), content, dice)
    except pyarrow.ArrowNotImplementedError:  # Parquet lacks some types
        return content


def _with_texts(table: Any, texts: list[str | None]) -> Any:
    import pyarrow

    kind = table.schema.field("text").type
    return pyarrow.table(
        {"number": [*range(len(texts))], "text": pyarrow.array(texts, kind)},
        metadata=table.schema.metadata,
    )


def _invalid(texts: list[str]) -> Any:
    """Return texts whose type is UTF-8 and whose bytes are not."""
    import pyarrow

    found = pyarrow.array([b"\xff\xfe" + text.encode() for text in texts])
    return pyarrow.Array.from_buffers(pyarrow.string(), len(found), found.buffers())


def read_table(content: bytes) -> Any:
    """Return the table that is in a Parquet file, an Arrow file, or a stream of Arrow."""
    import pyarrow
    from pyarrow import parquet

    if content.startswith(PARQUET):
        return parquet.read_table(io.BytesIO(content))
    is_file = content.startswith(ARROW_FILE)
    with (pyarrow.ipc.open_file if is_file else pyarrow.ipc.open_stream)(content) as reader:
        return reader.read_all()


def write_table(table: Any, like: bytes, dice: Random) -> bytes:
    """Return a table in a file of the same kind as another one."""
    import pyarrow
    from pyarrow import parquet

    out = io.BytesIO()
    if like.startswith(PARQUET):
        parquet.write_table(
            table,
            out,
            row_group_size=dice.choice((1, 7, 1000)),
            compression=dice.choice(("none", "snappy", "zstd", "gzip")),
            use_dictionary=dice.random() < 0.5,
            write_page_checksum=dice.random() < 0.5,
            data_page_version=dice.choice(("1.0", "2.0")),
        )
        return out.getvalue()
    is_file = like.startswith(ARROW_FILE)
    options = pyarrow.ipc.IpcWriteOptions(compression=dice.choice((None, "lz4", "zstd")))
    new = pyarrow.ipc.new_file if is_file else pyarrow.ipc.new_stream
    with new(out, table.schema, options=options) as writer:
        writer.write_table(table, max_chunksize=dice.choice((1, 7, 1000)))
    return out.getvalue()
