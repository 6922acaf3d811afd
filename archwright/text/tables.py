"""Documents from rows of a column, in Parquet files or Hugging Face datasets."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from archwright.spec.errors import UserError, nearest

SUFFIXES = (".parquet", ".arrow")
DATASET, SPLITS = "state.json", "dataset_dict.json"
"""Files of `save_to_disk` in the folder of a dataset, and of several splits."""
ABOUT = "dataset_info.json"
"""Second file in the folder of a single dataset."""
BY_NAME = "datasets:"
"""Prefix of names for `datasets.load_dataset`: `datasets:NAME[:CONFIG][@SPLIT]`."""
ARROW_FILE = b"ARROW1"
"""First bytes of an Arrow file; an Arrow stream lacks them."""
ROWS = 1024
"""Rows in memory at a time."""


def rows(path: Path, field: str) -> Iterator[str]:
    """Yield the text of each row of a Parquet or Arrow file. Nulls become empty texts.

    Raises:
        UserError: pyarrow is not installed, the file is damaged, or the column is missing or has no strings.
    """
    pyarrow = _pyarrow()
    try:
        for values in _columns(path, field):
            # Arrow does not validate offsets and UTF-8 when it reads.
            values.validate(full=True)
            for text in values.to_pylist():
                yield text or ""
    # Column names may be invalid UTF-8.
    except (pyarrow.ArrowException, OSError, UnicodeDecodeError) as error:
        raise UserError(
            f'"{path}" cannot be read as a table: {" ".join(str(error).split())}'
        ) from None


def _columns(path: Path, field: str) -> Iterator[Any]:
    """Yield the column in pieces, as Arrow arrays."""
    pyarrow = _pyarrow()
    if path.suffix.lower() == ".parquet":
        from pyarrow import parquet

        with parquet.ParquetFile(path, page_checksum_verification=True) as file:
            _check(file.schema_arrow, field, path)
            for batch in file.iter_batches(ROWS, columns=[field]):
                yield batch.column(0)
        return
    with pyarrow.memory_map(str(path)) as source:
        is_file = source.read(len(ARROW_FILE)) == ARROW_FILE
        source.seek(0)
        if is_file:
            reader = pyarrow.ipc.open_file(source)
            batches = (reader.get_batch(i) for i in range(reader.num_record_batches))
        else:
            reader = batches = pyarrow.ipc.open_stream(source)
        column = _check(reader.schema, field, path)
        for batch in batches:
            for start in range(0, batch.num_rows, ROWS):
                yield batch.column(column).slice(start, ROWS)


def _check(schema: Any, field: str, path: Path) -> int:
    """Return the index of the column. Refuse columns of other types than strings."""
    types = _pyarrow().types
    column = schema.get_field_index(field)
    if column < 0:
        names = ", ".join(f'"{name}"' for name in schema.names[:8]) or "none"
        hint = nearest(field, schema.names)
        raise UserError(f'"{path}": no column "{field}" (found {names}). Set data.field.{hint}')
    kind = schema.field(column).type
    if not (types.is_string(kind) or types.is_large_string(kind)):
        raise UserError(f'"{path}": column "{field}" is {kind}, not a string.')
    return int(column)


def _pyarrow() -> Any:
    try:
        import pyarrow
    except ImportError:
        raise UserError(
            "Parquet and Arrow files are read by pyarrow, which is not installed: pip install 'archwright[parquet]'"
        ) from None
    return pyarrow


def dataset_files(folder: Path) -> list[Path] | None:
    """Return the files of a `save_to_disk` dataset, or None for other folders.

    Raises:
        UserError: The dataset has several splits, its rows were reordered after writing, or its list of files is
            missing.
    """
    if (folder / SPLITS).is_file():
        splits = sorted(p.parent for p in folder.glob(f"*/{DATASET}"))
        choices = " or ".join(f'"{split}"' for split in splits) or "none found"
        raise UserError(f'"{folder}" is a dataset of several splits; name one: {choices}.')
    if not (folder / DATASET).is_file():
        return None
    try:
        state = json.loads((folder / DATASET).read_text("utf-8"))
        names = [str(file["filename"]) for file in state["_data_files"]]
        mapped = bool(state.get("_indices_files") or state.get("_indices_data_files"))
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        if not (folder / ABOUT).is_file():  # other folders may have a file of this name
            return None
        raise UserError(
            f'"{folder / DATASET}" is damaged: it does not list the files of the rows. Save the dataset again.'
        ) from None
    if mapped:
        raise UserError(_mapped(str(folder)))
    return [folder / Path(name).name for name in names]


def named_files(source: str) -> list[Path]:
    """Return the files of `datasets:NAME[:CONFIG][@SPLIT]` (default split: train), downloaded if necessary.

    Raises:
        UserError: datasets is not installed, the dataset cannot be loaded, or its rows were reordered.
    """
    try:
        import datasets
    except ImportError:
        raise UserError(
            f'"{source}": datasets by name need the library, which is not installed: pip install '
            "'archwright[datasets]'"
        ) from None
    name, _, split = source.removeprefix(BY_NAME).partition("@")
    name, _, config = name.partition(":")
    datasets.disable_progress_bars()
    try:
        dataset = datasets.load_dataset(name, config or None, split=split or "train")
    except Exception as error:  # from the hub, or from the data's files
        line = " ".join(str(error).split())
        raise UserError(f'"{source}" cannot be loaded: {type(error).__name__}: {line}') from None
    if getattr(dataset, "_indices", None) is not None:
        raise UserError(_mapped(source))
    return [Path(file["filename"]) for file in dataset.cache_files]


def _mapped(source: str) -> str:
    return (
        f'"{source}": its rows were selected or shuffled, so its files have another order. Save it again '
        "after dataset.flatten_indices()."
    )
