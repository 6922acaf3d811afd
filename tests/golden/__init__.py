"""Golden losses: 20 compositions of choices, the losses of 10 steps of each, and how each is called and drawn."""
