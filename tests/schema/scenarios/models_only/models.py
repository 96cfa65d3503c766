"""The models of this scenario."""

from catchment.schema.models import TableRow


class User(TableRow):
    """A person."""

    __tablename__ = "users"

    name: str


MODELS: list[type[TableRow]] = [User]
