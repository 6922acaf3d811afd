"""What the user writes finds the files that are meant, or one line says why not."""

import io
import os
import socket
import sysconfig
from pathlib import Path

import pytest

from archwright.spec.errors import UserError
from archwright.text.sources import find_files


def write(path: Path, content: str | bytes = "text\n") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def names(*sources: str | Path) -> list[str]:
    return [file.name for file in find_files(map(str, sources))]


def message(*sources: str | Path) -> str:
    with pytest.raises(UserError) as caught:
        find_files(map(str, sources))
    return str(caught.value)


def test_a_folder_gives_all_files_below_it_sorted_without_hidden_ones(tmp_path: Path) -> None:
    for name in ("b.txt", "a/z.md", "a/b.jsonl", ".hidden", ".git/config", "a/.x/y.txt", "c"):
        write(tmp_path / name)
    assert names(tmp_path) == ["a/b.jsonl", "a/z.md", "b.txt", "c"]


def test_a_glob_names_files_relative_to_its_fixed_part(tmp_path: Path) -> None:
    for name in ("x/a.txt", "x/deep/b.txt", "x/c.md", "x/.hidden.txt", "x/.git/d.txt"):
        write(tmp_path / name)
    assert names(tmp_path / "x/*.txt") == ["a.txt"]
    assert names(tmp_path / "x/**/*.txt") == ["a.txt", "deep/b.txt"]


def test_a_wrong_glob_is_told(tmp_path: Path) -> None:
    text = message(tmp_path / "a**b" / "[")
    assert text.startswith(f'data.text: "{tmp_path}/a**b/[" is not a glob') or "no file" in text


def test_a_file_whose_name_looks_like_a_glob_is_a_file(tmp_path: Path) -> None:
    assert names(write(tmp_path / "a[1].txt")) == ["a[1].txt"]


def test_a_file_named_twice_is_read_once(tmp_path: Path) -> None:
    file = write(tmp_path / "a.txt")
    assert names(file, tmp_path, tmp_path / "*.txt") == ["a.txt"]
    (tmp_path / "b.txt").symlink_to(file)
    assert names(file, tmp_path / "b.txt") == ["a.txt"]


@pytest.mark.slow
def test_the_library_has_no_tests_and_no_installed_packages() -> None:
    files = find_files(["stdlib"])
    root = Path(sysconfig.get_paths()["stdlib"])
    expected = [
        path
        for path in root.rglob("*.py")
        if not {"test", "tests", "idle_test", "site-packages", "dist-packages"}
        & set(path.relative_to(root).parts[:-1])
        and not any(part.startswith(".") for part in path.relative_to(root).parts)
    ]
    assert {file.path for file in files} == set(expected)
    assert "argparse.py" in {file.name for file in files}
    assert len(files) > 300


def test_standard_input_is_kept_as_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    class Stdin:
        buffer = io.BytesIO("ein Text — ü\n".encode())

    monkeypatch.setattr("sys.stdin", Stdin())
    (file,) = find_files(["-"])
    assert file.path.read_text("utf-8") == "ein Text — ü\n"
    assert file.name == "-"


def test_a_missing_file_is_answered_with_the_nearest_name(tmp_path: Path) -> None:
    write(tmp_path / "Shakespeare.txt")
    text = message(tmp_path / "shakspeare.txt")
    assert text == (
        f'data.text: no file or folder "{tmp_path}/shakspeare.txt". Did you mean "Shakespeare.txt"?'
    )


def test_a_mistyped_stdlib_is_answered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert message("stdlb") == 'data.text: no file or folder "stdlb". Did you mean "stdlib"?'


def test_all_missing_sources_are_told_at_once_one_line_each(tmp_path: Path) -> None:
    write(tmp_path / "ok.txt")
    (tmp_path / "empty").mkdir()
    lines = message(tmp_path / "no", tmp_path / "ok.txt", tmp_path / "empty", "nowhere/*.txt", "")
    assert [line[:33] for line in lines.splitlines()] == [
        'data.text: no file or folder "' + str(tmp_path)[:3],
        'data.text: no file found in "' + str(tmp_path)[:4],
        'data.text: no file found in "nowh',
        "data.text: expected a file, folde",
    ]


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    assert f'there is no folder "{tmp_path}/no"' in message(tmp_path / "no" / "file.txt")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs pipes with names")
def test_what_may_never_end_is_refused_by_name(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with socket.socket(socket.AF_UNIX) as there:
        there.bind(str(tmp_path / "s"))
        for path, kind in (("pipe", "a pipe"), ("s", "a socket"), ("/dev/zero", "a device")):
            assert message(tmp_path / path) == (
                f'data.text: "{tmp_path / path}" is {kind}, not a file. '
                'Use "-" to read text from standard input.'
            )
    write(tmp_path / "a.txt")
    assert names(tmp_path) == ["a.txt"]


def test_the_home_of_nobody_is_told() -> None:
    assert message("~nobody-here/x") == (
        'data.text: "~nobody-here/x": no home folder is known for "~nobody-here". '
        "Write the folder out."
    )
