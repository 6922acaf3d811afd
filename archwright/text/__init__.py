"""Reading text and turning it into tokens."""
