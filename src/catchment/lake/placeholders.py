"""DuckLake's placeholders: text such as `{SNAPSHOT_ID}` that it replaces in its metadata SQL.

It replaces them in values too: in commit messages, in partition values, and in the minimum and
maximum of a column, after which filters on that column skip the file. So such text must not reach
the catalog. Inside data files it is safe.
"""

import re

PATTERN = r"\{[A-Z_]+\}"
_TOKEN = re.compile(PATTERN)


def has_token(text: str) -> bool:
    """Return whether DuckLake would replace something in the text."""
    return _TOKEN.search(text) is not None


def without_tokens(text: str) -> str:
    """Return the text with its placeholders in round brackets, which DuckLake does not replace."""
    return _TOKEN.sub(lambda token: f"({token[0][1:-1]})", text)
