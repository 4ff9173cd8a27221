"""Why Kafka's brokers refuse this client, or why this client does not trust the brokers.

If aiokafka cannot use a broker, it reports only that it could not connect. If this happens at the
start, one more connection is made to find the reason. A wrong setting is then reported at once;
otherwise the service would wait for brokers that are already available.
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
            continue  # the broker is starting; a listener without TLS closes the connection too
        connection.close()
        return


@asynccontextmanager
async def admin_of(settings: KafkaSettings) -> AsyncIterator[AIOKafkaAdminClient]:
    """Provide a connected client for administration to a block, which may take `call_timeout_s`.

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
