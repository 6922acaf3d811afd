"""Cost, counted from the model built without memory, and from this machine's measured peak."""
