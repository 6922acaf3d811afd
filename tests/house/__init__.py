"""How the house stands: counts of what makes code hard to read, each with the number that is aimed at."""
