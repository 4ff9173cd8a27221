"""How output is cut into pieces."""

from hypothesis import given
from hypothesis import strategies as st

from yardmaster_node_agent.output import whole_characters


@given(st.text(), st.integers(min_value=0))
def test_a_cut_never_splits_a_character(text: str, at: int) -> None:
    data = text.encode()
    whole = whole_characters(data[: at % (len(data) + 1)])
    assert text.startswith(whole.decode())
    assert (at % (len(data) + 1)) - len(whole) < 4


@given(st.binary())
def test_bytes_that_are_not_text_wait_for_at_most_three_more(data: bytes) -> None:
    whole = whole_characters(data)
    assert data.startswith(whole)
    assert len(data) - len(whole) <= 3
    assert whole_characters(data + b"....") == data + b"...."
