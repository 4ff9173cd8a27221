"""KEY=VALUE arguments of `pools|projects|departments create|set`, applied to a configuration.

Keys are written with `-` or `_`. `max-slots` and quotas are numbers of GPUs, times have units.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from yardmaster.yaml_tree import nearest, scalar
from yardmaster_cli.errors import BadUsage
from yardmaster_schemas.quantities import duration_s, milli

Body = dict[str, Any]
#: Values that remove a limit.
NO_LIMIT: Final = ("none", "unlimited", "-")


def _text(text: str) -> Any:
    return text


def _whole(text: str) -> Any:
    try:
        return int(text)
    except ValueError:
        raise ValueError(f"a whole number, not {text[:32]}") from None


def _names(text: str) -> Any:
    return [part for part in text.split(",") if part]


def _gpus(text: str) -> Any:
    if text in NO_LIMIT:
        return None
    try:
        amount = float(text)
    except ValueError:
        raise ValueError(f"a number of GPUs or {NO_LIMIT[0]}, not {text[:32]}") from None
    return milli(amount, "GPUs")


def _limit(text: str) -> Any:
    return None if text in NO_LIMIT else _whole(text)


def _seconds(text: str) -> Any:
    return int(text) if text.isdecimal() else duration_s(text)


KeyReader = tuple[tuple[str, ...], Callable[[str], Any]]

_POLICY: Final = ("policy", "name")
POOL: Final[Mapping[str, KeyReader]] = {
    "policy": (_POLICY, _text),
    "policy-version": (("policy", "version"), _whole),
    "placement": (("placement",), _text),
    "default-priority": (("default_priority",), _whole),
    "node-timeout": (("node_timeout_s",), _seconds),
    "start-timeout": (("start_timeout_s",), _seconds),
    "max-grace": (("max_grace_s",), _seconds),
    "fence": (("fence",), _text),
    "unequal-gangs": (("unequal_gangs",), scalar),
    "gpuless-per-node": (("gpuless_per_node",), _limit),
    "seed": (("seed",), _whole),
}
PROJECT: Final[Mapping[str, KeyReader]] = {
    "department": (("department",), _text),
    "weight": (("weight",), _whole),
    "pools": (("pools",), _names),
    "node-types": (("node_types",), _names),
    "kinds": (("kinds",), _names),
    "best-priority": (("best_priority",), _whole),
    "default-priority": (("default_priority",), _whole),
    "max-slots": (("limit_milli",), _gpus),
    "max-min-runtime": (("max_min_runtime_s",), _seconds),
    "max-pending": (("max_pending",), _whole),
}
DEPARTMENT: Final[Mapping[str, KeyReader]] = {"weight": (("weight",), _whole)}

_QUOTA: Final[Mapping[str, KeyReader]] = {
    "deserved": (("deserved_milli",), _gpus),
    "limit": (("limit_milli",), _gpus),
    "over-quota-weight": (("over_quota_weight",), _whole),
}


def overlay(body: Mapping[str, Any], pairs: Sequence[str], known: Mapping[str, KeyReader]) -> Body:
    """Return a copy of `body` with KEY=VALUE pairs applied.

    Further keys are `option.NAME` of a pool's policy, and `quota.POOL.limit` of a project or
    department (`deserved` and `over-quota-weight` are not supported yet). Another policy drops the
    options of the previous one.

    Raises:
        BadUsage: an unknown key, or a value that its key does not accept.
    """
    changed = _copy(body)
    # The policy is applied first: another policy has other options.
    for pair in sorted(pairs, key=lambda pair: not pair.startswith("policy=")):
        key, equals, text = pair.partition("=")
        if not equals:
            raise BadUsage(f"{pair}: expected KEY=VALUE")
        path, read = _reader(key.replace("_", "-"), known)
        try:
            value = read(text)
        except ValueError as error:
            raise BadUsage(f"{key}: {error}") from None
        inner = changed
        for part in path[:-1]:
            inner = inner.setdefault(part, {})
        if path == _POLICY and inner.get("name") != value:
            inner.pop("options", None)
        inner[path[-1]] = value
    return changed


def _reader(key: str, known: Mapping[str, KeyReader]) -> KeyReader:
    if key in known:
        return known[key]
    head, _, rest = key.partition(".")
    if head == "option" and rest and known is POOL:
        return ("policy", "options", rest.replace("-", "_")), scalar
    if head == "quota" and known is not POOL:
        pool, _, what = rest.rpartition(".")
        if pool and what in _QUOTA:
            path, read = _QUOTA[what]
            return ("quotas", pool, *path), read
        raise BadUsage(f"{key}: expected quota.POOL.KEY", hint=f"keys: {', '.join(_QUOTA)}")
    extra = ("option.NAME",) if known is POOL else ("quota.POOL.limit",)
    like = nearest(key, known)
    raise BadUsage(
        f"unknown key {key}",
        hint=f"did you mean {like}?" if like else f"keys: {', '.join((*known, *extra))}",
    )


def _copy(body: Mapping[str, Any]) -> Body:
    return {key: _copy(value) if isinstance(value, dict) else value for key, value in body.items()}
