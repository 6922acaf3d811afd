"""A study's page and tables, made from `StudyResults` and nothing else."""

from archwright.lab.page.csv_files import write_tables
from archwright.lab.page.whole import study_page, write_page

__all__ = ["study_page", "write_page", "write_tables"]
