"""What happened? Reports read run folders through `archwright.runs` only."""
