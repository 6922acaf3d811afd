"""Design of a study: variants of equal size, their cost, and the plan."""
