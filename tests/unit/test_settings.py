"""Settings: a wrong value is refused with one clear sentence, and nothing secret is shown."""

from __future__ import annotations

import pytest

from statecore.errors import SettingsError
from statecore.settings import Settings, hide_password


@pytest.mark.parametrize(
    ("name", "value", "sentence"),
    [
        ("NAMESPACE", "a b", "STATECORE_NAMESPACE: namespace 'a b' is not an id"),
        ("REDIS_URL", "http://host", "STATECORE_REDIS_URL: begin it with one of redis://"),
        ("DATABASE_URL", "mysql://host", "STATECORE_DATABASE_URL: begin it with postgresql://"),
        ("HEARTBEAT_LOST_AFTER_S", "soon", "STATECORE_HEARTBEAT_LOST_AFTER_S: Input should be a valid number"),
        ("HEARTBEAT_LOST_AFTER_S", "-1", "STATECORE_HEARTBEAT_LOST_AFTER_S: Input should be greater than 0"),
        ("INBOX_LIMIT", "0", "STATECORE_INBOX_LIMIT: Input should be greater than or equal to 1"),
        ("RETRY_BASE_S", "60", "retry_base_s must not be larger than retry_cap_s"),
        ("NAMESPCE", "x", "STATECORE_NAMESPCE is no setting; did you mean STATECORE_NAMESPACE?"),
    ],
)
def test_a_wrong_value_is_refused_with_one_sentence(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str, sentence: str
) -> None:
    monkeypatch.setenv(f"STATECORE_{name}", value)
    with pytest.raises(SettingsError) as caught:
        Settings.load()
    assert str(caught.value).startswith(sentence)
    assert "\n" not in str(caught.value)


def test_a_missing_url_says_what_to_set() -> None:
    with pytest.raises(SettingsError, match="STATECORE_REDIS_URL is not set; set it to your server"):
        Settings.load().require("redis_url")


def test_an_argument_goes_before_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STATECORE_NAMESPACE", "from-env")
    assert Settings.load().namespace == "from-env"
    assert Settings.load(namespace="given").namespace == "given"


def test_passwords_are_hidden_wherever_settings_are_shown() -> None:
    settings = Settings.load(
        redis_url="redis://:s3cret@host/0",
        database_url="postgres://user:s3cret@host/db",
        broker_url="amqp://user:s3cret@host//",
    )
    assert "s3cret" not in str(settings.shown())
    assert settings.shown()["database_url"] == "postgresql+psycopg://user:***@host/db"


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis://:pw@host/0", "redis://:***@host/0"),
        ("sentinel://:pw@h1;sentinel://u:pw@h2", "sentinel://:***@h1;sentinel://u:***@h2"),
        ("postgresql://u:p/w@d@host/db", "postgresql://u:***@host/db"),
        ("postgresql://host/db?user=u&password=pw&x=1", "postgresql://host/db?user=u&password=***&x=1"),
        ("postgresql://u:pw@/db?host=/run/a@b&sslpassword=pw", "postgresql://u:***@b&sslpassword=***"),
    ],
)
def test_no_spelling_of_a_url_shows_its_password(url: str, shown: str) -> None:
    assert hide_password(url) == shown


@pytest.mark.parametrize("url", ["redis://host/0", "unix:///tmp/redis.sock?db=0", "redis://user@host"])
def test_a_url_without_password_is_shown_as_it_is(url: str) -> None:
    assert hide_password(url) == url
