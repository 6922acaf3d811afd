"""Reports of runs; run folders are read only through `archwright.runs`."""
