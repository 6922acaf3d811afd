"""`archwright check` finds what recurrences get wrong: each fault is planted in the gated delta rule from outside."""

import os
import time
from pathlib import Path

import pytest

from archwright.testing import check_file
from tests.testing.test_laws import checked_apart

pytestmark = [pytest.mark.usefixtures("visitors"), pytest.mark.slow]

RULE = Path(__file__).parents[1] / "outside" / "gated_delta.py"
CUT = """
def cut(some, where):
    return type(some)(*(None if x is None else x[:, where] for x in some))


def zeros(state):
    return {name: 0 * tensor for name, tensor in state.items()}
"""
SCAN = "    def scan(self, inputs, state, boundaries):\n        length = inputs.v.shape[1]\n"

FORGETS_INSIDE = (
    SCAN
    + """
        if length <= {n}:
            return super().scan(inputs, state, boundaries)
        before, after = slice(0, {n}), slice({n}, None)
        first, new = super().scan(cut(inputs, before), state, cut(boundaries, before))
        last, new = super().scan(cut(inputs, after), zeros(new), cut(boundaries, after))
        return torch.cat((first, last), 1), new
"""
)
FORGETS_AT_AN_INDEX = (
    SCAN
    + """
        resets = self.index % {n} == 0
        return super().scan(inputs, state, boundaries._replace(resets=resets.expand(len(inputs.v), -1)))

    def forward(self, x, context, state=None, projected=None):
        self.index = context.layout.index_or_range()
        return super().forward(x, context, state, projected)
"""
)
FORGETS_AFTER = (
    SCAN
    + """
        out, new = super().scan(inputs, state, boundaries)
        return out, zeros(new) if length > {n} else new
"""
)
IGNORES_PADDING = (
    SCAN
    + """
        if len(inputs.v) == 1 and boundaries.real is not None:
            real = boundaries.real.long(){seen}.bool()
            boundaries = boundaries._replace(real=real)
        return super().scan(inputs, state, boundaries)
"""
)
FORGETS_CHUNKS = (
    SCAN
    + """
        outs = []
        for start in range(0, length, self.chunk_size):
            some = slice(start, start + self.chunk_size)
            out, new = super().scan(cut(inputs, some), state, cut(boundaries, some))
            state = zeros(new)
            outs.append(out)
        return torch.cat(outs, 1), new
"""
)
BREAKS_THE_GRAPH = (
    SCAN
    + """
        if inputs.v.abs().max().item() > 1e30:
            raise ValueError("too large")
        return super().scan(inputs, state, boundaries)
"""
)
FAULTS = {
    **{
        f"state lost at token {n}": (FORGETS_INSIDE.format(n=n), "long_cached_is_uncached")
        for n in (16, 24, 32, 64, 256)
    },
    **{
        f"state lost at every {n}th token of a text": (
            FORGETS_AT_AN_INDEX.format(n=n),
            "forgets_at_no_fixed_token",
        )
        for n in (16, 24, 256)
    },
    "state of long prompts lost": (FORGETS_AFTER.format(n=256), "long_cached_is_uncached"),
    "padding on the left ignored at batch 1": (
        IGNORES_PADDING.format(seen=".flip(1).cummax(1).values.flip(1)"),
        "padding_is_nothing",
    ),
    "padding on the right ignored at batch 1": (
        IGNORES_PADDING.format(seen=".cummax(1).values"),
        "cached_rows_of_different_lengths",
    ),
    "chunks forget": (FORGETS_CHUNKS, "chunk_size_changes_nothing"),
    "a layer does not compile": (BREAKS_THE_GRAPH, "compiles"),
}


@pytest.mark.sampled(fast=3)
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_of_a_recurrence_is_found_in_time(fault: str, tmp_path: Path) -> None:
    scan, law = FAULTS[fault]
    text = RULE.read_text("utf-8")
    head, rest = text.split("\n\nclass GatedDelta(", 1)
    text = f"{head}\n{CUT}\n\nclass GatedDelta({rest}".replace(
        "    def output", f"{scan}\n    def output", 1
    )
    file = tmp_path / "mine.py"
    file.write_text(text, "utf-8")
    start = time.process_time()
    if law == "compiles":
        findings = checked_apart(file)
    else:
        (checked,) = check_file(file)
        findings = {f.law: (f.state, f.found) for f in checked.findings}
    assert time.process_time() - start < 20
    assert findings[law][0] == "broken"


def test_the_rule_keeps_every_law_in_time() -> None:
    before = os.times()
    findings = checked_apart(RULE)
    after = os.times()
    assert {law: found for law, found in findings.items() if found[0] != "ok"} == {}
    spent = after.children_user + after.children_system
    assert spent - before.children_user - before.children_system < 20
