"""`key=value` arguments of pools, projects and departments."""

from collections.abc import Mapping
from dataclasses import fields

import pytest

from yardmaster_cli.errors import BadUsage
from yardmaster_cli.key_values import (
    CELL,
    DEPARTMENT,
    POOL,
    PROJECT,
    QUOTA,
    Key,
    canonical,
    listed,
    overlay,
    texts_of,
)
from yardmaster_schemas.api import DepartmentConfig, PoolConfig, ProjectConfig, Quota


def test_pairs_are_laid_over_what_is_there_and_the_rest_stays() -> None:
    before = {"department": "research", "weight": 1}
    after = overlay(before, ["weight=2", "max-slots=64", "pools=h100,a100"], PROJECT)
    assert after == {
        "department": "research", "weight": 2, "limit_milli": 64_000, "pools": ["h100", "a100"],
    }  # fmt: skip
    assert before == {"department": "research", "weight": 1}


def test_quotas_and_options_have_keys_below_them() -> None:
    body = {"quotas": {"h100": {"deserved_milli": 1000}}}
    after = overlay(body, ["quota.h100.limit=2.5", "quota.a100.deserved=1"], DEPARTMENT)
    assert after["quotas"] == {
        "h100": {"deserved_milli": 1000, "limit_milli": 2500},
        "a100": {"deserved_milli": 1000, "deserved_unlimited": False},
    }
    assert overlay({}, ["option.preemption=false", "node-timeout=2m"], POOL) == {
        "policy": {"options": {"preemption": False}},
        "node_timeout_s": 120,
    }


def test_another_policy_drops_the_options_of_the_former_one() -> None:
    before = {"policy": {"name": "priority", "options": {"preemption": False}}}
    assert overlay(before, ["policy=priority"], POOL) == before
    assert overlay(before, ["policy=fair_share"], POOL) == {"policy": {"name": "fair_share"}}
    changed = overlay(before, ["option.half-life=7d", "policy=fair_share"], POOL)
    assert changed == {"policy": {"name": "fair_share", "options": {"half_life": "7d"}}}


def test_a_limit_can_be_lifted() -> None:
    assert overlay({"limit_milli": 1000}, ["max-slots=none"], PROJECT) == {"limit_milli": None}


def test_a_pool_says_how_it_places() -> None:
    pairs = ["unequal-gangs=true", "gpuless-per-node=100", "seed=7"]
    expected = {"unequal_gangs": True, "gpuless_per_node": 100, "seed": 7}
    assert overlay({}, pairs, POOL) == expected
    assert overlay({}, ["gpuless-per-node=none"], POOL) == {"gpuless_per_node": None}


def test_default_pools_and_the_node_types_of_a_kind_are_lists() -> None:
    assert overlay({}, ["default-pools=h100,a100"], CELL) == {"default_pools": ["h100", "a100"]}
    assert overlay({"default_pools": ["h100"]}, ["default-pools="], PROJECT) == {
        "default_pools": []
    }
    before = {"kind_node_types": {"inference": ["sxm"]}}
    pairs = ["kind-node-types.training=sxm,nvl", "kind_node_types.interactive="]
    after = overlay(before, pairs, PROJECT)
    assert after["kind_node_types"] == {
        "inference": ["sxm"], "training": ["sxm", "nvl"], "interactive": [],
    }  # fmt: skip
    assert overlay(before, ["kind-node-types.inference=none"], PROJECT) == {"kind_node_types": {}}
    lists = ["images=python,team/", "mounts=datasets,scratch:rw", "users=7:7,8:8"]
    lists.append("git-hosts=a.org,h:8443")
    for known in (POOL, PROJECT):
        assert overlay({}, lists, known) == {
            "images": ["python", "team/"], "mounts": ["datasets", "scratch:rw"],
            "users": ["7:7", "8:8"], "git_hosts": ["a.org", "h:8443"],
        }  # fmt: skip
    assert overlay({}, ["pool-order=strict"], POOL) == {"pool_order": "strict"}
    assert overlay({}, ["gpu-placement=spread"], POOL) == {"gpu_placement": "spread"}
    assert overlay({}, ["gpu-placement=none"], POOL) == {"gpu_placement": None}


@pytest.mark.parametrize(
    ("pair", "said"),
    [
        ("weight", "KEY=VALUE"),
        ("wieght=2", "unknown key"),
        ("weight=two", "weight: expected a whole number, not two"),
        ("kind-node-types=sxm", "unknown key"),
        ("quota.h100=2", "quota.POOL.KEY"),
        ("quota.h100.deserved=all", "expected a number of GPUs or unlimited, not all"),
        ("quota.h100.over-quota-weight=huge", "expected none, low, medium, high or a whole number"),
        ("quota.h100.over-quota-weight=-1", "expected none, low, medium, high or a whole number"),
        ("quota.h100.over-quota=maybe", "expected on or off, not maybe"),
        ("quota.h100.deserved-cpus=none", "expected a number of CPUs or unlimited, not none"),
        ("quota.h100.deserved-memory=none", "amount of memory .* or unlimited, not none"),
        ("quota.h100.limit-memory=8", "8 has no unit; write 8Mi or 8Gi"),
        ("rank=first", "rank: expected a whole number"),
        ("reclaim-min-runtime=1x", "is not a duration"),
        ("max-slots=lots", "max-slots: expected a number of GPUs or none, not lots"),
    ],
)
def test_what_is_wrong_is_named(pair: str, said: str) -> None:
    with pytest.raises(BadUsage, match=said):
        overlay({}, [pair], PROJECT)


def test_an_unknown_key_gets_the_nearest() -> None:
    with pytest.raises(BadUsage) as caught:
        overlay({}, ["wieght=2"], PROJECT)
    assert caught.value.hint == "did you mean weight?"


@pytest.mark.parametrize(
    ("known", "config"),
    [(POOL, PoolConfig), (PROJECT, ProjectConfig), (DEPARTMENT, DepartmentConfig)],
)
def test_every_field_of_a_configuration_has_a_key(known: Mapping[str, Key], config: type) -> None:
    parts = {key.path[0] for key in (*known.values(), *listed(known).values())}
    without = {"default_pools", "kind_node_types"}
    assert parts | without >= {field.name for field in fields(config)} >= parts


def test_every_field_of_a_quota_has_a_key() -> None:
    written = {name for key in QUOTA.values() for name in key.path} | {"deserved_unlimited"}
    assert written == {field.name for field in fields(Quota)}


def test_a_hint_lists_the_keys_that_the_server_supports() -> None:
    with pytest.raises(BadUsage) as caught:
        overlay({}, ["zzz=1"], DEPARTMENT)
    assert caught.value.hint is not None
    assert caught.value.hint.startswith("keys: parent, rank, ")
    assert "weight, " not in caught.value.hint.partition("quota.")[0]


def test_a_quota_has_amounts_of_gpus_cpus_and_memory() -> None:
    pairs = [
        *("quota.h100.deserved=1.5", "quota.h100.limit=none", "quota.h100.over-quota-weight=high"),
        *("quota.h100.over-quota=off", "quota.h100.deserved-cpus=64"),
        *("quota.h100.deserved-memory=1Ti", "quota.h100.limit-cpus=0.5"),
        "quota.h100.limit-memory=512Mi",
    ]
    assert overlay({}, pairs, PROJECT)["quotas"]["h100"] == {
        "deserved_milli": 1500,
        "deserved_unlimited": False,
        "limit_milli": None,
        "over_quota_weight": 3,
        "over_quota": False,
        "deserved_cpu_milli": 64_000,
        "deserved_memory_mib": 1_048_576,
        "limit_cpu_milli": 500,
        "limit_memory_mib": 512,
    }
    pairs = [f"quota.h100.{name}=unlimited" for name in QUOTA if "over" not in name]
    assert overlay({}, pairs, DEPARTMENT)["quotas"]["h100"] == {
        **{"deserved_milli": None, "deserved_unlimited": True, "limit_milli": None},
        **{"deserved_cpu_milli": None, "deserved_memory_mib": None},
        **{"limit_cpu_milli": None, "limit_memory_mib": None},
    }


@pytest.mark.parametrize(
    ("word", "weight"), [("none", 0), ("low", 1), ("medium", 2), ("high", 3), ("7", 7)]
)
def test_an_over_quota_weight_is_a_word_or_a_number(word: str, weight: int) -> None:
    found = overlay({}, [f"quota.h100.over-quota-weight={word}"], PROJECT)
    assert found == {"quotas": {"h100": {"over_quota_weight": weight}}}


def test_a_deserved_number_replaces_unlimited() -> None:
    body = {"quotas": {"h100": {"deserved_milli": None, "deserved_unlimited": True}}}
    for text, amount in (("4", 4000), ("none", None)):
        quota = overlay(body, [f"quota.h100.deserved={text}"], PROJECT)["quotas"]["h100"]
        assert quota == {"deserved_milli": amount, "deserved_unlimited": False}


def test_queues_have_a_rank_minimum_run_times_and_a_parent() -> None:
    pairs = ["rank=200", "preempt-min-runtime=10m", "reclaim-min-runtime=none"]
    expected = {"rank": 200, "preempt_min_runtime_s": 600, "reclaim_min_runtime_s": None}
    assert overlay({}, pairs, PROJECT) == expected
    assert overlay({}, [*pairs, "parent=labs"], DEPARTMENT) == expected | {"parent": "labs"}
    assert overlay({"parent": "labs"}, ["parent=none"], DEPARTMENT) == {"parent": None}


@pytest.mark.parametrize(
    ("known", "pairs"),
    [
        (POOL, "policy=quota placement=best_fit node-timeout=90s start-timeout=2h max-grace=5m"),
        (POOL, "fence=kill unequal-gangs=true gpuless-per-node=none seed=0 gpu-placement=packed"),
        (POOL, "policy=fair_share option.half_life=7d gpuless-per-node=12 gpu-placement=none"),
        (PROJECT, "department=vision weight=2 rank=0 preempt-min-runtime=none kinds=training"),
        (PROJECT, "max-slots=2.5 max-min-runtime=1d max-pending=3 max-unfinished=none pools=a,b"),
        (PROJECT, "max-slots=none default-pools=a kind-node-types.training=x,y max-unfinished=1"),
        (CELL, "default-pools=a,b project-tasks=3 user-tasks=4 user.ana=5"),
        (DEPARTMENT, "parent=none weight=1 reclaim-min-runtime=30m"),
        (DEPARTMENT, "parent=labs quota.a.deserved=unlimited quota.a.limit=0.125"),
        (DEPARTMENT, "quota.a.deserved=8 quota.a.over-quota-weight=high quota.a.over-quota=off"),
        (DEPARTMENT, "quota.a.over-quota-weight=7 quota.a.deserved-cpus=unlimited"),
        (DEPARTMENT, "quota.a.deserved-cpus=64 quota.a.limit-cpus=0.5 quota.a.limit-memory=1536Mi"),
        (DEPARTMENT, "quota.a.deserved-memory=2Ti quota.a.limit-memory=none quota.a.deserved=none"),
        (DEPARTMENT, "quota.a.deserved-memory=unlimited quota.a.limit-cpus=none"),
    ],
)
def test_texts_of_a_configuration_are_the_pairs_that_set_it(
    known: Mapping[str, Key], pairs: str
) -> None:
    given = dict(pair.split("=") for pair in pairs.split())
    body = overlay({}, pairs.split(), known)
    texts = texts_of(body, known)
    assert {key: texts[canonical(key, known)] for key in given} == given
    again = overlay({}, [f"{key}={text}" for key, text in texts.items()], known)
    assert texts_of(again, known) == texts
