"""Which choice is better, and how sure are we? Studies: what is held equal, what is run, what follows."""
