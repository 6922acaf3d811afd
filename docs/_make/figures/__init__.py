"""`python -m docs._make.figures [PAGE ...]` draws the figures of docs/course.

Each module has the figures of one page. A public function without arguments is a figure: it computes with the package,
returns a matplotlib figure, and its name is that of the file in docs/course/figures.
"""
