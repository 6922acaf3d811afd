"""Device, precision, kernels and compilation: the machine's abilities, and the settings chosen for it."""
