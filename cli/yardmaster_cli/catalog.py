"""The shared options and the examples of each command.

One table for all commands, which a test compares with the commands: every command has examples that
parse, and accepts only the shared options that affect it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

FORMATS: Final = ("table", "wide", "json", "jsonl", "yaml", "csv", "name")
#: Formats of one object; csv has rows only.
OBJECT: Final = ("table", "json", "jsonl", "yaml", "name")
#: Formats of records that are printed one by one.
RECORDS: Final = ("jsonl", "name")


@dataclass(frozen=True, slots=True)
class Entry:
    """The entry of one command.

    Attributes:
        examples: command lines without the leading `yard`.
        formats: the values of `-o`, the default first; empty: no `-o`.
        shared: the names of the other shared options.
    """

    examples: tuple[str, ...]
    formats: tuple[str, ...] = ()
    shared: frozenset[str] = frozenset()


_TABLE: Final = frozenset({"columns", "no_headers", "sort", "limit", "no_color"})
_SERVER: Final = frozenset({"server", "context", "data"})
_DATA: Final = frozenset({"data"})


def _list(*examples: str, of: frozenset[str] = _SERVER) -> Entry:
    """Return the entry of a command that prints a list; `of` adds shared options."""
    return Entry(examples, FORMATS, _TABLE | of)


def _fields(*examples: str) -> Entry:
    """Return the entry of a list whose rows have no name, such as the fields of an object."""
    return Entry(examples, FORMATS[:-1], _TABLE | _SERVER)


def _one(*examples: str, of: frozenset[str] = _SERVER) -> Entry:
    """Return the entry of a command that prints one object; `of` is its shared options."""
    return Entry(examples, OBJECT, of)


def _plain(*examples: str, of: frozenset[str] = _SERVER) -> Entry:
    """Return the entry of a command without `-o`; `of` is its shared options."""
    return Entry(examples, (), of)


_NOTHING: Final = frozenset[str]()

#: The entry of each command, by the words after `yard`; an entry of a group has only examples.
CATALOG: Final[Mapping[str, Entry]] = {
    "": _plain("demo", "submit --gpus 1 -- python train.py", "ls", "--server URL nodes"),
    "submit": _one(
        *("submit job.yaml", "submit --gpus 2 --follow -- python train.py"),
        "submit --context . --follow -- python train.py",
    ),
    "ls": _list(
        *("ls", "ls -p nlp --phase pending,running", "ls --since 2h -o json"),
        *("ls --jobs --since 2d", "ls --queue default -w"),
    ),
    "show": _list("show 4kq7w2mz9c1f", "show 4kq7 --attempts", "show 4kq7 --spec > job.yaml"),
    "explain": _one("explain 4kq7w2mz9c1f.0", "explain 4kq7w2mz9c1f.0 --at -2h"),
    "logs": _plain("logs 4kq7w2mz9c1f", "logs -f --tail 20 4kq7w2mz9c1f.0"),
    "artifacts": _plain("artifacts ls 4kq7w2mz9c1f", "artifacts get 4kq7 --to results"),
    "artifacts ls": _list("artifacts ls 4kq7w2mz9c1f", "artifacts ls 4kq7 --attempt 1 -o json"),
    "artifacts get": _plain(
        "artifacts get 4kq7w2mz9c1f --to results", "artifacts get 4kq7 '*.onnx' --force"
    ),
    "wait": _plain("wait 4kq7w2mz9c1f", "wait 4kq7 --for running --timeout 10m"),
    "cancel": _plain("cancel 4kq7w2mz9c1f", "cancel -p nlp --phase pending --yes"),
    "pause": _plain("pause 4kq7w2mz9c1f --reason maintenance"),
    "resume": _plain("resume 4kq7w2mz9c1f"),
    "set": _plain("set priority 4kq7w2mz9c1f 10"),
    "set priority": _plain("set priority 4kq7w2mz9c1f 10"),
    "set weight": _plain("set weight 4kq7w2mz9c1f 2"),
    "set max-slots": _plain("set max-slots 4kq7w2mz9c1f 16", "set max-slots 4kq7w2mz9c1f none"),
    "erase": _plain("erase 4kq7w2mz9c1f --yes"),
    "shares": _list("shares --pool default", "shares --pool h100 -o wide"),
    "usage": _list("usage --from 7d --by user", "usage --from 2026-01-01 --bucket month -o csv"),
    "nodes": _plain("nodes", "nodes drain node-1 --wait"),
    "nodes ls": _list("nodes", "nodes ls --state drained"),
    "nodes show": _one("nodes show node-1"),
    "nodes slots": _list("nodes slots node-1", "nodes slots node-1 --disable 3 --reason ecc"),
    "nodes enroll": _plain("nodes enroll node-1 --pool default --gpus 8"),
    "nodes revoke": _plain("nodes revoke node-1"),
    "nodes cordon": _plain("nodes cordon node-1 --reason fan"),
    "nodes uncordon": _plain("nodes uncordon node-1"),
    "nodes drain": _plain("nodes drain node-1 --deadline 2h --wait"),
    "pools": _plain("pools", "pools set default policy=fair_share"),
    "pools ls": _list("pools", "pools ls -o wide"),
    "pools show": _one("pools show default"),
    "pools create": _plain("pools create h100 policy=fair_share node-timeout=60s"),
    "pools set": _plain("pools set default policy=priority option.preemption=false"),
    "pools delete": _plain("pools delete h100"),
    "cell": _plain("cell show", "cell set user-tasks=50000"),
    "cell show": _one("cell show"),
    "cell set": _plain("cell set user-tasks=50000", "cell set user.ada=250000"),
    "projects": _plain("projects", "projects create nlp department=research max-slots=64"),
    "projects ls": _list("projects", "projects ls --pool default"),
    "projects show": _one("projects show nlp"),
    "projects create": _plain("projects create nlp department=research max-slots=64"),
    "projects set": _plain("projects set nlp weight=2"),
    "projects delete": _plain("projects delete nlp"),
    "departments": _plain("departments", "departments create research"),
    "departments ls": _list("departments"),
    "departments show": _one("departments show research"),
    "departments create": _plain(
        "departments create research", "departments create vision parent=research rank=200"
    ),
    "departments set": _plain("departments set research quota.h100.limit=32"),
    "departments delete": _plain("departments delete research"),
    "quotas": _plain("quotas --pool h100", "quotas set nlp --pool h100 --gpu 16 --limit 32"),
    "quotas ls": _list("quotas", "quotas --pool h100 -o wide"),
    "quotas set": _plain(
        "quotas set nlp --pool h100 --gpu 16 --limit 32 --over-quota-weight high",
        "quotas set research --department --pool h100 --gpu unlimited --cpus 512 --memory 4Ti",
    ),
    "quotas delete": _plain("quotas delete nlp --pool h100"),
    "users": _plain("users", "users add ana --role user --project nlp"),
    "users ls": _list("users", "users ls -o json"),
    "users add": _one(
        "users add ana --role user --project nlp",
        "users add otto --role operator --cell --expires 30d",
    ),
    "users grant": _plain("users grant ana --role viewer --department research"),
    "users revoke": _plain(
        "users revoke ana --role user --project nlp", "users revoke ana --token t5f0c1e2d3a4"
    ),
    "users rotate": _one("users rotate", "users rotate ana --expires 30d --overlap 1h"),
    "users remove": _plain("users remove ana"),
    "apply": _fields("apply -f org.yaml", "apply -f org.yaml --dry-run"),
    "diff": _fields("diff -f org.yaml"),
    "log": _plain("log stat", "log dump --from -1h"),
    "log cut": _one("log cut --to last --dry-run", "log cut --to cycle:88121 --yes", of=_DATA),
    "log dump": Entry(
        ("log dump --from -1h", "log dump --task 4kq7 --type TaskExited"),
        RECORDS,
        frozenset({"limit", "data"}),
    ),
    "log tail": Entry(("log tail -n 3", "log tail -f"), RECORDS, _DATA),
    "log stat": _list("log stat", "log stat --types", of=_DATA),
    "replay": _plain("replay at -2h", "replay verify"),
    "replay at": _one("replay at -2h", "replay at cycle:88121 --nodes", of=_DATA),
    "replay verify": _one("replay verify", "replay verify --log log.db", of=_DATA),
    "simulate": _list(
        "simulate --policy fifo --policy priority --jobs 1000",
        "simulate waves:1 --out runs",
        of=_NOTHING,
    ),
    "conformance": _plain("conformance tests/conformance/scenarios/*.jsonl", of=_NOTHING),
    "views": _plain("views rebuild"),
    "views rebuild": _one("views rebuild", "views rebuild --only usage", of=_DATA),
    "upgrade": _plain("upgrade show", "upgrade finish"),
    "upgrade show": _one("upgrade show"),
    "upgrade finish": _plain("upgrade finish --yes"),
    "snapshots": _list("snapshots", of=_DATA),
    "dev": _plain("dev", "dev --nodes 2 --slots 4 --policy fair_share", of=_DATA),
    "up": _plain("up", "up --local --agents 4 --gateways 2", of=_DATA),
    "down": _plain("down", "down --purge", of=_DATA),
    "setup": _one("setup --log kafka://broker-1:9092 --cells main", of=_NOTHING),
    "demo": _plain("demo", "demo --executor docker", "demo --running", of=_SERVER | {"no_color"}),
    "doctor": _list("doctor", of=_DATA),
    "login": _plain(
        "login prod https://yard.example.org --token-command 'pass show yard'", of=_NOTHING
    ),
    "whoami": _one("whoami"),
    "contexts": _plain("contexts", "contexts use prod"),
    "contexts ls": _list("contexts"),
    "contexts use": _plain("contexts use prod", of=_NOTHING),
    "config": _list("config"),
    "completion": _plain(
        "completion bash > ~/.local/share/bash-completion/completions/yard",
        "completion zsh",
        "completion fish",
        of=_NOTHING,
    ),
    "version": _one("version", "version --client"),
}


def path_of(command_path: str) -> str:
    """Return the key of a command in `CATALOG`: its path without the leading `yard`."""
    return command_path.partition(" ")[2]
