"""Studies of given loss surfaces: how often the procedure errs where the truth is known."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from archwright.lab.procedure.standing import Standing, standing
from archwright.lab.procedure.sweep import replicate
from archwright.lab.procedure.verdict import effects
from archwright.lab.results import Effect, RunResult
from archwright.spec.study_spec import StudySpec

Surface = Callable[[int, float], float]
"""(place, k) -> held-out loss in nats at the learning rate start * ratio^k; NaN if the run fails. The places of a
study's seeds are 0, 1 and so on: those that tune first, then those that are compared."""


@dataclass(frozen=True)
class Simulated:
    """A study that was simulated."""

    effects: list[Effect]
    runs: int
    """Runs that it took, of all variants."""
    standing: Standing
    losses: Mapping[str, Mapping[tuple[int, float], float]] = field(repr=False)


def simulate(
    surfaces: Mapping[str, Surface],
    study: StudySpec | None = None,
    *,
    plateau: float = float("inf"),
) -> Simulated:
    """Return what a study says of variants whose losses are drawn from surfaces, the baseline first.

        from bench.simulate import simulate
        noise = np.random.default_rng(0).normal
        valley = lambda seed, k: 4.2 + 0.1 * (k - 0.3) ** 2 + noise(0, 0.02)
        found = simulate({"one": valley, "other": valley})
        print(found.effects[0].outcome, found.runs)

    The runs that are wanted, the placing of learning rates, looks and outcomes are those of real studies, by
    the same code, spikes included; a surface is asked once for each run.

    Args:
        plateau: loss above which nothing was learnt.
    """
    baseline, *others = surfaces
    study = study or StudySpec()
    study = study.model_copy(
        update={"match": "none", "variants": dict.fromkeys(others, ("drawn",))}
    )
    places = {s: i for i, s in enumerate([*study.tuning_seed_numbers, *study.seed_numbers])}
    losses: dict[str, dict[tuple[int, float], float]] = {name: {} for name in surfaces}
    plateaus = dict.fromkeys(surfaces, plateau)
    while (now := standing(study, losses, plateau=plateaus)).wanted:
        for name, seed, k in now.wanted:
            losses[name][seed, k] = surfaces[name](places[seed], k)

    def run(name: str, seed: int, k: float) -> RunResult:
        loss = losses[name][seed, k]
        return RunResult("", name, seed, study.lr_ratio**k, loss, loss, initial_loss=loss)

    replicates = [
        replicate([run(name, seed, k) for k in powers])
        for name, seeds in now.compared.items()
        for seed, powers in seeds.items()
    ]
    edges = [name for name, sweep in now.sweeps.items() if sweep.at_boundary]
    found = effects(replicates, study, baseline, edges=edges, **now.judged)
    return Simulated(found, sum(map(len, losses.values())), now, losses)
