"""The texts of settings."""

from dataclasses import fields

import pytest

from yardmaster_schemas.about import API_UNITS, USER_UNITS, About, abouts
from yardmaster_schemas.events.requests import CONFIGURATIONS


@pytest.mark.parametrize("model", CONFIGURATIONS)
def test_each_field_of_a_configuration_has_a_text_and_an_example(model: type) -> None:
    texts = abouts(model)
    assert list(texts) == [each.name for each in fields(model)]
    assert all(each.text.endswith(".") and each.example is not None for each in texts.values())


def test_a_text_has_the_units_and_the_word_for_no_value_of_its_reader() -> None:
    limit = About("The most {gpus} held at once.", 8000, "no limit")
    api = "The most thousandths of a GPU held at once; null: no limit."
    assert limit.written(API_UNITS, "null") == api
    assert limit.written(USER_UNITS, "none") == "The most GPUs held at once; none: no limit."
    deserved = About("The {memory} that it deserves.", 8000, "unlimited")
    assert deserved.written(USER_UNITS, "unlimited") == "The memory that it deserves."
    shares = About("Which GPUs. `spread`: the emptiest.", "spread", "the placement chooses")
    several = "Which GPUs. `spread`: the emptiest. null: the placement chooses."
    assert shares.written(API_UNITS, "null") == several
