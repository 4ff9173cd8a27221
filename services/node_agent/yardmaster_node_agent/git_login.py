"""The login for a private git repository, from a secret of the node.

The secret goes to git through a pipe, which git reads when the server of the repository asks for a
login: so it is in no file, no command line and no environment.
"""

from base64 import b64encode
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import urlsplit

from yardmaster_node_agent.errors import SecretMissing
from yardmaster_node_agent.executors.secrets import Secrets, hidden_in, read_for
from yardmaster_schemas.events.details import GitCommit

#: The user of a secret that is a token alone; the servers that take such tokens ignore the user.
TOKEN_USER: Final = "git"
#: The most bytes of a secret, so that a pipe takes all at once.
MAX_BYTES: Final = 3_000
#: The descriptor of git on which it reads the login.
DESCRIPTOR: Final = 9


@dataclass(frozen=True, slots=True)
class GitLogin:
    """A user and a password or token; `secret` is the name of the secret."""

    secret: str
    user: str = field(repr=False)
    password: str = field(repr=False)

    @property
    def shown(self) -> str:
        """The login in messages."""
        return f"the login of this node's secret {self.secret!r}"

    @property
    def answer(self) -> bytes:
        """The output of a credential helper of git."""
        return f"username={self.user}\npassword={self.password}\n".encode()

    def hidden_in(self, text: str) -> str:
        """Return a text without the password, in case that a server repeats it."""
        pair = b64encode(f"{self.user}:{self.password}".encode()).decode()
        return hidden_in(text, pair, self.password)


def login_of(secrets: Secrets, source: GitCommit, project: str) -> GitLogin | None:
    """Return the login for a commit; None: it names no secret.

    Raises: SecretMissing.
    """
    if source.secret is None:
        return None
    value = read_for(project, secrets, source.secret)
    user, colon, password = value.partition(":")
    login = GitLogin(source.secret, *((user, password) if colon else (TOKEN_USER, value)))
    usable = all(one and one.isprintable() for one in (login.user, login.password))
    if not usable or len(login.answer) > MAX_BYTES:
        raise SecretMissing(
            found=f"the secret {source.secret!r} is not one line with USER:PASSWORD or a token"
        )
    return login


def options(source: GitCommit) -> tuple[str, ...]:
    """Return the options with which git takes the login from the pipe, for its host alone."""
    host = urlsplit(source.url).netloc
    return ("-c", f"credential.https://{host}.helper=!cat <&{DESCRIPTOR}; :")
