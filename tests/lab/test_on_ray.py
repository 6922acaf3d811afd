"""A study on a Ray cluster of two nodes, which both are this machine."""

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from archwright.lab.compare import compare
from archwright.lab.running import on_ray
from archwright.runs import RunFolder
from archwright.spec.errors import UserError
from archwright.spec.machine import MachineSpec
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
        """Return the processes of tasks."""
        below = psutil.Process(self.process.pid).children(recursive=True)
        return [p for p in below if p.is_running() and "ray::run_remote" in " ".join(p.cmdline())]

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
        ("head-node", "RAY_ADDRESS: no Ray cluster answers at head-node ("),
        ("nowhere.invalid:6379", "RAY_ADDRESS: no Ray cluster answers at nowhere.invalid:6379 ("),
    ],
)
def test_addresses_where_no_cluster_answers(address: str, line: str, tmp_path: Path) -> None:
    assert refused(tmp_path, address).startswith(line)


class FakeRay:
    """A cluster of nodes that have these numbers of CPUs and GPUs, and one that has left it."""

    def __init__(self, *nodes: dict[str, float]) -> None:
        self.here = nodes

    def nodes(self) -> list[dict[str, Any]]:
        there = [{"Alive": True, "Resources": {"memory": 1e9, **node}} for node in self.here]
        return [*there, {"Alive": False, "Resources": {"CPU": 99.0, "GPU": 9.0}}]


def places(
    folder: Path, patch: pytest.MonkeyPatch, workers: int, device: str, threads: Any, *nodes: Any
) -> int:
    """Return how many runs are to go at once on nodes of such sizes."""
    found = [dict(zip(("CPU", "GPU"), node, strict=False)) for node in nodes]
    patch.setattr(on_ray, "_connected", lambda cores: (FakeRay(*found), False))
    RunFolder(folder).holder_file.write_text("ours")
    executor = on_ray.RayExecutor(workers, 2, folder / "log.txt")
    return executor.places(MachineSpec.model_validate({"device": device, "threads": threads}))


@pytest.mark.parametrize(
    ("workers", "device", "threads", "nodes", "expected"),
    [
        (0, "cpu", "auto", [(4.0,), (3.0,)], 7),
        (0, "cpu", 2, [(4.0,), (3.0,)], 3),
        (0, "cpu", 4, [(3.0,), (3.0,), (4.0,)], 1),
        (9, "cpu", 4, [(3.0,), (3.0,), (4.0,)], 9),
        (0, "cuda", 2, [(16.0,), (8.0, 2.0), (2.0, 8.0), (1.0, 1.0)], 3),
    ],
)
def test_places_are_counted_node_by_node(
    workers: int,
    device: str,
    threads: Any,
    nodes: list[Any],
    expected: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert places(tmp_path, monkeypatch, workers, device, threads, *nodes) == expected


@pytest.mark.parametrize("workers", [0, 3])
@pytest.mark.parametrize(
    ("device", "threads", "nodes", "line"),
    [
        (
            *("cpu", 8, [(4.0,), (4.0,)]),
            "each run needs 8 CPU of one node; found 4 CPU and 4 CPU: set machine.threads or machine.device, or add a "
            "node that has as many",
        ),
        (
            *("cuda", 4, [(16.0,), (2.0, 1.0)]),
            "each run needs 4 CPU, 1 GPU of one node; found 16 CPU, 0 GPU and 2 CPU, 1 GPU: set machine.threads or "
            "machine.device, or add a node that has as many",
        ),
    ],
)
def test_runs_that_fit_on_no_node_are_refused(
    workers: int,
    device: str,
    threads: int,
    nodes: list[Any],
    line: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(UserError) as error:
        places(tmp_path, monkeypatch, workers, device, threads, *nodes)
    assert error.value.lines == (f"--on ray: {line}",)


@pytest.mark.release
@pytest.mark.slow
@pytest.mark.parametrize("more", [(), ("--workers", "1")])
def test_a_study_that_fits_on_no_node_of_a_cluster_is_refused(
    cluster: TwoNodes, more: tuple[str, ...], tmp_path: Path
) -> None:
    """Two nodes of one CPU each have room for no run of two threads."""
    with working_in(tmp_path):
        done = subprocess.run(
            [*few("far", "--on", "ray", *more), "machine.threads=2"],
            cwd=tmp_path,
            env=surroundings(RAY_ADDRESS=cluster.address),
            capture_output=True,
            text=True,
            timeout=240,
        )
    assert done.returncode == 2
    assert "each run needs 2 CPU of one node; found 1 CPU and 1 CPU: set" in done.stderr
    assert not (tmp_path / "far").exists()


@pytest.mark.release
@pytest.mark.slow
def test_nothing_of_the_current_folder_is_imported(tmp_path: Path) -> None:
    """On a cluster that starts with the study."""
    with working_in(tmp_path):
        (tmp_path / "numpy.py").write_text(
            f"open({str(tmp_path / 'ran')!r}, 'w')\nraise SystemExit"
        )
        again = few("far", "--on", "ray", "--workers", "2")
        done = subprocess.run(again, cwd=tmp_path, env=surroundings(), capture_output=True)
    assert done.returncode == 0, done.stderr
    assert not (tmp_path / "ran").exists()


@pytest.mark.release
@pytest.mark.slow
def test_ctrl_c_has_runs_saved(cluster: TwoNodes, tmp_path: Path) -> None:
    with working_in(tmp_path):
        again, runs = few("far", "--on", "ray", budget="400steps"), tmp_path / "far-runs"
        variables = surroundings(RAY_ADDRESS=cluster.address)
        with subprocess.Popen(
            again, cwd=tmp_path, env=variables, text=True, stderr=subprocess.PIPE
        ) as process:
            until(lambda: trained_now(runs), process)
            process.send_signal(signal.SIGINT)
            _, said = process.communicate(timeout=300)
        assert process.returncode == 128 + signal.SIGINT, said
        folders = [RunFolder(file.parent) for file in runs.glob("*/metrics.jsonl")]
        assert folders
        assert not any(run.holder() for run in folders)
        assert {events(run)[-1] for run in folders} <= {"stopped", "finished"}
