"""Programs that stand for SLURM's: they start batch jobs as processes of this machine."""

import os
import signal
from pathlib import Path

import psutil

SBATCH = """\
#!/bin/bash
# A number, the script, and in the background the job, as often as it is queued again.
cd "$FAKE_SLURM"
[ -e refuse ] && { cat refuse >&2; exit 1; }
number=$(($(ls -d *.sh 2>/dev/null | wc -l) + 1))
cp "$1" $number.sh
(
    export SLURM_JOB_ID=$number
    cd "$OLDPWD"
    while true; do
        bash "$FAKE_SLURM/$number.sh"; code=$?
        rm "$FAKE_SLURM/$number.again" 2>/dev/null || break
    done
    echo $code > "$FAKE_SLURM/$number.done"
) > /dev/null 2>&1 &
echo "Submitted batch job $number"
"""
SRUN = """\
#!/bin/bash
while [[ $1 == --* ]]; do
    case $1 in
        --output) out=$2; shift 2;;
        --error) err=$2; shift 2;;
        *) shift;;
    esac
done
named() { local name=${1//%j/$SLURM_JOB_ID}; echo "${name//%t/0}"; }
echo $$ > "$FAKE_SLURM/$SLURM_JOB_ID.pid"
[ -e "$FAKE_SLURM/break" ] && { cat "$FAKE_SLURM/break" > "$(named "$err")"; exit 1; }
exec "$@" >> "$(named "$out")" 2>> "$(named "$err")"
"""
SACCT = """\
#!/bin/bash
echo "JobID|State|NodeList"
while [ $# -gt 0 ]; do
    if [ "$1" = -j ]; then
        state=RUNNING
        code=$(cat "$FAKE_SLURM/$2.done" 2>/dev/null) && { [ "$code" = 0 ] && state=COMPLETED || state=FAILED; }
        [ $state = FAILED ] && [ -e "$FAKE_SLURM/$2.cancelled" ] && state=CANCELLED
        echo "$2|$state|here"
        shift
    fi
    shift
done
"""
SCANCEL = """\
#!/bin/bash
touch "$FAKE_SLURM/$1.cancelled"
kill -TERM "$(cat "$FAKE_SLURM/$1.pid")"
"""
SCONTROL = """\
#!/bin/bash
touch "$FAKE_SLURM/$2.again"
"""
PROGRAMS = {
    "sbatch": SBATCH,
    "srun": SRUN,
    "sacct": SACCT,
    "scancel": SCANCEL,
    "scontrol": SCONTROL,
}


class FakeSlurm:
    """SLURM in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "bin").mkdir(parents=True)
        for name, text in PROGRAMS.items():
            (folder / "bin" / name).write_text(text)
            (folder / "bin" / name).chmod(0o755)
        self.variables = {
            "FAKE_SLURM": str(folder),
            "PATH": f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}",
        }

    def scripts(self) -> list[str]:
        """Return what sbatch was given, in order."""
        return [file.read_text() for file in sorted(self.folder.glob("*.sh"))]

    def living(self) -> list[int]:
        """Return the numbers of the jobs that go on."""
        numbers = (int(file.stem) for file in self.folder.glob("*.pid"))
        return sorted(n for n in numbers if not (self.folder / f"{n}.done").exists())

    def time_is_up(self, worker: int) -> None:
        """Tell the job of a worker process that its time is up, as SLURM does before it is."""
        job = psutil.Process(worker).ppid()
        assert str(job) in {file.read_text().strip() for file in self.folder.glob("*.pid")}
        os.kill(job, signal.SIGUSR2)
