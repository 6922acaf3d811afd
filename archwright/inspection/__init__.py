"""Statistics of a model while it trains, profiles of its steps, and laws that every choice keeps."""
