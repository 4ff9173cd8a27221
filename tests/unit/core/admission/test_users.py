"""Verdicts on requests that change users: authority, bounds, tokens, and the last operator."""

from dataclasses import replace
from typing import Any

import pytest

from tests.unit.core.admission.admission_cell import CELL, CELL_SETUP, START_MS, AdmissionCell
from yardmaster_core.access import operates, user_after, valid_tokens
from yardmaster_core.admission import users
from yardmaster_schemas.envelope import Event
from yardmaster_schemas.events.admissions import RequestRefusedV1
from yardmaster_schemas.events.users import (
    MAX_ROLES,
    MAX_TOKENS,
    AccessRevokedV1,
    AccessRevokeRequestedV1,
    NewToken,
    RoleGrantedV1,
    RoleGrantRequestedV1,
    RoleInScope,
    RoleName,
    RoleRevokedV1,
    RoleRevokeRequestedV1,
    Scope,
    TokenIssuedV1,
    TokenIssueRequestedV1,
    TokenRevokedV1,
    TokenRevokeRequestedV1,
)
from yardmaster_schemas.reasons import AdmissionCode

OPERATOR = RoleInScope(role=RoleName.OPERATOR, scope=Scope.CELL, name=CELL)
NLP_USER = RoleInScope(role=RoleName.USER, scope=Scope.PROJECT, name="nlp")
DAY_S = 86_400


def token(number: int, lifetime_s: int | None = None) -> NewToken:
    return NewToken(id=f"t{number}", digest=f"{number:064x}", lifetime_s=lifetime_s)


def add(
    name: str, *roles: RoleInScope, tokens: tuple[NewToken, ...] = (), imported: bool = False
) -> RoleGrantRequestedV1:
    return RoleGrantRequestedV1(
        principal=name, roles=roles, tokens=tokens, new=True, imported=imported
    )


def desk_with_operator() -> AdmissionCell:
    """A cell whose operator `olga` came from a token file, and whose user `ana` she added."""
    quota = AdmissionCell(*CELL_SETUP)
    quota.ask(add("olga", OPERATOR, tokens=(token(1),), imported=True), user="token_file")
    quota.ask(add("ana", NLP_USER, tokens=(token(2, 90 * DAY_S),)), user="olga")
    return quota


def code(verdict: Event) -> AdmissionCode:
    assert isinstance(verdict, RequestRefusedV1)
    return verdict.code


def valid_ids(quota: AdmissionCell, name: str) -> list[str]:
    user = quota.state.users.get(name)
    assert user is not None
    return [each.id for each in valid_tokens(user, quota.state.now_ms)]


def test_an_operator_adds_a_user_with_roles_and_a_token_that_ends() -> None:
    quota = AdmissionCell(*CELL_SETUP)
    quota.ask(add("olga", OPERATOR, tokens=(token(1),), imported=True), user="token_file")
    found = quota.one(add("ana", NLP_USER, tokens=(token(2, 90 * DAY_S),)), user="olga")
    assert isinstance(found, RoleGrantedV1)
    assert (found.principal, found.roles, found.by) == ("ana", (NLP_USER,), "olga")
    assert found.tokens[0].expires_at_ms == START_MS + 90 * DAY_S * 1000
    assert valid_ids(quota, "ana") == ["t2"]
    quota.now_ms += 90 * DAY_S * 1000
    quota.ask()
    assert valid_ids(quota, "ana") == []


CHANGES: list[Any] = [
    add("ben", NLP_USER, tokens=(token(9),)),
    RoleGrantRequestedV1(principal="ana", roles=(OPERATOR,)),
    RoleRevokeRequestedV1(principal="ana", roles=(NLP_USER,)),
    AccessRevokeRequestedV1(principal="ana"),
    TokenIssueRequestedV1(principal="ana", token=token(9, DAY_S)),
    TokenRevokeRequestedV1(principal="ana", token_id="t2"),
]


@pytest.mark.parametrize("change", CHANGES, ids=lambda c: c.TYPE)
@pytest.mark.parametrize("actor", ["stranger", "gone", "viewer", "operator_of_project"])
def test_quota_refuses_a_change_by_an_actor_that_its_state_does_not_name_an_operator(
    change: Event, actor: str
) -> None:
    quota = desk_with_operator()
    for name, role in (
        ("gone", OPERATOR),
        ("viewer", replace(OPERATOR, role=RoleName.VIEWER)),
        ("operator_of_project", replace(NLP_USER, role=RoleName.OPERATOR)),
    ):
        quota.ask(add(name, role), user="olga")
    quota.ask(AccessRevokeRequestedV1(principal="gone"), user="olga")
    assert code(quota.one(change, user=actor)) is AdmissionCode.NOT_ALLOWED
    assert not isinstance(quota.one(change, user="olga"), RequestRefusedV1)


def test_a_user_issues_and_revokes_its_own_tokens_that_live_no_longer_than_those_it_has() -> None:
    quota = desk_with_operator()
    long = TokenIssueRequestedV1(principal="ana", token=token(3, 91 * DAY_S))
    endless = TokenIssueRequestedV1(principal="ana", token=token(3))
    for request in (long, endless):
        verdict = quota.one(request, user="ana")
        assert code(verdict) is AdmissionCode.LIFETIME_TOO_LONG
        assert verdict.numbers["longest_s"] == 90 * DAY_S
    assert isinstance(quota.one(long, user="olga"), TokenIssuedV1)
    own = TokenIssueRequestedV1(principal="ana", token=token(4, 91 * DAY_S))
    assert isinstance(quota.one(own, user="ana"), TokenIssuedV1), "as long as its longest one"
    revoke = TokenRevokeRequestedV1(principal="ana", token_id="t2")
    assert isinstance(quota.one(revoke, user="ana"), TokenRevokedV1)
    assert valid_ids(quota, "ana") == ["t3", "t4"]
    assert code(quota.one(revoke, user="ana")) is AdmissionCode.TOKEN_UNKNOWN


def test_after_a_rotation_the_old_tokens_end_after_the_overlap() -> None:
    quota = desk_with_operator()
    rotate = TokenIssueRequestedV1(principal="ana", token=token(3, DAY_S), overlap_s=60)
    found = quota.one(rotate, user="ana")
    assert found.others_end_at_ms == START_MS + 60_000
    assert valid_ids(quota, "ana") == ["t2", "t3"]
    quota.now_ms += 59_999
    quota.ask()
    assert valid_ids(quota, "ana") == ["t2", "t3"]
    quota.now_ms += 1
    quota.ask()
    assert valid_ids(quota, "ana") == ["t3"]


def test_a_rotation_without_overlap_ends_the_old_tokens_at_once() -> None:
    quota = desk_with_operator()
    rotate = TokenIssueRequestedV1(principal="ana", token=token(3, DAY_S), overlap_s=0)
    quota.one(rotate, user="ana")
    assert valid_ids(quota, "ana") == ["t3"]
    again = TokenIssueRequestedV1(principal="ana", token=token(3, DAY_S), overlap_s=0)
    assert code(quota.one(again, user="ana")) is AdmissionCode.DUPLICATE_ID


def test_the_last_operator_that_has_a_valid_token_stays() -> None:
    quota = desk_with_operator()
    # These two operators cannot do anything: one has no token, the token of the other has ended.
    quota.ask(add("no_token", OPERATOR), user="olga")
    quota.ask(add("expired", OPERATOR, tokens=(token(5, 1),)), user="olga")
    quota.now_ms += 1000
    for request in (
        AccessRevokeRequestedV1(principal="olga"),
        RoleRevokeRequestedV1(principal="olga", roles=(OPERATOR,)),
        TokenRevokeRequestedV1(principal="olga", token_id="t1"),
    ):
        assert code(quota.one(request, user="olga")) is AdmissionCode.LAST_OPERATOR
    assert isinstance(
        quota.one(AccessRevokeRequestedV1(principal="no_token"), user="olga"), AccessRevokedV1
    )
    quota.ask(add("otto", OPERATOR, tokens=(token(6),)), user="olga")
    assert isinstance(
        quota.one(AccessRevokeRequestedV1(principal="olga"), user="otto"), AccessRevokedV1
    )


def test_a_token_file_names_only_users_that_the_log_has_never_named() -> None:
    quota = desk_with_operator()
    again = add("ana", OPERATOR, tokens=(token(7),), imported=True)
    assert code(quota.one(again, user="token_file")) is AdmissionCode.USER_EXISTS
    quota.ask(AccessRevokeRequestedV1(principal="ana"), user="olga")
    assert code(quota.one(again, user="token_file")) is AdmissionCode.USER_EXISTS
    back = quota.one(add("ana", NLP_USER, tokens=(token(7),)), user="olga")
    assert isinstance(back, RoleGrantedV1), "an operator may add a removed user again"
    unborn = replace(NLP_USER, name="later")
    assert isinstance(
        quota.one(add("ben", unborn, imported=True), user="token_file"), RoleGrantedV1
    ), "the projects of a new cell come after its users"


@pytest.mark.parametrize(
    ("role", "expected"),
    [
        (replace(NLP_USER, name="ads"), AdmissionCode.PROJECT_UNKNOWN),
        (RoleInScope(role=RoleName.USER, scope=Scope.DEPARTMENT, name="ads"), "department_unknown"),
        (replace(OPERATOR, name="other"), AdmissionCode.CELL_UNKNOWN),
    ],
)
def test_a_role_in_a_scope_that_does_not_exist_is_refused(role: RoleInScope, expected: str) -> None:
    quota = desk_with_operator()
    for request in (add("ben", role), RoleGrantRequestedV1(principal="ana", roles=(role,))):
        verdict = quota.one(request, user="olga")
        assert (code(verdict), verdict.about) == (expected, role.name)


def test_roles_are_granted_and_revoked_by_name() -> None:
    quota = desk_with_operator()
    granted = quota.one(RoleGrantRequestedV1(principal="ana", roles=(OPERATOR,)), user="olga")
    assert isinstance(granted, RoleGrantedV1)
    user = quota.state.users.get("ana")
    assert user is not None
    assert operates(user, CELL)
    revoke = RoleRevokeRequestedV1(principal="ana", roles=(NLP_USER,))
    assert isinstance(quota.one(revoke, user="ana"), RoleRevokedV1)
    assert code(quota.one(revoke, user="ana")) is AdmissionCode.ROLE_UNKNOWN


@pytest.mark.parametrize("change", CHANGES[1:], ids=lambda c: c.TYPE)
def test_an_unknown_or_removed_user_cannot_be_changed(change: Any) -> None:
    quota = desk_with_operator()
    stranger = replace(change, principal="stranger")
    assert code(quota.one(stranger, user="olga")) is AdmissionCode.USER_UNKNOWN
    quota.ask(AccessRevokeRequestedV1(principal="ana"), user="olga")
    assert code(quota.one(change, user="olga")) is AdmissionCode.USER_UNKNOWN


def test_users_roles_and_tokens_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    quota = desk_with_operator()
    monkeypatch.setattr(users, "MAX_USERS", 3)
    monkeypatch.setattr(users, "MAX_NAMES_OF_USERS", 4)
    assert isinstance(quota.one(add("ben", NLP_USER), user="olga"), RoleGrantedV1)
    assert code(quota.one(add("cleo", NLP_USER), user="olga")) is AdmissionCode.LIMIT_EXCEEDED
    quota.ask(AccessRevokeRequestedV1(principal="ben"), user="olga")
    assert isinstance(quota.one(add("cleo", NLP_USER), user="olga"), RoleGrantedV1)
    quota.ask(AccessRevokeRequestedV1(principal="cleo"), user="olga")
    assert code(quota.one(add("dora", NLP_USER), user="olga")) is AdmissionCode.LIMIT_EXCEEDED
    assert isinstance(quota.one(add("cleo", NLP_USER), user="olga"), RoleGrantedV1)
    quota.ask(
        *[
            TokenIssueRequestedV1(principal="ana", token=token(100 + number))
            for number in range(MAX_TOKENS - 1)
        ],
        user="olga",
    )
    more = TokenIssueRequestedV1(principal="ana", token=token(999))
    assert code(quota.one(more, user="olga")) is AdmissionCode.LIMIT_EXCEEDED
    many = tuple(
        RoleInScope(role=role, scope=Scope.PROJECT, name=f"p{number}")
        for number in range(MAX_ROLES // 4)
        for role in RoleName
    )
    over = RoleGrantRequestedV1(principal="ana", roles=many)
    assert code(quota.one(over, user="olga")) is AdmissionCode.LIMIT_EXCEEDED


def test_a_digest_belongs_to_one_token_of_the_cell() -> None:
    quota = desk_with_operator()
    same = NewToken(id="mine", digest=token(2).digest)
    assert code(quota.one(add("ben", NLP_USER, tokens=(same,)), user="olga")) == "duplicate_id"
    twice = (token(8), replace(token(8), id="again"))
    assert code(quota.one(add("ben", NLP_USER, tokens=twice), user="olga")) == "duplicate_id"


def test_every_reader_of_the_verdicts_folds_the_same_users() -> None:
    quota = desk_with_operator()
    quota.ask(
        TokenIssueRequestedV1(principal="ana", token=token(3, DAY_S), overlap_s=60),
        RoleGrantRequestedV1(principal="ana", roles=(OPERATOR,)),
        TokenRevokeRequestedV1(principal="ana", token_id="t2"),
        AccessRevokeRequestedV1(principal="olga"),
        user="olga",
    )
    folded: dict[str, Any] = {}
    for _, verdict in quota.verdicts:
        if hasattr(verdict, "principal"):
            name = verdict.principal
            folded[name] = user_after(folded.get(name), verdict, START_MS)  # type: ignore[arg-type]
    assert folded == dict(quota.state.users.items())
