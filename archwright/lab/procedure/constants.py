"""Constants of a study's procedure, with their sources.

"Simulated": chosen on the surfaces TUNING of `bench.replay` and checked on the surfaces HELD_OUT.
"""

ALPHA = 0.05
"""Probability of calling any variant better or worse than an equally good baseline. Convention."""

# Looks
KEPT_BACK = 0.2
"""Share of the error reserved for pairs added after the end; each addition spends half of the rest. Convention."""
FRACTIONS = (0.5, 0.7, 1.0)
"""Looks, as shares of the seeds."""
FIRST_LOOK = 5
"""Fewest pairs of a look before the end: with fewer, no interval of signed ranks has a level of 90 %."""
SPENDING = 2.5
"""Power of the error-spending function (Kim and DeMets, 1987)."""
EARLY_MARGIN = 0.5
"""Share of the margin used for equivalence before the last look. With the full margin, half of the gains of 0.5 %
ended as equivalent where pairs deviate by 0.2 % of the loss. Simulated."""
COMPANION = 0.9
"""Level of the interval of signed ranks, which must exclude 0 for a variant to be better or worse."""

# Tuning
MOVES = 4
"""Most moves of a variant's window by its first seed."""
SLIDES = 2
"""Most moves of the window after that, by the mean over all tuning seeds."""
FINER = 0.02
"""Rise next to the lowest loss, as a share of it, above which whole steps become half steps. Simulated."""
START = 64
"""Windows start at multiples of 1/64 of a step, so that powers are exact sums of binary fractions."""
RISE = 0.05
"""Largest rise to a neighbour, as a share of the lowest loss: a higher one fits no parabola and is cut off."""

# Placing
PLACING = 0.05
"""Excess of a vertex over the lowest loss, as a share of the rise A next to it: a cubic term A/2 x (x² - 1), invisible
in three losses a step x apart, costs 0.06 A. Simulated."""
MISPLACED = 3.0
"""Standard error of a vertex over its mean excess, which is as skewed as chi-square. Simulated."""
USUAL_SPREAD = 0.1
"""Prior standard deviation of a seed's bottom, in steps; measured: 0.05 to 0.06, in docs/unlike-pool.csv."""

# Spikes
SPIKE = 5.0
"""Threshold of a spike, in robust standard deviations above its variant's median. Convention."""
SPIKE_FLOOR = 0.001
"""Smallest standard deviation in that threshold, as a share of the median loss."""
HALVED = 1.0
"""Placing error of a halved learning rate, as a share of the rise of the parabola there."""

PAIRS = 4
"""Pairs that are also trained for shares of the steps."""
LEAST_PAIRS = 2
"""Fewest pairs with shorter horizons: a mean of one has no error."""
