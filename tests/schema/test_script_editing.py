"""The simulated developer reads scripts correctly: open options, choices, and parts to write."""

from tests.schema.migration_model import decided, is_open, left_to_people

LEFT = 'notes cannot be changed by a generated script. by_hand_4 has "a" in quotes, which SQLite takes for a text.'
CHOICE = f"""\
-- Read it.

-- undecided: notes
-- Renamed?
--
-- [1] a became b (score 0.80)
-- ALTER TABLE "notes" RENAME COLUMN "a" TO "b";
--
-- [2] nothing was renamed; the old values are deleted
-- -- undecided: notes
-- -- {LEFT}
--

-- undecided: notes, tags
-- Renamed?
--
-- [1] tags became posts
-- ALTER TABLE "tags" RENAME TO "posts";
--
"""


def test_an_option_that_was_not_chosen_leaves_nothing_open() -> None:
    text = decided(CHOICE, lambda _: 1)
    assert not is_open(text)
    assert [line for line in text.split("\n") if line.startswith("ALTER")] == [
        'ALTER TABLE "notes" RENAME COLUMN "a" TO "b";',
        'ALTER TABLE "tags" RENAME TO "posts";',
    ]
    assert left_to_people(text) == [("notes", "by_hand_4", "a")]
    assert not left_to_people(text, depth_max=1)


def test_each_choice_has_its_own_options() -> None:
    text = decided(CHOICE, {2: 1, 1: 2}.__getitem__)
    assert '\nALTER TABLE "notes"' in text
    assert '\n-- ALTER TABLE "tags"' in text


def test_an_undecided_option_stays_open() -> None:
    text = decided(CHOICE, lambda options: options)
    assert is_open(text)
    assert left_to_people(text, depth_max=1) == [("notes", "by_hand_4", "a")]


def test_without_options_nothing_is_chosen() -> None:
    text = f"-- undecided: notes\n-- {LEFT}\n"
    assert decided(text, lambda _: 1 // 0) == text
    assert is_open(text)
