"""`YARD_KAFKA__...`: every setting reaches the adapter, what makes no sense is refused."""

from dataclasses import fields
from pathlib import Path

import pytest
from pydantic import ValidationError

from yardmaster_eventlog.kafka.settings import KafkaSettings
from yardmaster_runtime.settings import KafkaOptions, LogSettings
from yardmaster_schemas.secret import SecretUnreadable

SECRET = "not-to-be-seen"
SASL = {"security_protocol": "SASL_SSL", "sasl_username": "yard", "sasl_password": SECRET}


def test_every_setting_of_the_adapter_can_be_set() -> None:
    options = KafkaOptions.model_validate(
        {
            **SASL,
            "sasl_mechanism": "SCRAM-SHA-256",
            "ssl_cafile": "ca.pem",
            "ssl_certfile": "crt.pem",
            "ssl_keyfile": "key.pem",
            "ssl_key_password": "another",
            "replication_factor": 3,
            "min_insync_replicas": 2,
            "append_timeout_s": 7,
            "call_timeout_s": 8,
        }
    )
    made = options.settings("kafka:9092", "yard-test")
    plain = KafkaSettings(bootstrap="other:1")
    same = [
        each.name for each in fields(made) if getattr(made, each.name) == getattr(plain, each.name)
    ]
    assert same == []
    assert (made.sasl_password, made.ssl_key_password) == (SECRET, "another")


def test_variables_of_one_service_and_of_all_services(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("YARD_KAFKA__SECURITY_PROTOCOL", "SASL_SSL")
    monkeypatch.setenv("YARD_KAFKA__SASL_USERNAME", "yard")
    monkeypatch.setenv("YARD_KAFKA__SASL_PASSWORD", SECRET)
    kafka = LogSettings().kafka
    assert kafka.sasl_mechanism == "SCRAM-SHA-512"
    assert kafka.settings("k:1", "c").sasl_password == SECRET
    assert SECRET not in f"{LogSettings()!r} {kafka} {kafka.settings('k:1', 'c')}"
    assert SECRET not in LogSettings().model_dump_json()


@pytest.mark.parametrize(
    "given",
    [
        {"security_protocol": "SASL_SSL", "sasl_username": "yard"},
        {"security_protocol": "SASL_SSL", "sasl_password": SECRET},
        {"sasl_username": "yard", "sasl_password": SECRET},
        {"security_protocol": "SSL", "sasl_password": SECRET},
        {"ssl_cafile": "ca.pem"},
        {"security_protocol": "SSL", "ssl_keyfile": "key.pem"},
        {**SASL, "sasl_mechanism": "GSSAPI"},
        {**SASL, "sasl_pasword": SECRET},
    ],
)
def test_settings_that_would_be_ignored_or_fail_later_are_refused_without_quoting_a_secret(
    given: dict[str, str],
) -> None:
    with pytest.raises(ValidationError) as caught:
        LogSettings.model_validate({"kafka": given})
    assert SECRET not in str(caught.value)


def test_a_password_file_is_read_only_when_no_other_user_may_read_it(tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.touch(mode=0o640)
    file.write_text(f"{SECRET}\n")
    given = {**SASL, "sasl_password": None, "sasl_password_file": file}
    assert KafkaOptions.model_validate(given).settings("k:1", "c").sasl_password == SECRET
    file.chmod(0o644)
    with pytest.raises(SecretUnreadable, match="chmod") as caught:
        KafkaOptions.model_validate(given).settings("k:1", "c")
    assert SECRET not in str(caught.value)
    both = {**SASL, "sasl_password_file": file}
    with pytest.raises(SecretUnreadable, match="also given"):
        KafkaOptions.model_validate(both).settings("k:1", "c")
