"""Why Kafka's brokers refuse this client, or why this client does not trust the brokers.

For every broker that it cannot use, aiokafka reports only that it could not connect. If this
happens at the start, one more connection is made to find the reason: a wrong setting then gets an
error of its own at once, instead of a service that waits for brokers that are available.
"""

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.conn import collect_hosts, create_conn
from aiokafka.errors import (
    AuthenticationFailedError,
    AuthenticationMethodNotSupported,
    IllegalSaslStateError,
    KafkaError,
    SaslAuthenticationFailed,
    UnsupportedSaslMechanismError,
)

from yardmaster_eventlog.errors import LogAccessRefused, LogNotTrusted, LogUnavailable
from yardmaster_eventlog.kafka.settings import KafkaSettings

_REFUSALS: Final = (
    AuthenticationFailedError,
    AuthenticationMethodNotSupported,
    IllegalSaslStateError,
    SaslAuthenticationFailed,
    UnsupportedSaslMechanismError,
)


async def check_access(settings: KafkaSettings) -> None:
    """Check by a connection to the first broker that answers why no broker can be used.

    Returns if that broker accepts this client, or if no broker answers.

    Raises:
        LogNotTrusted: the broker's certificate is not valid, the broker does not support TLS 1.3,
            or it cannot prove that it knows the user's password.
        LogAccessRefused: user, password or mechanism are wrong.
    """
    client = settings.client()
    for host, port, _ in collect_hosts(client.pop("bootstrap_servers")):
        broker = f"{host}:{port}"
        try:
            connection = await create_conn(host, port, **client)
        except ssl.SSLCertVerificationError as error:
            raise LogNotTrusted(broker=broker, found=error.verify_message) from None
        except ssl.SSLError as error:
            found = f"no TLS 1.3 with it ({error.reason})"
            raise LogNotTrusted(broker=broker, found=found) from None
        except _REFUSALS as error:
            # The broker's message names at most the mechanism, never the credentials.
            raise LogAccessRefused(
                broker=broker,
                user=settings.sasl_username,
                mechanism=settings.sasl_mechanism,
                found=type(error).__name__,
            ) from None
        except ValueError:
            # SCRAM authenticates both sides: this broker does not know the password.
            found = "it could not prove that it knows the user's password"
            raise LogNotTrusted(broker=broker, found=found) from None
        except (OSError, KafkaError, TimeoutError):
            continue  # also a listener without TLS: it closes the connection, like a starting one
        connection.close()
        return


@asynccontextmanager
async def admin_of(settings: KafkaSettings) -> AsyncIterator[AIOKafkaAdminClient]:
    """A connected client for administration; its block ends within `call_timeout_s`.

    Raises: LogUnavailable, LogNotTrusted, LogAccessRefused, TlsUnusable.
    """
    admin = AIOKafkaAdminClient(**settings.client())
    try:
        async with asyncio.timeout(settings.call_timeout_s):
            try:
                await admin.start()
            except (KafkaError, ValueError):
                await check_access(settings)
                raise
            yield admin
    except (KafkaError, OSError, TimeoutError, ValueError) as error:
        raise LogUnavailable(found=f"{type(error).__name__} {error}".strip()) from error
    finally:
        await admin.close()
