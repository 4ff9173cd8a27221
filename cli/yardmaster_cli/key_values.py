"""KEY=VALUE arguments of `pools|projects|departments create|set`, applied to a configuration.

`overlay` reads them; `texts_of` is its inverse.

Keys are written with `-` or `_`. `max-slots` and quotas are numbers of GPUs or CPUs, memory and
times have units.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from yardmaster.yaml_tree import nearest, scalar
from yardmaster_cli.errors import BadUsage
from yardmaster_schemas.about import USER_UNITS, abouts
from yardmaster_schemas.events.requests import (
    CONFIGURATIONS,
    CellConfig,
    DepartmentConfig,
    PolicyRef,
    PoolConfig,
    ProjectConfig,
    Quota,
)
from yardmaster_schemas.quantities import duration_s, memory_mib, milli

Body = dict[str, Any]
#: Values that remove a limit.
NO_LIMIT: Final = ("none", "unlimited", "-")
UNLIMITED: Final = "unlimited"
#: Words for over-quota weights.
WEIGHTS: Final[Mapping[str, int]] = {"none": 0, "low": 1, "medium": 2, "high": 3}
_SWITCH: Final = {"on": True, "true": True, "off": False, "false": False}


def _text(text: str) -> Any:
    return text


def _whole(text: str) -> Any:
    try:
        return int(text)
    except ValueError:
        raise ValueError(f"expected a whole number, not {text[:32]}") from None


def _names(text: str) -> Any:
    return [part for part in text.split(",") if part]


def _number(text: str, what: str, word: str) -> int:
    try:
        amount = float(text)
    except ValueError:
        raise ValueError(f"expected a number of {what} or {word}, not {text[:32]}") from None
    return milli(amount, what)


def _gpus(text: str) -> Any:
    return None if text in NO_LIMIT else _number(text, "GPUs", NO_LIMIT[0])


def _cpus(text: str) -> Any:
    return None if text in NO_LIMIT else _number(text, "CPUs", NO_LIMIT[0])


def _memory(text: str) -> Any:
    return None if text in NO_LIMIT else memory_mib(text)


def _deserved(text: str) -> Any:
    # One field would contradict an earlier value of the other.
    if text == UNLIMITED:
        return {"deserved_milli": None, "deserved_unlimited": True}
    amount = None if text in NO_LIMIT else _number(text, "GPUs", UNLIMITED)
    return {"deserved_milli": amount, "deserved_unlimited": False}


def _deserved_cpus(text: str) -> Any:
    return None if text == UNLIMITED else _number(text, "CPUs", UNLIMITED)


def _deserved_memory(text: str) -> Any:
    if text == "none":
        raise ValueError(f"expected an amount of memory (0Mi is nothing) or {UNLIMITED}, not none")
    return None if text == UNLIMITED else memory_mib(text)


def _weight(text: str) -> Any:
    if text in WEIGHTS:
        return WEIGHTS[text]
    if not text.isdecimal():
        raise ValueError(f"expected {', '.join(WEIGHTS)} or a whole number, not {text[:32]}")
    return int(text)


def _switch(text: str) -> Any:
    if text not in _SWITCH:
        raise ValueError(f"expected on or off, not {text[:32]}")
    return _SWITCH[text]


def _name(text: str) -> Any:
    return None if text == "none" else text


def _limit(text: str) -> Any:
    return None if text in NO_LIMIT else _whole(text)


def _names_or_none(text: str) -> Any:
    return None if text in NO_LIMIT else _names(text)


def _optional_text(text: str) -> str | None:
    return None if text == "none" else text


def _seconds(text: str) -> Any:
    return int(text) if text.isdecimal() else duration_s(text)


def _optional_seconds(text: str) -> Any:
    return None if text == "none" else _seconds(text)


@dataclass(frozen=True, slots=True)
class Key:
    """A key that commands accept.

    Attributes:
        path: the field of the configuration that the key sets.
        read: parses the text of a value. If it returns a mapping, the mapping's keys are the fields
            to set, in place of the last field of `path`.
        value: the form of a value, for the help.
        about: the meaning, for the help; empty: not listed, because the server refuses it yet.
    """

    path: tuple[str, ...]
    read: Callable[[str], Any]
    value: str
    about: str = ""


#: The names of fields as keys, for texts that refer to them.
_KEYS: Final = {
    name: name.removesuffix("_s").replace("_", "-")
    for model in CONFIGURATIONS
    for name in abouts(model)
}


def _of(
    model: type,
    name: str,
    read: Callable[[str], Any],
    value: str,
    also: str = "",
    *,
    path: tuple[str, ...] | None = None,
) -> Key:
    """The key of a model's field, described by the field's text; `also` is added to the text."""
    none = next((word for word in ("none", "unlimited") if word in value.split("|")), "default")
    text = abouts(model)[name].written(USER_UNITS, none)
    text = re.sub(r"`(\w+)`", lambda found: f"`{_KEYS.get(found[1], found[1])}`", text)
    return Key(path or (name,), read, value, f"{text} {also}".rstrip())


_POLICY: Final = ("policy", "name")
POOL: Final[Mapping[str, Key]] = {
    "policy": _of(
        *(PolicyRef, "name", _text, "NAME"),
        "New pool: priority. A change drops its options.",
        path=_POLICY,
    ),
    "policy-version": _of(PolicyRef, "version", _whole, "N", path=("policy", "version")),
    "placement": _of(PoolConfig, "placement", _text, "NAME"),
    "default-priority": _of(PoolConfig, "default_priority", _whole, "N"),
    "node-timeout": _of(PoolConfig, "node_timeout_s", _seconds, "TIME"),
    "start-timeout": _of(PoolConfig, "start_timeout_s", _seconds, "TIME"),
    "max-grace": _of(PoolConfig, "max_grace_s", _seconds, "TIME"),
    "fence": _of(PoolConfig, "fence", _text, "none|kill"),
    "unequal-gangs": _of(PoolConfig, "unequal_gangs", scalar, "true|false"),
    "gpuless-per-node": _of(PoolConfig, "gpuless_per_node", _limit, "N|none"),
    "seed": _of(PoolConfig, "seed", _whole, "N"),
    "pool-order": _of(PoolConfig, "pool_order", _text, "idle_first|strict"),
    "gpu-placement": _of(PoolConfig, "gpu_placement", _optional_text, "packed|spread|none"),
    "images": _of(PoolConfig, "images", _names, "PREFIX,..."),
    "mounts": _of(PoolConfig, "mounts", _names, "NAME[:rw],..."),
    "users": _of(PoolConfig, "users", _names, "UID:GID,..."),
    "git-hosts": _of(PoolConfig, "git_hosts", _names, "HOST,..."),
}
_QUEUE: Final[Mapping[str, Key]] = {
    "rank": _of(DepartmentConfig, "rank", _whole, "N"),
    "preempt-min-runtime": _of(
        DepartmentConfig, "preempt_min_runtime_s", _optional_seconds, "TIME|none"
    ),
    "reclaim-min-runtime": _of(
        DepartmentConfig, "reclaim_min_runtime_s", _optional_seconds, "TIME|none"
    ),
}
PROJECT: Final[Mapping[str, Key]] = {
    "department": _of(ProjectConfig, "department", _text, "NAME", "New project: default."),
    "weight": _of(ProjectConfig, "weight", _whole, "N"),
    **_QUEUE,
    "pools": _of(ProjectConfig, "pools", _names, "NAME,..."),
    "node-types": _of(ProjectConfig, "node_types", _names, "NAME,..."),
    "kinds": _of(
        ProjectConfig, "kinds", _names, "KIND,...", "Kinds: training, interactive, inference."
    ),
    "best-priority": _of(ProjectConfig, "best_priority", _whole, "N"),
    "default-priority": _of(ProjectConfig, "default_priority", _whole, "N"),
    "max-slots": _of(ProjectConfig, "limit_milli", _gpus, "N|none"),
    "max-min-runtime": _of(ProjectConfig, "max_min_runtime_s", _seconds, "TIME"),
    "max-pending": _of(ProjectConfig, "max_pending", _whole, "N"),
    "max-unfinished": _of(ProjectConfig, "max_unfinished", _limit, "N|none"),
    "checkpoint-prefixes": _of(ProjectConfig, "checkpoint_prefixes", _names, "URI,..."),
    "default-pools": _of(ProjectConfig, "default_pools", _names, "NAME,..."),
    "images": _of(ProjectConfig, "images", _names, "PREFIX,..."),
    "mounts": _of(ProjectConfig, "mounts", _names, "NAME[:rw],..."),
    "users": _of(ProjectConfig, "users", _names, "UID:GID,..."),
    "git-hosts": _of(ProjectConfig, "git_hosts", _names, "HOST,..."),
}
CELL: Final[Mapping[str, Key]] = {
    "default-pools": _of(CellConfig, "default_pools", _names, "NAME,..."),
    "project-tasks": _of(CellConfig, "project_tasks", _whole, "N"),
    "user-tasks": _of(CellConfig, "user_tasks", _whole, "N"),
}
_USER: Final = _of(CellConfig, "tasks_of", _limit, "N|none", path=("tasks_of", "USER"))
DEPARTMENT: Final[Mapping[str, Key]] = {
    "weight": Key(("weight",), _whole, "N"),
    "parent": _of(DepartmentConfig, "parent", _name, "NAME|none"),
    **_QUEUE,
}

#: The keys of one quota. Only the policy `quota` reads them, except `limit`.
QUOTA: Final[Mapping[str, Key]] = {
    "deserved": _of(Quota, "deserved_milli", _deserved, "N|unlimited|none"),
    "limit": _of(Quota, "limit_milli", _gpus, "N|none"),
    "over-quota-weight": _of(
        *(Quota, "over_quota_weight", _weight, "none|low|medium|high|N"),
        "none, low, medium and high are 0 to 3.",
    ),
    "over-quota": _of(Quota, "over_quota", _switch, "on|off"),
    "deserved-cpus": _of(Quota, "deserved_cpu_milli", _deserved_cpus, "N|unlimited"),
    "deserved-memory": _of(Quota, "deserved_memory_mib", _deserved_memory, "SIZE|unlimited"),
    "limit-cpus": _of(Quota, "limit_cpu_milli", _cpus, "N|none"),
    "limit-memory": _of(Quota, "limit_memory_mib", _memory, "SIZE|none"),
}
_OPTION: Final = _of(PolicyRef, "options", scalar, "VALUE", path=("policy", "options"))
_KIND_NODE_TYPES: Final = _of(
    *(ProjectConfig, "kind_node_types", _names_or_none, "NAME,...|none"),
    path=("kind_node_types", "KIND"),
)


def listed(known: Mapping[str, Key]) -> Mapping[str, Key]:
    """The keys to list in the help: `known`, and further keys of `overlay`, if they are supported.

    `option.NAME`, `user.USER`, `kind-node-types.KIND` and the keys of `quota.POOL` stand for all
    keys of that form.
    """
    further = (
        {"option.NAME": _OPTION}
        if known is POOL
        else {"user.USER": _USER}
        if known is CELL
        else {
            f"quota.POOL.{name}": replace(key, path=("quotas", "POOL", *key.path))
            for name, key in QUOTA.items()
        }
    )
    if known is PROJECT:
        further = {"kind-node-types.KIND": _KIND_NODE_TYPES, **further}
    return {name: key for name, key in {**known, **further}.items() if key.about}


def overlay(body: Mapping[str, Any], pairs: Sequence[str], known: Mapping[str, Key]) -> Body:
    """Return a copy of `body` with KEY=VALUE pairs applied.

    Further keys are `option.NAME` of a pool's policy, `user.USER` of a cell, `kind-node-types.KIND`
    of a project, and `quota.POOL.KEY` of a project or department (`QUOTA`). Another policy drops
    the options of the previous one.

    Raises:
        BadUsage: an unknown key, or a value that its key does not accept.
    """
    changed = _copy(body)
    # The policy is applied first: another policy has other options.
    for pair in sorted(pairs, key=lambda pair: not pair.startswith("policy=")):
        key, equals, text = pair.partition("=")
        if not equals:
            raise BadUsage(f"{pair}: expected KEY=VALUE")
        found = _key(key.replace("_", "-"), known)
        path = found.path
        try:
            value = found.read(text)
        except ValueError as error:
            raise BadUsage(f"{key}: {error}") from None
        inner = changed
        for part in path[:-1]:
            inner = inner.setdefault(part, {})
        if path == _POLICY and inner.get("name") != value:
            inner.pop("options", None)
        if isinstance(value, dict) and path[0] == "quotas":
            inner |= value
        else:
            inner[path[-1]] = value
        if path[0] in ("tasks_of", "kind_node_types") and value is None:
            del inner[path[-1]]
    return changed


def canonical(key: str, known: Mapping[str, Key]) -> str:
    """Return a key as `texts_of` names it; `key` is one that `overlay` accepts."""
    name = key.replace("_", "-")
    head, dot, rest = name.partition(".")
    if dot and head == "option" and known is POOL:
        return f"option.{rest.replace('-', '_')}"
    if dot and head == "user" and known is CELL:
        return f"user.{rest}"
    return name


def _key(name: str, known: Mapping[str, Key]) -> Key:
    if name in known:
        return known[name]
    head, _, rest = name.partition(".")
    if head == "option" and rest and known is POOL:
        return replace(_OPTION, path=(*_OPTION.path, rest.replace("-", "_")))
    if head == "user" and rest and known is CELL:
        return replace(_USER, path=("tasks_of", rest))
    if head == "kind-node-types" and rest and known is PROJECT:
        return replace(_KIND_NODE_TYPES, path=("kind_node_types", rest))
    if head == "quota" and known not in (POOL, CELL):
        pool, _, what = rest.rpartition(".")
        if pool and what in QUOTA:
            return replace(QUOTA[what], path=("quotas", pool, *QUOTA[what].path))
        raise BadUsage(f"{name}: expected quota.POOL.KEY", hint=f"keys: {', '.join(QUOTA)}")
    like = nearest(name, known)
    raise BadUsage(
        f"unknown key {name}",
        hint=f"did you mean {like}?" if like else f"keys: {', '.join(listed(known))}",
    )


def _copy(body: Mapping[str, Any]) -> Body:
    return {key: _copy(value) if isinstance(value, dict) else value for key, value in body.items()}


def texts_of(config: Mapping[str, Any], keys: Mapping[str, Key]) -> dict[str, str]:
    """Return every key of a configuration (plain JSON) with the text that sets its value.

    A key whose field is unset, which no text does, is left out.
    """
    found = {name: _written(key, _at(config, key.path)) for name, key in keys.items()}
    for family, key, path in (
        ("option", _OPTION, _OPTION.path),
        ("user", _USER, _USER.path[:-1]),
        ("kind-node-types", _KIND_NODE_TYPES, _KIND_NODE_TYPES.path[:-1]),
    ):
        members = _at(config, path) or {}
        found |= {f"{family}.{name}": _written(key, value) for name, value in members.items()}
    for pool, quota in (config.get("quotas") or {}).items():
        found |= {f"quota.{pool}.{name}": text for name, text in quota_texts(quota).items()}
    return {name: text for name, text in found.items() if text is not None}


def quota_texts(quota: Mapping[str, Any]) -> dict[str, str]:
    """Return every key of a quota (plain JSON) with the text that sets its value."""
    found = {name: _written(key, quota.get(key.path[-1])) for name, key in QUOTA.items()}
    if quota.get("deserved_unlimited"):
        found["deserved"] = UNLIMITED
    return {name: text for name, text in found.items() if text is not None}


def _at(config: Mapping[str, Any], path: tuple[str, ...]) -> Any:
    """The value at a path of a nested configuration; None if the path does not exist."""
    found: Any = config
    for part in path:
        found = (found or {}).get(part)
    return found


def _written(key: Key, value: Any) -> str | None:
    """The text that sets a key to `value`; None: `value` is None and no text unsets the key."""
    if value is None:
        return _UNSET.get(key.read)
    if key.read in _WRITERS:
        return _WRITERS[key.read](value)
    if isinstance(value, bool):
        return "true" if value else "false"
    return ",".join(value) if isinstance(value, list) else str(value)


def _amount(thousandths: int) -> str:
    whole, rest = divmod(thousandths, 1000)
    return f"{whole}.{rest:03}".rstrip("0") if rest else f"{whole}"


def _size(mib: int) -> str:
    for unit, size in (("Ti", 2**20), ("Gi", 2**10)):
        if mib and mib % size == 0:
            return f"{mib // size}{unit}"
    return f"{mib}Mi"


def _time(seconds: int) -> str:
    """The seconds in the largest unit that divides them: 120 is `2m`, 90 is `90s`."""
    for unit, size in (("d", 86_400), ("h", 3600), ("m", 60)):
        if seconds and seconds % size == 0:
            return f"{seconds // size}{unit}"
    return f"{seconds}s"


_WORDS: Final = {number: word for word, number in WEIGHTS.items()}
#: Reading function -> writing function; a value of another reading function is written unchanged.
_WRITERS: Final[Mapping[Callable[[str], Any], Callable[[Any], str]]] = {
    **dict.fromkeys((_gpus, _cpus, _deserved, _deserved_cpus), _amount),
    **dict.fromkeys((_memory, _deserved_memory), _size),
    **dict.fromkeys((_seconds, _optional_seconds), _time),
    _weight: lambda number: _WORDS.get(number, str(number)),
    _switch: lambda on: "on" if on else "off",
}
#: Reading function -> the text that unsets the field.
_UNSET: Final[Mapping[Callable[[str], Any], str]] = {
    **dict.fromkeys((_gpus, _cpus, _memory, _deserved, _name, _limit), "none"),
    **dict.fromkeys((_names_or_none, _optional_text, _optional_seconds), "none"),
    **dict.fromkeys((_deserved_cpus, _deserved_memory), UNLIMITED),
}
