"""Device, precision, kernels and compilation: properties of the machine, and settings chosen for it."""
