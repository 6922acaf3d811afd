"""Reading of the next step's batch while a GPU trains."""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Generic, TypeVar

T = TypeVar("T")


class Prefetch(Generic[T]):
    """Results of a function of the step, computed one step ahead in a single thread.

    The thread ends when this object is garbage, or with the process.

    Args:
        read: Function of the step alone, so the order of calls changes no result.
    """

    def __init__(self, read: Callable[[int], T]) -> None:
        self._read, self._thread = read, ThreadPoolExecutor(1, "batches")
        self._results: dict[int, Future[T]] = {}

    def __call__(self, step: int) -> T:
        """Return the result of a step, and begin with the next one."""
        for other in {*self._results} - {step, step + 1}:
            self._results.pop(other).cancel()
        for wanted in (step, step + 1):
            if wanted not in self._results:
                self._results[wanted] = self._thread.submit(self._read, wanted)
        return self._results[step].result()
