"""Users of a cell with two gateways on a real broker: each change holds at both, also after a
restart, and the log proves who made it.
"""

import time
from collections.abc import Iterator

import pytest

from tests.support.cluster import Cluster
from yardmaster.client import ApiError, Client
from yardmaster_gateway.identity.access import WAIT_S
from yardmaster_schemas.api import NewUser, RoleGiven, RolesChange, TokenOrder
from yardmaster_schemas.events.users import RoleName, Scope

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(600), pytest.mark.xdist_group("takeover")]

BOTH = ("gateway-1", "gateway-2")
USER = RoleGiven(role=RoleName.USER, scope=Scope.PROJECT, name="default")
OPERATOR = RoleGiven(role=RoleName.OPERATOR, scope=Scope.CELL, name="main")
#: A record reaches a gateway at once; a gateway looks for one every `WAIT_S` seconds anyway. The
#: rest is for a loaded machine.
LIMIT_S = WAIT_S + 20


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("users")
    often = {"quota": {"YARD_QUOTA_SNAPSHOT__EVERY_CYCLES": "1"}}
    with Cluster(
        folder, gateways=2, quotas=2, schedulers=1, views=1, agents=1, env=often
    ) as cluster:
        yield cluster
        cluster.prove()


def may(cluster: Cluster, gateway: str, token: str) -> bool:
    """Whether a gateway accepts a token now."""
    with Client(cluster.url(gateway), token) as made:
        try:
            made.whoami()
        except ApiError as error:
            if error.document["code"] != "unauthenticated":
                raise
            return False
        return True


def until(cluster: Cluster, token: str, wanted: bool) -> None:
    """Wait until both gateways accept a token, or refuse it."""
    stop = time.monotonic() + LIMIT_S
    while [may(cluster, each, token) for each in BOTH] != [wanted, wanted]:
        assert time.monotonic() < stop, cluster.tails(BOTH)
        time.sleep(0.05)


def until_known(cluster: Cluster, gateway: str, name: str) -> None:
    """Wait until a gateway lists a user: quota accepts a new one after the answer."""
    stop = time.monotonic() + LIMIT_S
    while name not in {user.name for user in cluster.client(gateway).users().items}:
        assert time.monotonic() < stop, cluster.tails(BOTH)
        time.sleep(0.05)


def test_users_that_one_gateway_adds_rotates_and_removes_are_the_same_at_the_other(
    cluster: Cluster,
) -> None:
    one, two = (cluster.client(each) for each in BOTH)
    added = one.add_user(NewUser(name="ana", roles=[USER], lifetime_s=3600))
    until(cluster, added.token, True)
    rotated = two.issue_token("ana", TokenOrder(overlap_s=0))
    until(cluster, rotated.token, True)
    until(cluster, added.token, False)
    two.grant_roles("ana", RolesChange(roles=[OPERATOR]))
    cluster.kill9("gateway-1")
    cluster.start("gateway-1")
    until(cluster, rotated.token, True)
    two.remove_user("ana")
    until(cluster, rotated.token, False)
    # Also a gateway that starts later: its token file names only the first operator.
    cluster.kill9("gateway-2")
    cluster.start("gateway-2")
    until(cluster, rotated.token, False)
    until(cluster, cluster.token(), True)


def test_a_gateway_that_starts_takes_the_users_from_a_snapshot_of_quota(cluster: Cluster) -> None:
    added = cluster.client("gateway-1").add_user(NewUser(name="cem", roles=[USER]))
    until(cluster, added.token, True)
    stop = time.monotonic() + LIMIT_S
    while not list((cluster.data.snapshots / "quota" / "main").glob("*.snapshot")):
        assert time.monotonic() < stop, cluster.tails()
        time.sleep(0.05)
    before = len(cluster.log("gateway-2"))
    cluster.restart("gateway-2")
    until(cluster, added.token, True)
    said = cluster.log("gateway-2")[before:]
    assert "users_from_snapshot" in said, said
    cluster.client("gateway-2").remove_user("cem")
    until(cluster, added.token, False)


def test_the_first_operator_is_recorded_once_by_two_gateways(cluster: Cluster) -> None:
    for each in BOTH:
        users = {user.name: user for user in cluster.client(each).users().items}
        assert [token.id for token in users["local"].tokens] == ["local"]


def test_a_short_token_expires_at_both_gateways(cluster: Cluster) -> None:
    added = cluster.client("gateway-1").add_user(NewUser(name="ben", roles=[USER], lifetime_s=2))
    # A token that no gateway knows yet is refused too: first both must know the user.
    for each in BOTH:
        until_known(cluster, each, "ben")
    until(cluster, added.token, False)
    cluster.client("gateway-1").remove_user("ben")
