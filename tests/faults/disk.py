"""What this process does with files below a folder, counted; one of these events may kill it or fail."""

import builtins
import errno
import io
import itertools
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
CHANGES = {
    "os.mkdir": 2,
    "os.rename": 2,
    "os.remove": 1,
    "os.rmdir": 1,
    "os.link": 2,
    "os.symlink": 2,
    "os.truncate": 9,
    "os.chmod": 2,
}
"""Events of the interpreter, and which of their arguments is the descriptor that the path is relative to."""
REMOVALS = ("os.remove", "os.rmdir", "os.rename", "read")
"""What a full disk still allows."""
FULL = (errno.ENOSPC, errno.EDQUOT)
ERRORS = (*FULL, errno.EIO, errno.EACCES, errno.EROFS)


class Blow(NamedTuple):
    """What happens at an event: the process is killed, or the call fails, once or from then on."""

    at: int
    error: int = 0
    """The error's number; 0 kills."""
    for_good: bool = False
    half: bool = False
    """Whether a write, if that is what it meets, has written half by then."""

    def __str__(self) -> str:
        how = (
            f"{errno.errorcode[self.error]}{' for good' * self.for_good}"
            if self.error
            else "SIGKILL"
        )
        return f"{how} at event {self.at}{', a write half done' * self.half}"


class Disk:
    """Counts from when it is made; there is one in a process."""

    def __init__(self, folder: Path, blow: Blow | None = None) -> None:
        self.folder, self.blow = str(folder.resolve()), blow
        self.events: list[str] = []
        self._numbers = itertools.count(1)
        sys.addaudithook(self._heard)
        self._wrap_calls()

    def meet(self, kind: str, path: object, half: Callable[[], object] | None = None) -> None:
        """Count an event; where the blow falls on it, let that happen."""
        where = self._absolute(path)
        if not where.startswith(self.folder):
            return
        number = next(self._numbers)
        if self.blow is None:
            self.events.append(f"{kind} {where.removeprefix(self.folder)}")
            return
        later = self.blow.for_good and number > self.blow.at
        full = self.blow.error in FULL and kind in REMOVALS
        if number != self.blow.at and (not later or full):
            return
        if half and self.blow.half:
            half()
        if not self.blow.error:
            os.kill(os.getpid(), signal.SIGKILL)
        unfit = kind == "read" and self.blow.error in (*FULL, errno.EROFS)
        number = errno.EIO if unfit else self.blow.error
        raise OSError(number, os.strerror(number), where)

    def _heard(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open":
            path, _, flags = arguments
            if isinstance(flags, int) and isinstance(path, str | bytes | os.PathLike):
                self.meet("open" if flags & WRITES else "read", path)
        elif event in CHANGES:
            position = CHANGES[event]
            inside = arguments[position] if position < len(arguments) else -1
            path = arguments[0]
            if isinstance(inside, int) and inside >= 0 and not isinstance(path, int):
                path = f"/proc/self/fd/{inside}/{os.fsdecode(path)}"
            self.meet(event, path)
        elif event == "subprocess.Popen":
            self.meet("start", self.folder)

    def _wrap_calls(self) -> None:
        """Count what the interpreter does not tell of: writes and flushes."""
        plain_fsync, plain_open = os.fsync, io.open

        def fsync(descriptor: Any) -> None:
            self.meet("fsync", descriptor)
            plain_fsync(descriptor)

        def opened(file: Any, mode: str = "r", *rest: Any, **named: Any) -> Any:
            found = plain_open(file, mode, *rest, **named)
            return _Written(found, self, file) if set("wax+") & set(mode) else found

        os.fsync, builtins.open = fsync, opened
        io.open = opened  # type: ignore[assignment]

    def _absolute(self, path: object) -> str:
        if isinstance(path, int):
            path = f"/proc/self/fd/{path}"
        text = os.fsdecode(path)  # type: ignore[arg-type]
        head, found, rest = text.removeprefix("/proc/self/fd/").partition("/")
        if text.startswith("/proc/self/fd/"):
            text = f"{Path('/proc/self/fd', head).readlink()}{found}{rest}"
        return os.path.abspath(text)  # noqa: PTH100 -- links stay as they are


class _Written:
    """A file open for writing, whose writes are events."""

    def __init__(self, file: Any, disk: Disk, path: object) -> None:
        self._file, self._disk, self._path = file, disk, path

    def write(self, data: Any) -> Any:
        def half() -> None:
            self._file.write(data[: len(data) // 2])
            self._file.flush()

        self._disk.meet("write", self._path, half)
        return self._file.write(data)

    def truncate(self, *size: int) -> Any:
        self._disk.meet("os.truncate", self._path)
        return self._file.truncate(*size)

    def __enter__(self) -> "_Written":
        self._file.__enter__()
        return self

    def __exit__(self, *error: object) -> Any:
        return self._file.__exit__(*error)

    def __iter__(self) -> Any:
        return iter(self._file)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)
