"""Suggestions for the largest costs of a plan."""

from collections.abc import Iterator

from archwright import format as fmt
from archwright.catalogue.part_titles import MEMORY, part_title
from archwright.planning.plans import Plan
from archwright.planning.training_memory import Setup

MUCH = 0.25
"""Smallest share of the FLOPs that leads to a suggestion."""


def advice(plan: Plan) -> Iterator[str]:
    """Yield suggestions, most urgent first."""
    yield from _fit(plan)
    total = sum(plan.forward_flops.values())
    for part, flops in plan.forward_flops.items():
        if flops >= MUCH * total and part.endswith("between tokens"):
            yield (
                f"{part_title(part)}: {fmt.percent(flops / total)} of the FLOPs at this context; windows in some "
                "layers, or a shorter context in most of the training, take less"
            )
        elif flops >= MUCH * total and part == "head":
            yield (
                f"head: {fmt.percent(flops / total)} of the FLOPs; a smaller vocabulary takes less"
            )
    exchange, links = plan.training.exchange, plan.training.links
    if exchange is not None and exchange > plan.training.bound:
        where = max(links, key=lambda name: links[name] or 0.0)
        yield (
            f"communication: at least {fmt.duration(exchange)} of a step {where}, where compute takes "
            f"{fmt.duration(plan.training.bound)} at 100 % MFU; more tokens a step for each device, or expert "
            "parallelism, whose weights stay where they are, take less"
        )
    serving = plan.serving
    if serving is not None and plan.decodes and serving.largest_batch < 32:
        yield (
            f"cache: {fmt.size(plan.cache_bytes_per_text)} a sequence, so that {serving.largest_batch} are served at "
            "once; fewer KV heads, latent attention, windows, or more devices serve more"
        )


def _fit(plan: Plan) -> Iterator[str]:
    work, setup = plan.workload, plan.setup
    least = plan.smallest.memory
    if setup is None and least.total > plan.workload.memory:
        sizes = vars(least)
        most = max(sizes, key=lambda name: float(sizes[name]))
        yield (
            f"memory: at least {fmt.size(least.total)} on each device, of which {fmt.size(sizes[most])} are "
            f"{MEMORY[most]}; a plan fills {fmt.size(plan.workload.memory)}"
        )
    elif setup is None:
        texts = fmt.significant(work.texts)
        yield (
            f"batch: {texts} sequences a step are too few for {work.devices:,} devices; expected a larger --batch, or "
            "fewer devices"
        )
    elif setup.checkpointing == "full" and plan.sends_more is not None:
        yield (
            "communication: whole layers are computed again, which takes up to a third more FLOPs than are counted, so "
            f"that micro-batches have {_sequences(setup)} and send less; with checkpointing "
            f"{plan.sends_more.checkpointing} {_sequences(plan.sends_more)} fit. A faster interconnect would "
            "spare that"
        )
    elif setup.checkpointing == "full":
        yield (
            "memory: whole layers are computed again, which takes up to a third more FLOPs than are counted; more "
            "devices, or shorter sequences, would spare that"
        )


def _sequences(setup: Setup) -> str:
    number = setup.batch.micro
    return f"{number} sequence{'s' * (number != 1)}"
