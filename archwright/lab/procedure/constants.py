"""Constants of a study's procedure, each with its source or the simulation that chose it.

Simulated constants were chosen on the surfaces TUNING of `bench.replay` alone; the surfaces HELD_OUT judge them.
"""

ALPHA = 0.05
"""Probability that any variant of a study is called better or worse than an equally good baseline. Convention."""

# Looks
KEPT_BACK = 0.2
"""Share of the error kept for pairs that are added after the end; each addition spends half of the rest. Convention."""
FRACTIONS = (0.5, 0.7, 1.0)
"""Shares of the seeds after which a study is looked at."""
FIRST_LOOK = 5
"""Fewest pairs of a look before the end: with fewer, no interval of signed ranks has a level of 90 %."""
SPENDING = 2.5
"""Power of the share of the pairs with which the error is spent (Kim and DeMets, 1987)."""
EARLY_MARGIN = 0.5
"""Share of the margin within which an interval lies for equivalence before the last look. With the whole margin there,
half of the gains of 0.5 % ended as equivalent at the noise of docs/ten-choices. Simulated."""
COMPANION = 0.9
"""Level of the interval of signed ranks that must leave out 0 before a variant is called better or worse."""

# Tuning
MOVES = 4
"""Moves of a variant's window by its first seed, at most."""
SLIDES = 2
"""Moves of the window by the mean over all tuning seeds after that, at most."""
FINER = 0.02
"""Rise next to the lowest loss, as a share of it, above which whole steps become half steps. Simulated."""
START = 64
"""Learning rates start at a multiple of 1/64 of a step: their powers are exact sums of binary fractions."""
RISE = 0.05
"""Share of the lowest loss that a neighbour's rise counts as, at most: a higher one belongs to no parabola."""

# Placing
PLACING = 0.05
"""Share of the rise next to the lowest loss by which a parabola's vertex may miss the lowest loss: a cubic term
A/2 x (x² - 1), invisible in three losses a step x apart, costs 0.06 A. Simulated."""
MISPLACED = 3.0
"""Times the mean excess of a vertex, which is as skewed as chi-square, that counts as its standard error. Simulated."""
USUAL_SPREAD = 0.1
"""Standard deviation of a seed's bottom, in steps, that stands in for the spread of too few seeds: measured are 0.05 to
0.06, in docs/unlike-pool.csv."""

# Spikes
SPIKE = 5.0
"""Robust standard deviations above its variant's median beyond which a compared run is a spike. Convention."""
SPIKE_FLOOR = 0.001
"""Smallest standard deviation for that, as a share of the median loss: less is no reason to change a learning rate."""
HALVED = 1.0
"""Share of the rise that the parabola predicts at a halved rate by which the loss there may be too high."""

PAIRS = 4
"""Pairs that are also trained for shares of the steps."""
LEAST_PAIRS = 2
"""Pairs whose shorter horizons tell anything: the error of a mean of one is not known."""
