"""Procedure of a study: tuning, looks, intervals and verdicts, computed from losses."""
