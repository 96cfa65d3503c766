"""Verbs: each is declared once, emitted as declared, and in the reference."""

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

from catchment.foundation.event_catalogue import AROUND, IDS, VERBS
from tests.repo.source_tree import ROOT, modules

SHAPE = re.compile(r"[a-z]+(_[a-z]+)*")
# Calls whose first argument is a verb. The import's own `_say` notes in its folder what it emits.
EMITTERS = {"events.emit": None, "emit": None, "self._log_event": "pipeline.legacy.job"}


@dataclass(frozen=True)
class Emitted:
    """A place that emits; `level` and `facts` are None if they are not literals."""

    place: str
    verb: str
    level: str | None
    facts: frozenset[str] | None


@cache
def _emitted() -> tuple[Emitted, ...]:
    return tuple(_read())


def _read() -> Iterator[Emitted]:
    for module in modules():
        for node in ast.walk(module.tree):
            if not isinstance(node, ast.Call) or ast.unparse(node.func) not in EMITTERS:
                continue
            name = ast.unparse(node.func)
            if EMITTERS[name] not in (None, module.name):
                continue
            verb, place = node.args[0], f"{module.name}:{node.lineno}"
            if not isinstance(verb, ast.Constant):
                assert module.name == EMITTERS["self._log_event"], f"{place} emits a verb that cannot be read there"
                continue
            levels = [ast.unparse(each.value) for each in node.keywords if each.arg == "level"]
            level = (levels or ["logging.INFO"])[0]
            names = [each.arg for each in node.keywords]
            yield Emitted(
                place,
                str(verb.value),
                level.removeprefix("logging.").lower() if level.startswith("logging.") else None,
                None if None in names else frozenset(each for each in names if each is not None),
            )


def test_every_verb_is_declared_and_every_declared_verb_is_emitted() -> None:
    assert {each.verb for each in _emitted()} == set(VERBS)


def test_a_verb_is_emitted_at_its_level() -> None:
    for each in _emitted():
        declared = VERBS[each.verb].level
        assert declared == each.level or (each.level is None and " or " in declared), f"{each.place}: {each.verb}"


def test_an_event_has_the_ids_that_its_verb_promises() -> None:
    for each in _emitted():
        if each.facts is not None:
            missing = set(VERBS[each.verb].ids) - each.facts - set(AROUND)
            assert not missing, f"{each.place}: {each.verb} has no {', '.join(sorted(missing))}"


def test_a_verb_is_in_snake_case_and_says_what_it_means_and_what_to_do() -> None:
    for verb, declared in VERBS.items():
        assert SHAPE.fullmatch(verb)
        assert declared.means.endswith("."), verb
        assert not declared.act or declared.act.endswith((".", "?")), verb
        assert declared.level in ("debug", "info") or declared.act, f"{verb} is grave, and does not say what to do"
        assert set(declared.ids) <= set(IDS), verb


def test_a_verb_is_in_the_reference() -> None:
    text = (ROOT / "docs" / "reference" / "logs.md").read_text(encoding="utf-8")
    assert [verb for verb, told in VERBS.items() if f"| `{verb}` | {told.level} | {told.means}" not in text] == []


def test_ids_of_the_context_are_declared_as_ids() -> None:
    assert set(AROUND) <= set(IDS)
