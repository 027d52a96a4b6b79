"""Tables on a terminal."""

from pace.table import aligned


def test_columns_are_as_wide_as_their_widest_cell() -> None:
    assert aligned([["a", "b"], ["longer", "10"]]) == "a        b\nlonger  10"


def test_no_line_ends_in_blanks() -> None:
    assert aligned([["name", ""], ["x", "1"]]).splitlines()[0] == "name"
