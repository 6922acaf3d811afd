"""The baselines are those of the command-line tools, up to their headers."""

import gzip
import io
import lzma
import shutil
import subprocess
from pathlib import Path

import pytest

from archwright.data.compressors import baselines
from archwright.spec.data import DataSpec
from archwright.text.corpus import Documents, open_texts

TEXTS = [Path(module.__file__).read_text("utf-8") for module in (gzip, lzma, subprocess, shutil)]
WHOLE = "".join(TEXTS).encode()


@pytest.fixture
def documents(tmp_path: Path) -> Documents:
    for i, text in enumerate(TEXTS):
        (tmp_path / f"{i}.py").write_bytes(text.encode())
    return open_texts((str(tmp_path),), DataSpec())


@pytest.mark.slow
def test_sizes_are_those_of_the_modules_on_the_concatenation(documents: Documents) -> None:
    zipped = io.BytesIO()
    with gzip.GzipFile(filename="", fileobj=zipped, mode="wb", compresslevel=9) as file:
        file.write(WHOLE)
    xz = lzma.compress(WHOLE, preset=9 | lzma.PRESET_EXTREME)
    found = {b.name: b for b in baselines(documents)}
    assert found["gzip -9"].bits_per_byte == pytest.approx(
        8 * len(zipped.getvalue()) / len(WHOLE), rel=1e-4
    )
    assert found["xz -9e"].bits_per_byte == 8 * len(xz) / len(WHOLE)
    assert {b.num_bytes for b in found.values()} == {len(WHOLE)}


@pytest.mark.parametrize("command", [["gzip", "-9"], ["xz", "-9e"]])
def test_sizes_are_those_of_the_commands(documents: Documents, command: list[str]) -> None:
    if shutil.which(command[0]) is None:
        pytest.skip(f"{command[0]} is not installed")
    size = len(subprocess.run([*command, "-c"], input=WHOLE, stdout=-1, check=True).stdout)
    (found,) = (b for b in baselines(documents) if b.name == " ".join(command))
    assert found.bits_per_byte == pytest.approx(8 * size / len(WHOLE), rel=2e-3)


@pytest.mark.slow
def test_a_dictionary_as_large_as_the_text_finds_as_much(documents: Documents) -> None:
    assert baselines(documents, len(WHOLE)) == baselines(documents)


def test_no_text_is_refused() -> None:
    with pytest.raises(ValueError, match="no text to compress"):
        baselines([])
