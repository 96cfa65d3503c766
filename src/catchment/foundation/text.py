"""Text for people: counted nouns."""


def plural(number: int, noun: str, nouns: str | None = None) -> str:
    """Return a number with its noun; `nouns` is the plural if it is not `noun` with an s."""
    return f"{number:,} {noun if number == 1 else nouns or f'{noun}s'}"
