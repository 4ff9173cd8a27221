"""The calls of `Client` for nodes, pools, projects, departments, shares and usage."""

from collections.abc import Iterator

from yardmaster.connection import Connection, Filter, all_items, quoted
from yardmaster_schemas.api import (
    Accepted,
    Cell,
    CellConfig,
    Department,
    DepartmentConfig,
    Enrollment,
    List,
    NewUser,
    Node,
    NodeEnrollment,
    NodePatch,
    NodeSlots,
    Pool,
    PoolConfig,
    Project,
    ProjectConfig,
    QueueShown,
    Quota,
    RolesChange,
    Rules,
    RulesSwitch,
    Shares,
    TokenIssued,
    TokenOrder,
    Usage,
    UserShown,
)


class OperatorCalls(Connection):
    """Calls for the objects that operators manage; see `Client`.

    In all changes, `if_match` is the ETag of the version to change; None means the ETag that the
    object has now. A `put_` call without `create` changes only an object that exists; with `create`
    it creates the object, which must not exist yet, and `if_match` is not used.
    """

    # --- nodes ----------------------------------------------------------------------------------

    def nodes(self, **filters: Filter) -> List[Node]:
        """One page of nodes; filters: pool, state, limit, cursor, min_position."""
        return self._get("/v1/nodes", List[Node], filters)

    def all_nodes(self, **filters: Filter) -> Iterator[Node]:
        """The nodes of all pages."""
        return all_items(self.nodes, filters)

    def node(self, name: str, *, min_position: str | None = None) -> Node:
        """One node."""
        return self._get(f"/v1/nodes/{quoted(name)}", Node, {"min_position": min_position})

    def patch_node(self, name: str, patch: NodePatch, *, if_match: str | None = None) -> Accepted:
        """Cordon, drain or uncordon a node."""
        content = patch.model_dump_json(exclude_none=True).encode()
        return self._patch(f"/v1/nodes/{quoted(name)}", content, if_match)

    def put_slots(self, name: str, slots: NodeSlots, *, if_match: str | None = None) -> Accepted:
        """Disable the given slots of a node and enable all others."""
        path = f"/v1/nodes/{quoted(name)}"
        return self._put(f"{path}/slots", slots, if_match or self.etag(path), create=False)

    def enrollment(self, node: str, *, min_position: str | None = None) -> NodeEnrollment:
        """The enrollment of a node: the limits on what the node may claim when it joins."""
        path = f"/v1/nodes/{quoted(node)}/enrollment"
        return self._get(path, NodeEnrollment, {"min_position": min_position})

    def put_enrollment(
        self,
        node: str,
        enrollment: Enrollment,
        *,
        if_match: str | None = None,
        create: bool = False,
    ) -> Accepted:
        """Change the limits on what an enrolled node may claim, or with `create` enroll a node."""
        return self._put(f"/v1/nodes/{quoted(node)}/enrollment", enrollment, if_match, create)

    def delete_enrollment(self, node: str, *, if_match: str | None = None) -> Accepted:
        """Revoke a node: its tasks are killed, and it cannot join until it is enrolled again."""
        return self._delete(f"/v1/nodes/{quoted(node)}/enrollment", if_match)

    # --- the cell -------------------------------------------------------------------------------

    def cell(self, *, min_position: str | None = None) -> Cell:
        """The configuration of the cell."""
        return self._get("/v1/cell", Cell, {"min_position": min_position})

    def put_cell(self, config: CellConfig, *, if_match: str | None = None) -> Accepted:
        """Replace the configuration of the cell."""
        return self._put("/v1/cell", config, if_match, create=False)

    # --- pools ----------------------------------------------------------------------------------

    def pools(self, **filters: Filter) -> List[Pool]:
        """One page of pools."""
        return self._get("/v1/pools", List[Pool], filters)

    def pool(self, name: str, *, min_position: str | None = None) -> Pool:
        """One pool."""
        return self._get(f"/v1/pools/{quoted(name)}", Pool, {"min_position": min_position})

    def queue(self, pool: str, **filters: Filter) -> QueueShown:
        """One page of the pending tasks of a pool, in the order of its policy.

        Filters: project (one or several), grouped (`false`: each task by itself), limit, cursor,
        min_position. A page may have fewer items than `limit` although more follow.
        """
        return self._get(f"/v1/pools/{quoted(pool)}/queue", QueueShown, filters)

    def put_pool(
        self, name: str, config: PoolConfig, *, if_match: str | None = None, create: bool = False
    ) -> Accepted:
        """Change a pool that exists, or with `create` create a new pool."""
        return self._put(f"/v1/pools/{quoted(name)}", config, if_match, create)

    def delete_pool(self, name: str, *, if_match: str | None = None) -> Accepted:
        """Delete a pool that is not in use."""
        return self._delete(f"/v1/pools/{quoted(name)}", if_match)

    # --- projects and their quotas --------------------------------------------------------------

    def projects(self, **filters: Filter) -> List[Project]:
        """One page of projects; filters: department, limit, cursor, min_position."""
        return self._get("/v1/projects", List[Project], filters)

    def project(self, name: str, *, min_position: str | None = None) -> Project:
        """One project."""
        return self._get(f"/v1/projects/{quoted(name)}", Project, {"min_position": min_position})

    def put_project(
        self, name: str, config: ProjectConfig, *, if_match: str | None = None, create: bool = False
    ) -> Accepted:
        """Change a project that exists, or with `create` create a new project.

        `if_match` is the ETag of the version to change, by default the current one.
        """
        return self._put(f"/v1/projects/{quoted(name)}", config, if_match, create)

    def delete_project(self, name: str, *, if_match: str | None = None) -> Accepted:
        """Delete a project that has no pending or running tasks."""
        return self._delete(f"/v1/projects/{quoted(name)}", if_match)

    def put_quota(
        self, project: str, pool: str, quota: Quota, *, if_match: str | None = None
    ) -> Accepted:
        """Set a project's quota in one pool; `if_match` is the project's ETag."""
        path = f"/v1/projects/{quoted(project)}"
        tag = if_match or self.etag(path)
        return self._put(f"{path}/quotas/{quoted(pool)}", quota, tag, create=False)

    def delete_quota(self, project: str, pool: str, *, if_match: str | None = None) -> Accepted:
        """Remove a project's quota in one pool; `if_match` is the project's ETag."""
        path = f"/v1/projects/{quoted(project)}"
        return self._delete(f"{path}/quotas/{quoted(pool)}", if_match or self.etag(path))

    # --- departments ----------------------------------------------------------------------------

    def departments(self, **filters: Filter) -> List[Department]:
        """One page of departments."""
        return self._get("/v1/departments", List[Department], filters)

    def department(self, name: str, *, min_position: str | None = None) -> Department:
        """One department."""
        params = {"min_position": min_position}
        return self._get(f"/v1/departments/{quoted(name)}", Department, params)

    def put_department(
        self,
        name: str,
        config: DepartmentConfig,
        *,
        if_match: str | None = None,
        create: bool = False,
    ) -> Accepted:
        """Change a department that exists, or with `create` create a new department."""
        return self._put(f"/v1/departments/{quoted(name)}", config, if_match, create)

    def delete_department(self, name: str, *, if_match: str | None = None) -> Accepted:
        """Delete a department that has no projects and is no parent."""
        return self._delete(f"/v1/departments/{quoted(name)}", if_match)

    # --- users ----------------------------------------------------------------------------------

    def users(self, **filters: Filter) -> List[UserShown]:
        """One page of users; filters: limit, cursor. Only operators see other users."""
        return self._get("/v1/users", List[UserShown], filters)

    def add_user(self, user: NewUser) -> TokenIssued:
        """Add a user; only this answer contains its token."""
        return self._write("POST", "/v1/users", TokenIssued, user.model_dump_json().encode())

    def remove_user(self, name: str) -> Accepted:
        """Remove a user, with all its tokens and roles."""
        return self._write("DELETE", f"/v1/users/{quoted(name)}", Accepted, None)

    def grant_roles(self, name: str, change: RolesChange) -> Accepted:
        """Give a user roles."""
        content = change.model_dump_json().encode()
        return self._write("POST", f"/v1/users/{quoted(name)}/grant", Accepted, content)

    def revoke_roles(self, name: str, change: RolesChange) -> Accepted:
        """Take roles from a user."""
        content = change.model_dump_json().encode()
        return self._write("POST", f"/v1/users/{quoted(name)}/revoke", Accepted, content)

    def issue_token(self, name: str, order: TokenOrder) -> TokenIssued:
        """Issue one more token of a user, or of the caller; only this answer contains it."""
        content = order.model_dump_json(exclude_unset=True).encode()
        return self._write("POST", f"/v1/users/{quoted(name)}/tokens", TokenIssued, content)

    def revoke_token(self, name: str, token_id: str) -> Accepted:
        """End a token of a user, or of the caller."""
        path = f"/v1/users/{quoted(name)}/tokens/{quoted(token_id)}"
        return self._write("DELETE", path, Accepted, None)

    # --- rules ----------------------------------------------------------------------------------

    def rules(self) -> Rules:
        """The rules in force, and the newest of the gateway's version."""
        return self._get("/v1/rules", Rules, {})

    def put_rules(self, rules: int, *, if_match: str | None = None) -> Accepted:
        """Switch to newer rules after an upgrade; the switch cannot be undone."""
        return self._put("/v1/rules", RulesSwitch(rules=rules), if_match, create=False)

    # --- shares ---------------------------------------------------------------------------------

    def shares(self, pool: str, *, min_position: str | None = None) -> Shares:
        """The newest division of a pool's resources among departments and projects."""
        return self._get("/v1/shares", Shares, {"pool": pool, "min_position": min_position})

    # --- usage ----------------------------------------------------------------------------------

    def usage(
        self,
        *,
        begin: str | None = None,
        end: str | None = None,
        by: str | None = None,
        bucket: str | None = None,
    ) -> Usage:
        """GPU time by project, user or pool."""
        params = {"from": begin, "to": end, "by": by, "bucket": bucket}
        return self._get("/v1/usage", Usage, params)
