"""What the user asks sbatch for."""

from archwright.spec.errors import UserError

OURS = {
    "nodes": "a run is trained on one",
    "ntasks": "a run is one task",
    "ntasks_per_node": "a run is one task",
    "tasks_per_node": "a run is one task",
    "array": "--workers says how many go at once",
    "array_parallelism": "--workers says how many go at once",
    "job_name": "name=NAME is that",
    "output": "submitit writes into the study's folder",
    "error": "submitit writes into the study's folder",
}
"""What is not for the user to say, and why."""

WHOLE = ("timeout_min", "cpus_per_task", "gpus_per_node", "signal_delay_s")

CLUSTERS = ("slurm", "local")
"""local: processes of this machine in its place, by submitit, to try how a study goes."""


def parameters(text: str) -> dict[str, str]:
    """Return what `partition=gpu,time=60` says, in sbatch's names; what has no `=` belongs to the value before it.

    Raises:
        UserError: no name, a name twice, or one that is not the user's to say.
    """
    found: dict[str, str] = {}
    name = ""
    for piece in filter(None, text.split(",")):
        key, equals, value = piece.partition("=")
        if not equals and not name:
            raise UserError(
                f'--slurm: found "{piece}"; expected NAME=VALUE,..., as sbatch names it: partition=gpu,time=60'
            )
        if not equals:
            found[name] += f",{piece}"
            continue
        name = key.strip().lstrip("-").replace("-", "_")
        if name in found:
            raise UserError(f"--slurm: {name} is given twice")
        if name in OURS:
            raise UserError(f"--slurm: {name} is not yours to say: {OURS[name]}")
        found[name] = value.strip()
    if (cluster := found.get("cluster", "slurm")) not in CLUSTERS:
        raise UserError(
            f'--slurm: cluster: found "{cluster}"; expected one of {", ".join(CLUSTERS)}'
        )
    if time_limit := found.pop("time", ""):
        found["timeout_min"] = time_limit
    for name in WHOLE:
        if name in found and not (found[name].isdecimal() and int(found[name]) > 0):
            said, unit = ("time", " of minutes") if name == "timeout_min" else (name, "")
            raise UserError(
                f'--slurm: {said}: found "{found[name]}"; expected a whole number{unit}, such as 60'
            )
    return found
