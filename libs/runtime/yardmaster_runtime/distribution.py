"""The installed distribution: its version, its wheel, and a distribution that conflicts with it.

On PyPI, the name `yardmaster` belongs to a release tool for Flatcar Linux, which installs an import
package of the same name. Where both are installed, one overwrites files of the other. This module
must therefore not import `yardmaster`.
"""

from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import Final

NAME: Final = "yardmaster-scheduler"
#: The distribution that installs the same import package.
OTHER: Final = "yardmaster"
#: Where gateways serve the wheel.
CLIENT_PATH: Final = "/client"
ANY_SERVER: Final = "http://HOST:PORT"


@cache
def installed_version() -> str:
    """The version of the installed distribution; 0 if it is not installed.

    Read once: gateways use it in each request, and the code that runs does not change.
    """
    return _version(NAME) or "0"


def wheel_file() -> str:
    """The file name of this version's wheel; installers read name and version from it."""
    return f"{NAME.replace('-', '_')}-{installed_version()}-py3-none-any.whl"


def install_command(server: str = ANY_SERVER) -> str:
    """The command that installs this version from a gateway."""
    return f"pip install '{server.rstrip('/')}{CLIENT_PATH}/{wheel_file()}'"


def other_version() -> str | None:
    """The version of the installed distribution `yardmaster`, which is another project; or None."""
    return _version(OTHER)


def repair(server: str = ANY_SERVER) -> str:
    """The commands that remove the other distribution and restore the files of this one."""
    again = install_command(server).replace("install", "install --force-reinstall --no-deps", 1)
    return f"pip uninstall -y {OTHER} && {again}"


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
