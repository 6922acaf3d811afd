def write_page(r, p):
    pass


def write_tables(r, p):
    pass
