"""A study on a Ray cluster of two nodes, which both are this machine."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from archwright.lab.compare import compare
from archwright.spec.errors import UserError
from tests.lab.small import OPTIONS, events, few, numbers, trained_now, until, words, working_in
from tests.tiny import surroundings

pytest.importorskip("ray")

CLUSTER = """
import sys
from ray.cluster_utils import Cluster
size = {"num_cpus": 1, "object_store_memory": 10**8, "include_dashboard": False}
cluster = Cluster(initialize_head=True, head_node_args=size)
cluster.add_node(**size)
print(cluster.address, flush=True)
sys.stdin.read()
cluster.shutdown()
"""


class TwoNodes:
    """A cluster of two nodes of one CPU each."""

    def __init__(self) -> None:
        variables = surroundings(RAY_USAGE_STATS_ENABLED="0")
        pipe, silent = subprocess.PIPE, subprocess.DEVNULL
        given = [sys.executable, "-c", CLUSTER]
        self.process = subprocess.Popen(
            given, stdin=pipe, stdout=pipe, stderr=silent, text=True, env=variables
        )
        assert self.process.stdout
        self.address = self.process.stdout.readline().strip()

    def agents(self) -> list[psutil.Process]:
        """Return the processes of actors."""
        below = psutil.Process(self.process.pid).children(recursive=True)
        return [p for p in below if p.is_running() and "ray::Agent" in " ".join(p.cmdline())]

    def end(self) -> None:
        """Stop all its processes."""
        below = psutil.Process(self.process.pid).children(recursive=True)
        self.process.communicate("", timeout=120)
        for process in psutil.wait_procs(below, timeout=10)[1]:
            process.kill()


@pytest.fixture(scope="module")
def cluster() -> Iterator[TwoNodes]:
    found = TwoNodes()
    yield found
    found.end()


@pytest.mark.release
@pytest.mark.slow
def test_a_study_on_two_nodes_of_which_a_worker_is_killed_has_the_numbers_of_one_of_this_machine(
    cluster: TwoNodes, tmp_path: Path
) -> None:
    with working_in(tmp_path):
        here = few("here", budget="200steps")
        subprocess.run(here, cwd=tmp_path, env=surroundings(), check=True)
        far, runs = few("far", "--on", "ray", budget="200steps"), tmp_path / "far-runs"
        variables = surroundings(RAY_ADDRESS=cluster.address)
        with subprocess.Popen(
            far, cwd=tmp_path, env=variables, text=True, stderr=subprocess.PIPE
        ) as process:
            until(lambda: len(cluster.agents()) == 2 and trained_now(runs), process)
            assert len({agent.ppid() for agent in cluster.agents()}) == 2  # one below each node
            run = trained_now(runs)[0]
            before, holder = events(run), run.holder()
            assert holder
            agent = psutil.Process(holder.pid).parent()
            assert agent in cluster.agents()
            agent.kill()
            _, said = process.communicate(timeout=300)
        assert process.returncode == 0, said
        assert events(run) == [*before, "stopped", "resumed", "finished"]
        assert numbers(tmp_path / "far") == numbers(tmp_path / "here")
    until(lambda: not cluster.agents(), cluster.process)


def refused(place: Path, address: str) -> str:
    """Return the line by which a study is refused, of which nothing may be left."""
    given = words("text.txt", ":norm.kind=layer")
    with working_in(place), pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_ADDRESS", address)
        with pytest.raises(UserError) as error:
            compare(*given, quiet=True, on="ray", out="study", **OPTIONS)
    assert not (place / "study").exists()
    [line] = error.value.lines
    return line


@pytest.mark.parametrize(
    ("address", "line"),
    [
        (
            "127.0.0.1:9",
            "RAY_ADDRESS: no Ray cluster answers at 127.0.0.1:9 (Connection refused): ",
        ),
        ("head-node", 'RAY_ADDRESS: found "head-node"; expected HOST:PORT, such as head-node:6379'),
        ("nowhere.invalid:6379", "RAY_ADDRESS: no Ray cluster answers at nowhere.invalid:6379 ("),
    ],
)
def test_addresses_where_no_cluster_answers(address: str, line: str, tmp_path: Path) -> None:
    assert refused(tmp_path, address).startswith(line)
