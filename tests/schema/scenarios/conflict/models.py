"""The models of this scenario."""

from catchment.schema.models import TableRow


class User(TableRow):
    """A person."""

    __tablename__ = "users"

    name: str
    email: str = ""


class Profile(TableRow):
    """What a person says about themselves."""

    __tablename__ = "profiles"

    owner: User
    bio: str | None


MODELS: list[type[TableRow]] = [User, Profile]
