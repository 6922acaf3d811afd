"""How threads wait for each other."""

import os

SPINS = 10_000
"""Turns that a thread waits awake, about a quarter of a millisecond."""


def wait_briefly() -> None:
    """Let a thread that waits for another fall asleep soon, so that a busy machine can run that other one.

    Threads of one operation wait for each other at its end. OpenMP lets them spin for milliseconds, which
    is fastest where every thread has a core to itself. Where other programs want the cores too, the one
    that spins keeps the one it waits for from running. OpenMP reads the setting when torch is first
    imported: this must come before. A setting of the user's own is kept.
    """
    os.environ.setdefault("GOMP_SPINCOUNT", str(SPINS))
