"""The files of docs/cluster: what shells and Kubernetes say of them, and a training that the batch file starts."""

import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from archwright.runs import RunFolder
from bench.scale import environment
from tests.tiny import ROOT, tiny_words, write_text

BATCH = ROOT / "docs" / "cluster" / "train.sbatch"
JOB = ROOT / "docs" / "cluster" / "train.yaml"


def programs() -> str:
    """Return a PATH on which those beside this Python come first."""
    return f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"


def test_the_batch_file_is_sound_shell() -> None:
    program = shutil.which("shellcheck", path=programs())
    if program is None:
        pytest.skip("shellcheck is not installed")
    found = subprocess.run([program, str(BATCH)], capture_output=True, text=True)
    assert found.stdout == ""
    assert found.returncode == 0


def test_options_of_the_batch_file_come_before_its_commands() -> None:
    """sbatch reads no option behind the first command."""
    lines = BATCH.read_text().splitlines()
    options = [i for i, line in enumerate(lines) if line.startswith("#SBATCH --")]
    first = next(i for i, line in enumerate(lines) if line and not line.startswith("#"))
    assert len(options) >= 6
    assert max(options) < first


STANDS_FOR_SRUN = """\
#!/bin/bash
# Two tasks, as on two nodes, with the cores that were asked for.
[ "$1 $2" = "--kill-on-bad-exit=1 --cpus-per-task=3" ] || exit 9
shift 2
for node in 0 1; do SLURM_PROCID=$node "$@" & done
wait -n && wait -n
"""
STANDS_FOR_SCONTROL = """\
#!/bin/bash
[ "$*" = "show hostnames a[1-2]" ] && echo localhost && echo another
"""


@pytest.mark.slow
@pytest.mark.skipif(os.name == "nt", reason="needs bash")
def test_the_batch_file_trains_on_two_nodes(tmp_path: Path) -> None:
    """With programs that stand for SLURM's; both nodes are this machine."""
    write_text(tmp_path / "text.txt", 400)
    bin = tmp_path / "bin"
    bin.mkdir()
    for name, text in (("srun", STANDS_FOR_SRUN), ("scontrol", STANDS_FOR_SCONTROL)):
        (bin / name).write_text(text)
        (bin / name).chmod(0o755)
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    variables = environment() | {
        "PATH": f"{bin}{os.pathsep}{programs()}",
        "PORT": str(port),
        "SLURM_SUBMIT_DIR": str(tmp_path),
        "SLURM_JOB_NODELIST": "a[1-2]",
        "SLURM_JOB_NUM_NODES": "2",
        "SLURM_JOB_ID": "7",
        "SLURM_CPUS_PER_TASK": "3",
    }
    variables.pop("ARCHWRIGHT_CACHE", None)  # the batch file says where
    words = tiny_words("text.txt", "budget=4steps", "evaluate.final_max_tokens=900")[1:]
    done = subprocess.run(
        ["bash", str(BATCH), *words, "--out", "run"],
        cwd=tmp_path,
        env=variables,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert "trained by 2 processes" in done.stderr
    assert RunFolder(tmp_path / "run").finished
    assert (tmp_path / "cache").is_dir()


def objects() -> list[dict[str, Any]]:
    return list(yaml.safe_load_all(JOB.read_text("utf-8")))


def test_kubernetes_knows_every_field() -> None:
    validator = pytest.importorskip("kubernetes_validate")
    for found in objects():
        validator.validate(found, validator.latest_version(), strict=True)
    wrong = objects()[1]
    wrong["spec"]["completionsMode"] = wrong["spec"].pop("completionMode")
    with pytest.raises(validator.ValidationError):
        validator.validate(wrong, validator.latest_version(), strict=True)


def test_machines_of_the_job_meet_at_the_first() -> None:
    service, job = objects()
    spec = job["spec"]
    pod = spec["template"]["spec"]
    [container] = pod["containers"]
    given = dict(word.partition("=")[::2] for word in container["args"])
    name, port = job["metadata"]["name"], service["spec"]["ports"][0]["port"]
    assert spec["completionMode"] == "Indexed"
    assert spec["podReplacementPolicy"] == "Failed", "the pod before may still write"
    assert spec["completions"] == spec["parallelism"] == int(given["--nnodes"])
    assert container["resources"]["limits"]["nvidia.com/gpu"] == int(given["--nproc-per-node"])
    assert pod["subdomain"] == service["metadata"]["name"]
    assert service["spec"]["selector"] == {"batch.kubernetes.io/job-name": name}
    assert service["spec"]["publishNotReadyAddresses"]
    assert given["--rdzv-endpoint"] == f"{name}-0.{pod['subdomain']}:{port}"
    mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    assert {volume["name"] for volume in pod["volumes"]} == {*mounts}
    assert all(given[key].startswith(mounts["shared"]) for key in ("data.text", "--out"))
    assert container["env"][0]["value"].startswith(mounts["shared"])
