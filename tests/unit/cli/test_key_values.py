"""`key=value` arguments of pools, projects and departments."""

from collections.abc import Mapping
from dataclasses import fields

import pytest

from yardmaster_cli.errors import BadUsage
from yardmaster_cli.key_values import CELL, DEPARTMENT, POOL, PROJECT, Key, listed, overlay
from yardmaster_schemas.api import DepartmentConfig, PoolConfig, ProjectConfig


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
        "a100": {"deserved_milli": 1000},
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
    assert overlay({}, ["pool-order=strict"], POOL) == {"pool_order": "strict"}


@pytest.mark.parametrize(
    ("pair", "said"),
    [
        ("weight", "KEY=VALUE"),
        ("wieght=2", "unknown key"),
        ("weight=two", "weight: expected a whole number, not two"),
        ("quota.h100=2", "quota.POOL.limit"),
        ("kind-node-types=sxm", "unknown key"),
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
    assert parts == {field.name for field in fields(config)}


def test_a_hint_lists_the_keys_that_the_server_supports() -> None:
    with pytest.raises(BadUsage) as caught:
        overlay({}, ["zzz=1"], DEPARTMENT)
    assert caught.value.hint == "keys: quota.POOL.limit"
