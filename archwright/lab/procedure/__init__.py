"""The procedure of a study: tuning, looks, intervals and verdicts, from losses alone."""
