"""The allocator's settings keep memory: what is freed and taken again costs no page faults."""

import platform
import subprocess
import sys

import pytest

from tests.tiny import surroundings

FAULTS = """
import resource, sys, torch
from archwright.cpu import prepare_process

if sys.argv[1] != "default":
    assert prepare_process(shares=sys.argv[1] == "shares")

def once():
    return torch.ones(2**24)  # 64 MiB, touched and freed

for _ in range(20):  # freed pieces find together after a few rounds
    once()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(5):
    once()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(setting: str) -> int:
    """Return the page faults of a process that takes and frees memory; settings last for its life."""
    done = subprocess.run(
        [sys.executable, "-c", FAULTS, setting],
        env=surroundings(),
        capture_output=True,
        text=True,
        check=True,
    )
    return int(done.stdout)


@pytest.mark.slow
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc has these settings")
def test_memory_is_kept() -> None:
    assert faults("tuned") < 100 < faults("default")


@pytest.mark.slow
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc has these settings")
def test_large_tensors_go_back_where_processes_share_a_run() -> None:
    assert faults("shares") > 100
