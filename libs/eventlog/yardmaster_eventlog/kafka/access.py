"""Why Kafka's brokers do not let this client in, or this client does not trust them.

aiokafka says of every broker that it cannot use only that it could not connect. So when it says
that at the start, one connection is made to learn the reason: what somebody has to set right gets
an error of its own at once, instead of a service that waits for brokers that are there.
"""

import ssl
from typing import Final

from aiokafka.conn import collect_hosts, create_conn
from aiokafka.errors import (
    AuthenticationFailedError,
    AuthenticationMethodNotSupported,
    IllegalSaslStateError,
    KafkaError,
    SaslAuthenticationFailed,
    UnsupportedSaslMechanismError,
)

from yardmaster_eventlog.errors import LogAccessRefused, LogNotTrusted
from yardmaster_eventlog.kafka.settings import KafkaSettings

_REFUSALS: Final = (
    AuthenticationFailedError,
    AuthenticationMethodNotSupported,
    IllegalSaslStateError,
    SaslAuthenticationFailed,
    UnsupportedSaslMechanismError,
)


async def check_access(settings: KafkaSettings) -> None:
    """Connect to the first broker that answers; returns also when none does.

    Raises:
        LogNotTrusted: its certificate is not good, or it speaks another TLS than 1.3.
        LogAccessRefused: user, password or mechanism are not right.
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
            # What the broker says names the mechanism at most; never what was sent.
            raise LogAccessRefused(
                broker=broker,
                user=settings.sasl_username,
                mechanism=settings.sasl_mechanism,
                found=type(error).__name__,
            ) from None
        except ValueError:
            # SCRAM proves both sides: this one does not know the password, whoever it is.
            found = "it could not prove that it knows the user's password"
            raise LogNotTrusted(broker=broker, found=found) from None
        except (OSError, KafkaError, TimeoutError):
            continue  # also a listener without TLS: it hangs up, as one does that is starting
        connection.close()
        return
