"""The report of a study: page, tables, terminal and advice."""
