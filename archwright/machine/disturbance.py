"""Whether other work takes cores away from this process while it measures."""

import time

PREEMPTIONS = 60
"""Preemptions for each second of processor time above which a measurement was made beside other work: a quiet machine
has some 20; where another process wants the same core, hundreds, as each turn of a few milliseconds ends in one."""
SHORTEST = 0.1
"""Seconds of processor time that a measurement counts at least: a few preemptions of a short one are chance."""


def preemptions() -> int:
    """Return how often the system has taken a core away from a thread of this process; 0 where it does not say."""
    try:
        import resource
    except ImportError:  # not on Windows
        return 0
    return resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw


class Watch:
    """Tells, of the time since it was made, whether other work disturbed this process."""

    def __init__(self) -> None:
        self._before, self._start = preemptions(), time.process_time()

    def disturbed(self) -> bool:
        seconds = time.process_time() - self._start
        return preemptions() - self._before > PREEMPTIONS * max(seconds, SHORTEST)
