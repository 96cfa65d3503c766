"""Change the schema of a database that has rows, twice, and keep every one of them."""

import sys
from contextlib import closing
from pathlib import Path
from sqlite3 import connect

import catchment
from catchment import TableRow
from catchment.errors import ScriptError


class Customer(TableRow):
    __tablename__ = "customers"

    name: str


class OrderAtFirst(TableRow):
    __tablename__ = "orders"

    customer: int
    total: str
    note: str | None


class OrderThen(TableRow):
    __tablename__ = "orders"

    customer: Customer
    total: float
    note: str = ""


class OrderNow(TableRow):
    __tablename__ = "orders"

    customer: Customer
    amount: float
    note: str = ""


def main(folder: Path) -> None:
    path = folder / "shop.sqlite"
    if path.exists():
        sys.exit(f"{path} is there already; name another folder.")
    folder.mkdir(parents=True, exist_ok=True)
    with catchment.open(folder / "home") as c:
        with c.schema.open(path, [Customer, OrderAtFirst]) as migrate:
            c.schema.develop(migrate, on_step=lambda step: print("first:", step))
        fill(path)

        with c.schema.open(path, [Customer, OrderThen]) as rebuild:
            print(rebuild.check().status())
            rebuild.generate()
            print(rebuild.rehearse().report())
            for script in rebuild.check().pending:
                rebuild.apply(script)

        with c.schema.open(path, [Customer, OrderNow]) as rename:
            script_path = rename.generate()
            assert script_path is not None
            try:
                rename.apply(script_path.name)
            except ScriptError as error:
                print("refused:", error)
            decide(script_path)
            rename.apply(script_path.name)

            print("state:", rename.check().state.name)
            print("backups:", ", ".join(backup.name for backup in rename.backups()))
    with closing(connect(path)) as connection:
        rows, total = connection.execute("SELECT count(*), sum(amount) FROM orders").fetchone()
    print("rows in the database:", rows)
    print("sum of their amounts:", total)


def fill(path: Path) -> None:
    with closing(connect(path)) as connection, connection:
        connection.execute("INSERT INTO customers (name) VALUES ('Ada'), ('Grace')")
        orders = [(1 + number % 2, f"{number}.5", None) for number in range(1_000)]
        connection.executemany("INSERT INTO orders (customer, total, note) VALUES (?, ?, ?)", orders)
        # A default does not apply to rows that have NULL: forbidding NULL needs a value for them.
        connection.execute("UPDATE orders SET note = ''")


def decide(script: Path) -> None:
    """Choose the first option, as a developer does with an editor."""
    text = script.read_text(encoding="utf-8").replace("-- undecided: orders\n", "")
    script.write_text(text.replace("-- ALTER TABLE", "ALTER TABLE", 1), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
