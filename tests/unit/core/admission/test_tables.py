"""Tables: drafts, and a digest that depends only on the rows."""

from yardmaster_core.admission.tables import Table


def table(**rows):
    made = Table("row", str)
    for name, row in rows.items():
        made.put(name, row)
    return made


def test_a_draft_shows_the_rows_of_its_base_until_it_changes_them():
    below = table(a=1, b=2)
    draft = below.draft()
    draft.put("a", 10)
    draft.put("b", None)
    draft.put("c", 3)
    assert [draft.get(name) for name in "abcd"] == [10, None, 3, None]
    assert list(below.items()) == [("a", 1), ("b", 2)]


def test_a_drafts_digest_is_that_of_a_table_with_the_same_rows():
    draft = table(a=1, b=2).draft()
    draft.put("a", 10)
    draft.put("b", None)
    draft.put("c", 3)
    assert draft.total() == table(a=10, c=3).total()


def test_a_draft_does_not_change_the_digest_of_its_base():
    below = table(a=1)
    before = below.total()
    draft = below.draft()
    draft.put("a", 2)
    assert draft.total() != before
    assert below.total() == before


def test_the_digest_does_not_depend_on_the_order_of_changes():
    one, other = table(a=1, b=2), table()
    for name, row in [("b", 7), ("c", 1), ("a", 1), ("c", None), ("b", 2)]:
        other.put(name, row)
        other.total()
    assert one.total() == other.total()


def test_the_sum_of_an_empty_table_is_zero():
    gone = table(a=1)
    gone.total()
    gone.put("a", None)
    assert (gone.total(), table().total()) == (0, 0)


def test_equal_rows_of_another_kind_or_name_have_another_hash():
    other = Table("other", str)
    other.put("a", 1)
    assert len({table(a=1).total(), table(b=1).total(), table(a=2).total(), other.total()}) == 4


def test_only_rows_that_changed_are_hashed():
    hashed: list[str] = []

    def line(row: str) -> str:
        hashed.append(row)
        return row

    made = Table("row", line)
    for name in "abc":
        made.put(name, name)
    made.total()
    hashed.clear()
    made.put("a", "x")
    made.put("a", "y")
    made.total()
    made.total()
    assert hashed == ["a", "y"]
