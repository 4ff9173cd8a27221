"""The policies that this version knows, for help and hints; imported only where they are shown."""

import click


def policy_names() -> list[str]:
    """The names of all policies, in the order of their registry."""
    from yardmaster.core.scheduling.policies import POLICIES

    return list(dict.fromkeys(name for name, _ in POLICIES))


class PolicyOption(click.Option):
    """An option that names a policy; its help lists them."""

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        """The option's line of the help."""
        found = super().get_help_record(ctx)
        if found is None:
            return None
        return found[0], f"{found[1]} One of {', '.join(policy_names())}."
