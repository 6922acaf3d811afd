"""Data only: published architectures, recipes for runs."""
