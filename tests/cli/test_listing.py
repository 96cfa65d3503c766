"""Tables as wide as the terminal: names stay whole, and the least important columns are dropped."""

from catchment.cli.listing import Listing

TABLES = Listing(
    title="Queue",
    columns=("table", "rows", "bytes"),
    rows=[("main.events", "3", "1.2 kB"), ("main.a_longer_name", "12,345", "50.9 kB")],
)
STATEMENTS = Listing(
    title="Slow", columns=("user", "statement"), rows=[("ann", "SELECT 1"), ("ann", "x" * 90)], is_last_cut=True
)


def test_everything_is_shown_if_it_fits() -> None:
    assert TABLES.fitted(35) == TABLES


def test_columns_that_do_not_fit_are_left_out_from_the_right_and_named() -> None:
    found = TABLES.fitted(34)
    assert found.title == "Queue (too narrow for: bytes)"
    assert found.columns == ("table", "rows")
    assert found.rows == [("main.events", "3"), ("main.a_longer_name", "12,345")]


def test_a_name_that_is_wider_than_the_terminal_goes_on_in_the_next_line() -> None:
    found = TABLES.fitted(10)
    assert found.columns == ("table",)
    assert found.rows == [("main.event\ns",), ("main.a_lon\nger_name",)]


def test_rows_that_are_too_many_are_counted_and_do_not_make_the_table_wider() -> None:
    many = Listing(title="Moves", columns=("tenant",), rows=[("t1",), ("t2",), ("t" * 60,)], rows_max=2)
    found = many.fitted(20)
    assert found.title == "Moves (the first 2 of 3)"
    assert found.rows == [("t1",), ("t2",)]


def test_a_text_gets_what_the_other_columns_leave() -> None:
    assert STATEMENTS.fitted(200) == STATEMENTS
    assert STATEMENTS.fitted(40).rows == [("ann", "SELECT 1"), ("ann", "x" * 33 + "…")]


def test_a_text_of_which_next_to_nothing_would_be_left_is_left_out() -> None:
    found = STATEMENTS.fitted(25)
    assert found.title == "Slow (too narrow for: statement)"
    assert found.rows == [("ann",), ("ann",)]
