"""Formats: what each shows, on a terminal and through a pipe."""

import csv
import json
from typing import Any

import pytest
import yaml

from yardmaster.control_characters import plain
from yardmaster_cli.errors import BadUsage
from yardmaster_cli.output.cells import Gpus, Span, When, colored, gpus, render, span
from yardmaster_cli.output.formats import Column, Output

NOW_MS = 1_700_000_000_000
COLUMNS = (
    Column("ID", lambda row: row["id"]),
    Column("PHASE", lambda row: row["phase"]),
    Column("GPUS", lambda row: Gpus(row["milli"]), right=True),
    Column("AGE", lambda row: When(row["at"]), right=True),
    Column("USER", lambda row: row["user"], wide=True),
)
ROWS = [
    {"id": "b.0", "phase": "running", "milli": 8000, "at": "2023-11-14T20:13:20Z", "user": "ann"},
    {"id": "a.0", "phase": "pending", "milli": 500, "at": "2023-11-14T22:13:10Z", "user": None},
]


def output(**given: Any) -> Output:
    return Output(now_ms=lambda: NOW_MS, **given)


def lines(out: Output) -> list[str]:
    return out.lines(ROWS, COLUMNS, name="id", document={"next_cursor": None})


def test_a_pipe_gets_whole_rows_with_exact_times() -> None:
    assert lines(output()) == [
        "ID  PHASE   GPUS                  AGE",
        "b.0 running    8 2023-11-14T20:13:20Z",
        "a.0 pending  0.5 2023-11-14T22:13:10Z",
    ]


def test_a_terminal_gets_relative_times() -> None:
    assert lines(output(terminal=True, width=80)) == [
        "ID  PHASE   GPUS AGE",
        "b.0 running    8  2h",
        "a.0 pending  0.5 10s",
    ]


def test_a_terminal_gets_rows_cut_to_its_width() -> None:
    assert max(map(len, lines(output(terminal=True, width=12)))) == 12


def test_a_terminal_gets_colors_only_on_request() -> None:
    shown = "\n".join(lines(output(terminal=True, width=80, color=True)))
    assert "\x1b[32mrunning\x1b[0m" in shown
    assert "\x1b[" not in "\n".join(lines(output(terminal=True, width=80)))


def test_wide_adds_columns_and_columns_chooses_them() -> None:
    assert lines(output(format="wide"))[0].endswith("USER")
    assert lines(output(columns=("user", "id")))[1:] == ["ann  b.0", "-    a.0"]


def test_headers_can_be_left_out() -> None:
    assert lines(output(headers=False))[0].startswith("b.0")


def test_json_is_one_document_and_jsonl_one_line_a_row() -> None:
    document = json.loads("\n".join(lines(output(format="json"))))
    assert document == {"next_cursor": None, "items": ROWS}
    assert [json.loads(line) for line in lines(output(format="jsonl"))] == ROWS


def test_yaml_holds_the_same_as_json() -> None:
    assert yaml.safe_load("\n".join(lines(output(format="yaml"))))["items"] == ROWS


def test_csv_has_every_column_and_nothing_for_nothing() -> None:
    found = list(csv.DictReader(lines(output(format="csv", terminal=True, width=20))))
    assert found[1] == {
        "id": "a.0", "phase": "pending", "gpus": "0.5", "age": "2023-11-14T22:13:10Z", "user": "",
    }  # fmt: skip


def test_name_prints_ids_alone() -> None:
    assert lines(output(format="name")) == ["b.0", "a.0"]


def test_sort_knows_numbers_and_can_be_turned_round() -> None:
    assert [line[:3] for line in lines(output(sort="gpus"))[1:]] == ["a.0", "b.0"]
    assert [line[:3] for line in lines(output(sort="-gpus"))[1:]] == ["b.0", "a.0"]


def test_limit_shows_so_many() -> None:
    assert len(lines(output(limit=1))) == 2


def test_an_unknown_column_is_bad_usage_with_the_known_ones() -> None:
    with pytest.raises(BadUsage) as caught:
        lines(output(sort="color"))
    assert caught.value.hint == "columns: id, phase, gpus, age, user"


def test_one_object_is_text_or_its_document(capsys: pytest.CaptureFixture[str]) -> None:
    output().one({"id": "x"}, lambda: ["line"], "id")
    output(format="json").one({"id": "x"}, lambda: ["line"], "id")
    output(format="name").one({"id": "x"}, lambda: ["line"], "id")
    assert capsys.readouterr().out == 'line\n{\n  "id": "x"\n}\nx\n'


def test_a_whole_object_has_units_for_people_and_the_api_s_numbers_for_programs(
    capsys: pytest.CaptureFixture[str],
) -> None:
    document = {
        "name": "n1",
        "gpu_milli_used": 2500,
        "memory_mib": 2048,
        "memory_mib_used": 100,
        "limit_milli": None,
        "slots": [{"index": 0, "gpu_milli_used": 1000, "disabled": False}],
        "config": {"node_timeout_s": 90, "start_timeout_s": 3600, "options": {"delay_s": 60}},
        "labels": {"zone_s": "a"},
    }
    output().whole(document, "name")
    assert capsys.readouterr().out == (
        "name: n1\ngpu_used: 2.5\nmemory: 2 GiB\nmemory_used: 100 MiB\nlimit: null\nslots:\n"
        "- index: 0\n  gpu_used: 1\n  disabled: false\n"
        "config:\n  node_timeout: 1m30s\n  start_timeout: 1h\n  options:\n    delay_s: 60\n"
        "labels:\n  zone_s: a\n"
    )
    output(format="yaml").whole(document, "name")
    assert yaml.safe_load(capsys.readouterr().out) == document


def test_quiet_leaves_hints_out_and_data_is_never_on_stderr(
    capsys: pytest.CaptureFixture[str],
) -> None:
    output(quiet=True).note("hint")
    output().note("hint")
    output().say("data")
    shown = capsys.readouterr()
    assert (shown.out, shown.err) == ("data\n", "hint\n")


def test_what_users_wrote_cannot_move_the_cursor() -> None:
    assert plain("a\x1b[2Jb\r\x07c") == "a[2Jbc"
    assert render("x\x1b]0;title\x07", relative=False, now_ms=0) == "x]0;title"


def test_output_of_tasks_keeps_colors_and_lines_only() -> None:
    assert colored("\x1b[31mred\x1b[0m\r\nnext\x1b[2J\tend") == "\x1b[31mred\x1b[0m\nnext[2J\tend"


def test_what_users_wrote_cannot_change_the_order_of_the_text_around_it() -> None:
    noisy = "a" + "".join(
        map(chr, (0x2028, 0x2029, *range(0x202A, 0x202F), *range(0x2066, 0x206A)))
    )
    assert plain(f"{noisy}b") == render(f"{noisy}b", relative=True, now_ms=0) == "ab"
    assert colored(f"{noisy}b\n{noisy}c\n") == "ab\nac\n"
    hebrew = "\u200f\u05e9\u05dc\u05d5\u05dd\u200e!"
    assert (plain(hebrew), colored(hebrew)) == (hebrew, hebrew)


def test_amounts_are_shown_short() -> None:
    assert [span(s) for s in (41, 720, 7200, 432_000, -5)] == ["41s", "12m", "2h", "5d", "0s"]
    assert [gpus(m) for m in (8000, 500, 0, None)] == ["8", "0.5", "0", "-"]
    assert gpus(2500, 1) == "2.5"
    assert render(Span(90.0), relative=False, now_ms=0) == "90"


def test_a_text_continues_on_further_lines_of_a_terminal(
    capsys: pytest.CaptureFixture[str],
) -> None:
    line = "Fair share  its project would hold 5 GPUs, its share of default is 4 GPUs"
    output(terminal=True, width=40).one({}, lambda: [line, "short"], "id")
    assert capsys.readouterr().out.splitlines() == [
        "Fair share  its project would hold 5",
        "            GPUs, its share of default",
        "            is 4 GPUs",
        "short",
    ]
    output().one({}, lambda: [line], "id")
    assert capsys.readouterr().out == line + "\n"


def test_a_colored_line_that_fits_the_terminal_is_printed_as_it_is() -> None:
    line = "\x1b[1mPOOL CODE\x1b[0m"
    assert output(terminal=True, width=9).wrapped(line) == [line]


def test_the_last_column_of_a_table_within_a_text_continues_on_further_lines() -> None:
    table = output(terminal=True, width=40).table(
        ["POOL", "ASKED", "NUMBERS"], [["default", 1, "gpus, free 0, short 1, used 4"]], "ASKED"
    )
    assert table == [
        "POOL    ASKED NUMBERS",
        "default     1 gpus, free 0, short 1,",
        "              used 4",
    ]


def test_a_last_column_of_few_characters_leaves_nothing_out() -> None:
    table = output(terminal=True, width=24).table(["POOL", "NUMBERS"], [["a" * 15, "free 0, b 1"]])
    assert [line[16:] for line in table] == ["NUMBERS", "free 0,", "b 1"]
