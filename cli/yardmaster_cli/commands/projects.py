"""`yard projects` and `yard departments`: list, show, create, set, delete."""

import json
from collections.abc import Sequence

import click
from pydantic import TypeAdapter, ValidationError

from yardmaster_cli.commands.pools import explained
from yardmaster_cli.errors import BadUsage
from yardmaster_cli.key_values import DEPARTMENT, PROJECT, lay
from yardmaster_cli.output.columns import DEPARTMENTS, PROJECTS
from yardmaster_cli.server.remote import creating, plain, rows
from yardmaster_cli.session import NounGroup, Session
from yardmaster_schemas.api import DepartmentConfig, ProjectConfig

_PROJECT: TypeAdapter[ProjectConfig] = TypeAdapter(ProjectConfig)
_DEPARTMENT: TypeAdapter[DepartmentConfig] = TypeAdapter(DepartmentConfig)


def _project(body: dict[str, object], pairs: Sequence[str]) -> ProjectConfig:
    try:
        return _PROJECT.validate_json(json.dumps(lay(body, pairs, PROJECT)))
    except ValidationError as error:
        raise BadUsage(explained(error)) from None


def _department(body: dict[str, object], pairs: Sequence[str]) -> DepartmentConfig:
    try:
        return _DEPARTMENT.validate_json(json.dumps(lay(body, pairs, DEPARTMENT)))
    except ValidationError as error:
        raise BadUsage(explained(error)) from None


@click.group("projects", cls=NounGroup)
def projects() -> None:
    """List projects; show, create, set, delete."""


@projects.command("ls")
@click.option("--pool", metavar="NAME", help="Their numbers of this pool.")
@click.option("--department", metavar="NAME", help="Of this department.")
def list_projects(session: Session, pool: str | None, department: str | None) -> None:
    """List projects: what they use, wait for and may use."""
    page = session.remote.client.projects(department=department, limit=1000)
    listed = [{**row, "shown_pool": pool} if pool else row for row in rows(page.items)]
    session.out.items(listed, PROJECTS, name="name", document=plain(page))


@projects.command("show")
@click.argument("name")
def show_project(session: Session, name: str) -> None:
    """Show all of one project; -o yaml and json give the numbers of the API."""
    session.out.whole(plain(session.remote.client.project(name)), "name")


@projects.command("create")
@click.argument("name")
@click.argument("pairs", nargs=-1, metavar="[KEY=VALUE]...")
def create_project(session: Session, name: str, pairs: tuple[str, ...]) -> None:
    """Make a project: department=research weight=2 max-slots=64 quota.h100.limit=16 ..."""
    remote = session.remote
    config = _project({"department": "default"}, pairs)
    with creating("project", name):
        accepted = remote.client.put_project(name, config, create=True)
    remote.settle(accepted, name, session.out)
    session.out.say(name)


@projects.command("set")
@click.argument("name")
@click.argument("pairs", nargs=-1, required=True, metavar="KEY=VALUE...")
@click.option("--if-match", metavar="ETAG", help="Only if it was not modified since.")
def set_project(session: Session, name: str, pairs: tuple[str, ...], if_match: str | None) -> None:
    """Change keys of a project's configuration; the others stay."""
    remote = session.remote
    tag = if_match or remote.client.etag(f"/v1/projects/{name}")
    body = plain(remote.client.project(name))["config"]
    accepted = remote.client.put_project(name, _project(body, pairs), if_match=tag)
    remote.settle(accepted, name, session.out)
    session.out.say(name)


@projects.command("delete")
@click.argument("name")
@click.option("--if-match", metavar="ETAG", help="Only if it was not modified since.")
def delete_project(session: Session, name: str, if_match: str | None) -> None:
    """Remove a project whose jobs have all ended."""
    remote = session.remote
    remote.settle(remote.client.delete_project(name, if_match=if_match), name, session.out)
    session.out.say(name)


@click.group("departments", cls=NounGroup)
def departments() -> None:
    """List departments; show, create, set, delete."""


@departments.command("ls")
@click.option("--pool", metavar="NAME", help="Their numbers of this pool.")
def list_departments(session: Session, pool: str | None) -> None:
    """List departments: what their projects use, wait for and may use together."""
    page = session.remote.client.departments(limit=1000)
    listed = [{**row, "shown_pool": pool} if pool else row for row in rows(page.items)]
    session.out.items(listed, DEPARTMENTS, name="name", document=plain(page))


@departments.command("show")
@click.argument("name")
def show_department(session: Session, name: str) -> None:
    """Show all of one department; -o yaml and json give the numbers of the API."""
    session.out.whole(plain(session.remote.client.department(name)), "name")


@departments.command("create")
@click.argument("name")
@click.argument("pairs", nargs=-1, metavar="[KEY=VALUE]...")
def create_department(session: Session, name: str, pairs: tuple[str, ...]) -> None:
    """Make a department: quota.h100.limit=32 ..."""
    remote = session.remote
    config = _department({}, pairs)
    with creating("department", name):
        accepted = remote.client.put_department(name, config, create=True)
    remote.settle(accepted, name, session.out)
    session.out.say(name)


@departments.command("set")
@click.argument("name")
@click.argument("pairs", nargs=-1, required=True, metavar="KEY=VALUE...")
@click.option("--if-match", metavar="ETAG", help="Only if it was not modified since.")
def set_department(
    session: Session, name: str, pairs: tuple[str, ...], if_match: str | None
) -> None:
    """Change keys of a department's configuration; the others stay."""
    remote = session.remote
    tag = if_match or remote.client.etag(f"/v1/departments/{name}")
    body = plain(remote.client.department(name))["config"]
    accepted = remote.client.put_department(name, _department(body, pairs), if_match=tag)
    remote.settle(accepted, name, session.out)
    session.out.say(name)


@departments.command("delete")
@click.argument("name")
@click.option("--if-match", metavar="ETAG", help="Only if it was not modified since.")
def delete_department(session: Session, name: str, if_match: str | None) -> None:
    """Remove a department without projects."""
    remote = session.remote
    remote.settle(remote.client.delete_department(name, if_match=if_match), name, session.out)
    session.out.say(name)
