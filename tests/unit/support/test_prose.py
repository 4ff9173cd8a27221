"""Where the sentences of a page end."""

from tests.support.prose import one_sentence_a_line, paragraphs, sentences


def test_a_sentence_ends_before_a_capital_a_digit_code_and_emphasis() -> None:
    text = "One is 0.1. `two` is (code.) 3 GPUs? *four* ends. [Five](five.md)."
    assert sentences(text) == [
        *("One is 0.1.", "`two` is (code.)", "3 GPUs?", "*four* ends.", "[Five](five.md)."),
    ]


def test_no_sentence_ends_in_code_a_link_an_abbreviation_or_a_leading_label() -> None:
    for text in (
        "Type `a. B` or see [the page](a. B.md), e.g. Kafka (Weng et al. 2023).",
        "**Demand.** A claimant has a demand.",
        "`kafka://... --cells` is an option",
    ):
        assert sentences(text) == [text]


def test_the_lines_of_an_item_are_indented_as_its_text() -> None:
    page = "- One\n  line. Two.\n- Three.\n\n```text\nA. B\n```\n\n| A. B |\n\n1. Four.\n   Five.\n"
    assert [one_sentence_a_line(paragraph) for paragraph in paragraphs(page)] == [
        ["- One line.", "  Two."],
        ["- Three."],
        ["1. Four.", "   Five."],
    ]
