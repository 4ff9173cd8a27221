"""`yard pools`: list, show, create, set, delete."""

import json
from collections.abc import Sequence

import click
from pydantic import TypeAdapter, ValidationError

from yardmaster_cli.errors import BadUsage
from yardmaster_cli.key_values import POOL, lay
from yardmaster_cli.output.columns import POOLS
from yardmaster_cli.server.remote import creating, plain, rows
from yardmaster_cli.session import NounGroup, Session
from yardmaster_schemas.api import PoolConfig

_CONFIG: TypeAdapter[PoolConfig] = TypeAdapter(PoolConfig)


@click.group("pools", cls=NounGroup)
def pools() -> None:
    """List pools; show, create, set, delete."""


@pools.command("ls")
def ls(session: Session) -> None:
    """List pools with their policies."""
    page = session.remote.client.pools(limit=1000)
    session.out.items(rows(page.items), POOLS, name="name", document=plain(page))


@pools.command("show")
@click.argument("name")
def show(session: Session, name: str) -> None:
    """Show all of one pool; -o yaml and json give the numbers of the API."""
    session.out.whole(plain(session.remote.client.pool(name)), "name")


def _config(body: dict[str, object], pairs: Sequence[str]) -> PoolConfig:
    text = json.dumps(lay(body, pairs, POOL))
    try:
        return _CONFIG.validate_json(text)
    except ValidationError as error:
        raise BadUsage(explained(error)) from None


def explained(error: ValidationError) -> str:
    """The first thing that is wrong with a configuration, in one line."""
    first = error.errors(include_url=False, include_input=False)[0]
    where = ".".join(str(part) for part in first["loc"])
    return f"{where}: {str(first['msg']).removeprefix('Value error, ')}"


@pools.command("create")
@click.argument("name")
@click.argument("pairs", nargs=-1, metavar="[KEY=VALUE]...")
def create(session: Session, name: str, pairs: tuple[str, ...]) -> None:
    """Make a pool: policy=priority option.preemption=true node-timeout=60s ..."""
    remote = session.remote
    config = _config({"policy": {"name": "priority"}}, pairs)
    with creating("pool", name):
        accepted = remote.client.put_pool(name, config, create=True)
    remote.settle(accepted, name, session.out)
    session.out.say(name)


@pools.command("set")
@click.argument("name")
@click.argument("pairs", nargs=-1, required=True, metavar="KEY=VALUE...")
@click.option("--if-match", metavar="ETAG", help="Only if it was not modified since.")
def change(session: Session, name: str, pairs: tuple[str, ...], if_match: str | None) -> None:
    """Change keys of a pool's configuration; the others stay."""
    remote = session.remote
    tag = if_match or remote.client.etag(f"/v1/pools/{name}")
    body = plain(remote.client.pool(name))["config"]
    accepted = remote.client.put_pool(name, _config(body, pairs), if_match=tag)
    remote.settle(accepted, name, session.out)
    session.out.say(name)


@pools.command("delete")
@click.argument("name")
@click.option("--if-match", metavar="ETAG", help="Only if it was not modified since.")
def delete(session: Session, name: str, if_match: str | None) -> None:
    """Remove a pool that nothing names."""
    remote = session.remote
    remote.settle(remote.client.delete_pool(name, if_match=if_match), name, session.out)
    session.out.say(name)
