"""Statistics of a model while it trains, and profiles of its steps."""
