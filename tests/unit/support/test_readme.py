"""The reader of pages takes every command, and refuses what it cannot execute."""

import subprocess
from pathlib import Path

import pytest

from tests.support.readme import (
    Command,
    ReadmeError,
    Terminal,
    bare,
    blocks,
    clean_copy,
    filled,
    missing,
    unshown_advice,
    with_ids,
)

README = """# Name

Text.

```sh
make demo    # a comment
# a comment alone
yard ls
```

```text
task  running
```

## Part

```sh
yard wait ID
```
"""


def test_every_line_of_a_block_is_a_command_with_its_line_and_output() -> None:
    first, second = blocks(README)
    assert first.heading == "Name"
    assert first.commands == (Command(6, "make demo    # a comment"), Command(8, "yard ls"))
    assert first.shown == ("task  running",)
    assert (second.heading, second.before.split()) == ("Part", ["##", "Part"])
    assert bare(first.commands[0].text) == "make demo"


PAGE = """# Page

```console
$ cat > job.yaml <<END
version: 1
END
$ yard submit job.yaml
045xv4julw8r
...
$ true
```

```yaml
version: 1
```

```shell
kubectl apply
```
"""


def test_a_console_block_has_commands_each_with_its_output() -> None:
    typed, yaml, shell = blocks(PAGE, ("yaml", "shell"))
    assert typed.commands == (
        Command(4, "cat > job.yaml <<END\nversion: 1\nEND"),
        Command(7, "yard submit job.yaml", ("045xv4julw8r",)),
        Command(10, "true"),
    )
    assert (yaml.kind, yaml.commands, shell.kind) == ("yaml", (), "shell")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("```\nyard ls\n```", "a block of kind nothing"),
        ("```yaml\nversion: 1\n```", "a block of kind yaml"),
        ("```console\nid\n$ yard ls\n```", "output that follows no commands"),
        ("```console\n$ yard ls \\\n```", "continues in the next line"),
        ("```console\n$ cat <<END\n```", "a here-document that does not end"),
        ("```console\n```", "a block without a command"),
        ("```console\n$ yard ls\n```\n```text\nout\n```", "output that follows no commands"),
        ("```sh\nyard ls\n", "a block that does not end"),
        ("```sh\n# nothing\n```", "a block without a command"),
        ("```sh\nyard submit \\\n  job.yaml\n```", "continues in the next line"),
        ("```sh\nyard submit - <<EOF\n```", "continues in the next line"),
        ("```text\nout\n```", "output that follows no commands"),
        ("```sh\nyard ls\n```\nText\n```text\nout\n```", "output that follows no commands"),
        ("- a list: ```yard ls```", "a fence that is not alone"),
    ],
)
def test_what_cannot_be_executed_is_an_error(text: str, said: str) -> None:
    with pytest.raises(ReadmeError, match=said):
        blocks(text)


def test_placeholders_are_filled_and_an_unknown_one_is_an_error() -> None:
    known = {"ID": "4kq7w2mz9c1f"}
    assert filled("yard show ID.0   # of ID", known) == "yard show 4kq7w2mz9c1f.0   # of ID"
    assert filled("YARD_DATA=x yard sh -c 'echo $YARD_NODE $HOME'", known).endswith("$HOME'")
    with pytest.raises(ReadmeError, match="nothing fills DIR"):
        filled("yard up --data DIR", known)


def test_output_is_compared_in_order_with_ids_and_numbers_left_open() -> None:
    printed = "4kq7w2mz9c1f.0  running  12.5 s\nstep 40, saved\n"
    assert missing(["9zq7w2mz9c1x.0 running 3 s", "step 7"], printed) == []
    assert missing(["step 7", "9zq7w2mz9c1x.0 running"], printed) == ["9zq7w2mz9c1x.0 running"]
    assert missing(["step 7, lost"], printed) == ["step 7, lost"]
    assert missing(["8 details checked"], "1 detail checked\n") == []
    assert missing(["8 details lost"], "1 detail checked\n") == ["8 details lost"]


def test_errors_hints_and_warnings_that_a_page_leaves_out_are_found() -> None:
    printed = "error: no node 7\nhint: yard nodes\nnode-1\nwarning: late"
    assert unshown_advice(["error: no node 9"], printed) == ["hint: yard nodes", "warning: late"]
    assert unshown_advice(printed.splitlines(), printed) == []


def test_an_id_of_a_page_stands_for_one_id_of_the_run() -> None:
    ids: dict[str, str] = {}
    assert missing(["045xv4julw8r"], "abcdefghijk1\n", ids) == []
    assert ids == {"045xv4julw8r": "abcdefghijk1"}
    assert with_ids("yard show 045xv4julw8r.0", ids) == "yard show abcdefghijk1.0"
    shown = ["045xv4julw8r.0 failed"]
    assert missing(shown, "xyz45hijk123.0 failed\nabcdefghijk1.0 failed\n", ids) == []
    assert missing(shown, "xyz45hijk123.0 failed\n", ids) == shown


def test_paths_durations_and_digests_are_left_open() -> None:
    digest = "49cf6131ef3d42c65c04c5882ff6059632a6e8a60bf24f80a7e2de4b471ac9eb"
    shown = [f"state {digest}", "up 1m30s, data in ~/.local/share", "file:///data/step-7.json"]
    printed = (
        f"state {digest[::-1]}\nup 2.5s, data in /srv/x/ana/.local/share\nfile:///srv/step-9.json"
    )
    assert missing(shown, printed) == []
    assert missing(["nlp / default, in /data"], "nlp / research, in /data") != []


def test_a_terminal_keeps_its_variables_and_says_how_each_command_ended(tmp_path: Path) -> None:
    terminal = Terminal((), {"PATH": "/usr/bin:/bin"}, tmp_path)
    try:
        assert terminal.run("x=$(printf found)   # a comment") == (0, "")
        assert terminal.run('printf "%s" "$x"; cat') == (0, "found")
        assert terminal.run("ls nowhere")[0] == 2
        assert terminal.run("echo $?") == (0, "2\n")
        assert terminal.run("cat <<END\nin two\nlines\nEND") == (0, "in two\nlines\n")
        # The trap is set before "up": bash may miss a signal that comes while it replaces itself.
        waiting = 'sleep 600 & trap "kill $!; exit 130" INT; echo up; wait'
        terminal.begin(f"exec 3>&1; sh -c '{waiting}'")
        assert terminal.until("^up$") == "up\n"
        assert terminal.interrupt()[0] == 130
        assert terminal.run("exit_code() { return 3; }; exit_code")[0] == 3
    finally:
        terminal.close()


def test_a_copy_has_what_git_would_give_and_nothing_else(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    tree.mkdir()
    for name in (".gitignore", "kept", "new", "ignored", "gone"):
        (tree / name).write_text("ignored\n" if name == ".gitignore" else name)
    for words in (["init", "-q"], ["add", ".gitignore", "kept", "gone"]):
        subprocess.run(["git", *words], cwd=tree, check=True)
    (tree / "gone").unlink()
    clean_copy(tree, tmp_path / "copy")
    assert {path.name for path in (tmp_path / "copy").iterdir()} == {".gitignore", "kept", "new"}
