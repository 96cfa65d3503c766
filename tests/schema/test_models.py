"""Models: columns from annotations and defaults, and refusals with an explanation."""

from datetime import UTC, date, datetime
from typing import Any, ClassVar, Optional

import pytest

from catchment.errors import InputError
from catchment.schema.models import FieldKind, TableRow, fields_of, sqlite_structure
from catchment.schema.structure import DeclaredColumn, DeclaredTable, Reference


class Team(TableRow):
    """Refers to a model that comes later, which refers back."""

    name: str
    captain: "Player | None" = None


class Player(TableRow):
    """One field of every kind."""

    __tablename__ = "players"
    LIMIT: ClassVar[int] = 5

    nick: str = "it's"
    goals: int = 0
    height: float = 1.5
    photo: bytes = b"\x01"
    active: bool = True
    born: date = date(2000, 1, 2)
    seen: datetime | None = None
    tags: list[str] = []  # noqa: RUF012
    facts: dict[str, int] | None = None
    team: Team
    mentor: Optional["Player"] = None


class Stamped(TableRow):
    """A model that others are made of."""

    made_at: datetime


class Note(Stamped):
    """Inherits a field."""

    text: str


def _table(*models: type[TableRow]) -> DeclaredTable:
    return sqlite_structure(models).tables[0]


def test_every_annotation_has_its_column_and_models_refer_to_each_other_in_any_order() -> None:
    team, players = sqlite_structure([Team, Player]).tables
    assert team == DeclaredTable(
        name="Team",
        columns=(
            DeclaredColumn(name="id", type="INTEGER", primary_key=1),
            DeclaredColumn(name="name", type="TEXT", nullable=False),
            DeclaredColumn(name="captain", type="Player_ID", default="NULL"),
        ),
        references=(Reference(columns=("captain",), table="players", targets=("id",)),),
    )
    assert players.name == "players"
    assert [(column.name, column.type, column.nullable, column.default) for column in players.columns] == [
        ("id", "INTEGER", True, None),
        ("nick", "TEXT", False, "'it''s'"),
        ("goals", "INTEGER", False, "0"),
        ("height", "REAL", False, "1.5"),
        ("photo", "BLOB", False, "x'01'"),
        ("active", "BOOL", False, "TRUE"),
        ("born", "DATE", False, "'2000-01-02'"),
        ("seen", "DATETIME", True, "NULL"),
        ("tags", "JSON", False, "'[]'"),
        ("facts", "JSON", True, "NULL"),
        ("team", "Team_ID", False, None),
        ("mentor", "Player_ID", True, "NULL"),
    ]
    assert [reference.table for reference in players.references] == ["Team", "players"]


def test_fields_are_independent_of_the_dialect() -> None:
    team = fields_of(Player)[-2]
    assert (team.name, team.kind, team.relation, team.nullable, team.has_default) == (
        "team",
        FieldKind.RELATION,
        Team,
        False,
        False,
    )


def test_inherited_fields_come_first_and_id_before_all() -> None:
    assert [column.name for column in _table(Note).columns] == ["id", "made_at", "text"]


def test_an_id_that_is_declared_is_the_same_as_one_that_is_not() -> None:
    class Declared(TableRow):
        name: str
        id: int | None = None

    assert [(column.name, column.primary_key) for column in _table(Declared).columns] == [("id", 1), ("name", 0)]


def test_a_model_of_a_function_refers_to_itself_and_to_its_neighbours() -> None:
    class Leaf(TableRow):
        branch: "Branch"

    class Branch(TableRow):
        parent: "Branch | None"

    leaf, branch = sqlite_structure([Leaf, Branch]).tables
    assert (leaf.references[0].table, branch.references[0].table) == ("Branch", "Branch")


def _model(annotation: Any, **attributes: Any) -> type[TableRow]:
    return type("Thing", (TableRow,), {"__annotations__": {"field": annotation}, "__module__": __name__, **attributes})


@pytest.mark.parametrize(
    "annotation",
    [set, complex, "Nowhere", str | int, TableRow, Any, tuple[int, ...], 5, "1 +", "list[Nowhere]"],
)
def test_an_annotation_that_no_column_can_be_is_refused_with_the_names_and_what_there_is(annotation: Any) -> None:
    with pytest.raises(InputError, match=r"Thing\.field") as refused:
        fields_of(_model(annotation))
    assert "bytes" in f"{refused.value.message} {refused.value.hint}"


@pytest.mark.parametrize(
    ("annotation", "default"),
    [
        (int, "1"),
        (int, True),
        (int, None),
        (float, float("nan")),
        (float, float("inf")),
        (str, object()),
        (str, "\x00"),
        (date, datetime(2020, 1, 1, tzinfo=UTC)),
        (list, [object()]),
        (Team, 1),
        (datetime, datetime.now),
    ],
)
def test_a_default_that_is_not_a_literal_of_its_type_is_refused_with_the_names(
    annotation: Any, default: object
) -> None:
    with pytest.raises(InputError, match=r"Thing\.field: the default"):
        fields_of(_model(annotation, field=default))


def test_models_that_do_not_go_together_are_refused() -> None:
    class Twin(TableRow):
        __tablename__ = "PLAYERS"

    class Cased(TableRow):
        name: str
        Name: str

    class Wrong(TableRow):
        id: str  # type: ignore[assignment]

    with pytest.raises(InputError, match="Player and Twin both describe"):
        sqlite_structure([Team, Player, Twin])
    with pytest.raises(InputError, match=r"Team\.captain refers to Player, which is not among"):
        sqlite_structure([Team])
    with pytest.raises(InputError, match="name and Name are the same name"):
        sqlite_structure([Cased])
    with pytest.raises(InputError, match=r"Wrong\.id"):
        sqlite_structure([Wrong])


@pytest.mark.parametrize("name", ["sqlite_x", "_migrations", "_new_x", "", "a\nb"])
def test_a_table_cannot_have_a_name_that_is_kept_for_something_else(name: str) -> None:
    with pytest.raises(InputError):
        sqlite_structure([_model(int, __tablename__=name)])


def test_the_same_model_twice_is_one_table() -> None:
    assert len(sqlite_structure([Note, Note]).tables) == 1


def test_rows_are_made_by_keyword_compared_by_value_and_share_no_default() -> None:
    team = Team(id=1, name="A")
    first, second = Player(team=team), Player(team=team)
    assert first == second
    assert first != Player(team=team, goals=1)
    first.tags.append("x")
    assert (second.tags, Player.tags) == ([], [])
    assert repr(team) == "Team(id=1, name='A', captain=None)"
    assert Note(made_at=datetime(2020, 1, 1, tzinfo=UTC), text="t") != team
    with pytest.raises(TypeError, match="a value for 'name' is needed"):
        Team()  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="no field 'nmae'"):
        Team(name="A", nmae="B")  # type: ignore[call-arg]
