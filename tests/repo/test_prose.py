"""Prose as a test: words that are refused, and the width of docstrings, comments and Markdown."""

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from functools import cache
from typing import NamedTuple

import pytest

from tests.repo.source_tree import ROOT, tracked

WIDTH = 100
# The closing quotes of a docstring may stand beyond it.
QUOTES = '"""'
# Refused words, and what to write instead. Whether "behind" means "after", "where" means "if" or
# "holds" means "contains" cannot be decided here.
REFUSED = {
    r"whoever|whomever": "name the actor: the caller, another process, the client",
    r"nobody|somebody|anybody|everybody": "name the actor: no process, an operator, any client",
    r"told(?! apart)": "a process is notified, gets an error, or is configured",
    r"anew": "again",
    r"let go|lets go|letting go": "release, or discard",
    r"dear": "expensive",
    r"(?<!there )(?:is|are|was|were) no(?! longer| more| \w+er than)(?= \w)": "is not a",
}
REFUSED_WORDS = re.compile(rf"\b(?:{'|'.join(REFUSED)})\b", re.IGNORECASE)

FENCE = re.compile(r"^ *```.*?^ *```$", re.MULTILINE | re.DOTALL)
CODE = re.compile(r"`[^`\n]+`")
# A piece of a line that a line break cannot split: a word, inline code, or a link.
PIECE = re.compile(r"(?:[^\s`\[]|`[^`]+`|\[[^\]]*\]\([^)]*\)|\[|`)+")
NOT_PROSE = re.compile(r"^\s*(?:\||#|>|<!--|!\[|    )")
DRAWN = re.compile(r"[─│┌┐└┘├┤▶▼▲]| {3,}\S|^\s*\||://")
DIRECTIVE = re.compile(r"#(?:!| type:| noqa| pragma| hadolint)")
OTHERS = ("*.html", "*.js", "*.css", "*.sql", "*.toml", "*.yml", "*.service", "*Makefile", "*Dockerfile", "bin/*")
GENERATED = ("docs/reference/", "deploy/catchment.toml", "src/catchment/flight_protocol/")


class Line(NamedTuple):
    """A line of prose, with the file and the number to find it by."""

    name: str
    number: int
    text: str

    def __str__(self) -> str:
        return f"{self.name}:{self.number}: {self.text.strip()}"


def _read(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def _is_written(name: str) -> bool:
    return not name.startswith(GENERATED)


@cache
def _python() -> dict[str, str]:
    return {name: _read(name) for name in tracked("*.py") if _is_written(name)}


@cache
def _markdown() -> dict[str, str]:
    return {name: _read(name) for name in tracked("*.md") if _is_written(name)}


def _part(name: str) -> str:
    """The package of a file of the product; otherwise its top folder."""
    folder, *below = name.split("/")
    return "/".join(["src", *below[1:-1][:1]]) if folder == "src" else folder


PARTS = sorted({_part(name) for name in _python()})


def _docstrings(name: str, text: str) -> Iterator[Line]:
    lines = text.splitlines()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            first = node.body[0] if node.body else None
            if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and ast.get_docstring(node):
                for number in range(first.lineno, (first.end_lineno or first.lineno) + 1):
                    yield Line(name, number, lines[number - 1])


def _comments(name: str, text: str, *, trailing: bool) -> Iterator[Line]:
    """Comments on their own lines, and with `trailing` those after code too."""
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT and not DIRECTIVE.match(token.string):
            if not token.line[: token.start[1]].strip():
                yield Line(name, token.start[0], token.line.rstrip("\n"))
            elif trailing:
                yield Line(name, token.start[0], token.string)


def _messages(name: str, text: str) -> Iterator[Line]:
    """Texts with a space in them, those inside f-strings included; docstrings are among them."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value.strip():
            for offset, line in enumerate(node.value.splitlines()):
                yield Line(name, node.lineno + offset, line)


def _blanked(text: str) -> str:
    """The text with fenced code emptied and its line numbers kept."""
    return FENCE.sub(lambda found: "\n" * found[0].count("\n"), text)


def _refused(lines: Iterator[Line]) -> list[str]:
    return sorted({str(each) for each in lines if REFUSED_WORDS.search(CODE.sub("`", each.text))})


def _wide(lines: Iterator[Line]) -> list[str]:
    """Lines that are too wide and could be broken: they consist of more than a label and one piece."""
    return [
        str(each)
        for each in lines
        if len(each.text.removesuffix(QUOTES)) > WIDTH
        and not DRAWN.search(each.text.strip())
        and len(PIECE.findall(each.text)) > 2
    ]


@pytest.mark.parametrize("part", PARTS)
def test_texts_of_the_code_are_plain_english(part: str) -> None:
    files = {name: text for name, text in _python().items() if _part(name) == part}
    # This file quotes the words that it refuses.
    files.pop("tests/repo/test_prose.py", None)
    found = _refused(
        line for name, text in files.items() for line in (*_comments(name, text, trailing=True), *_messages(name, text))
    )
    assert not found, "\n".join([f"{len(found)} lines; see REFUSED for what to write instead", *found])


def test_texts_of_documents_templates_and_tools_are_plain_english() -> None:
    texts = {name: _blanked(text) for name, text in _markdown().items()}
    texts |= {name: _read(name) for name in tracked(*OTHERS) if _is_written(name)}
    found = _refused(
        Line(name, number, line) for name, text in texts.items() for number, line in enumerate(text.splitlines(), 1)
    )
    assert not found, "\n".join([f"{len(found)} lines; see REFUSED for what to write instead", *found])


@pytest.mark.parametrize("part", PARTS)
def test_docstrings_and_comments_are_at_most_100_columns_wide(part: str) -> None:
    found = _wide(
        line
        for name, text in _python().items()
        if _part(name) == part
        for line in (*_docstrings(name, text), *_comments(name, text, trailing=False))
    )
    assert not found, "\n".join([f"{len(found)} lines", *found])


def test_prose_of_documents_is_at_most_100_columns_wide() -> None:
    found = _wide(
        Line(name, number, line)
        for name, text in _markdown().items()
        for number, line in enumerate(_blanked(text).splitlines(), 1)
        if not NOT_PROSE.match(line)
    )
    assert not found, "\n".join([f"{len(found)} lines", *found])
