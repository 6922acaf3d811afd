"""Reports of runs: they read run folders through `archwright.runs` only."""
