"""Settings from the environment (`STATECORE_...`) or from arguments, checked once at start."""

from __future__ import annotations

import difflib
import os
import re
from pathlib import Path
from typing import Annotated, Any, Self
from urllib.parse import urlsplit

from pydantic import Field, ValidationError, field_validator, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from statecore.errors import InvalidIdError, SettingsError
from statecore.ids import check_id

_REDIS_SCHEMES = ("redis", "rediss", "unix", "redis+cluster", "rediss+cluster")
_URL_FIELDS = ("redis_url", "broker_url", "database_url", "result_url")

_PASSWORD_OPTION = re.compile(r"([?&](?:\w*password|passwd|pwd)=)[^&;]*")

PositiveSeconds = Annotated[float, Field(gt=0, le=86_400)]
Count = Annotated[int, Field(ge=1, le=10_000_000)]


class Settings(BaseSettings):
    """Everything that may differ between two installations."""

    model_config = SettingsConfigDict(
        env_prefix="STATECORE_", extra="forbid", frozen=True, validate_default=True, hide_input_in_errors=True
    )

    redis_url: str | None = Field(None, description="the store: redis://, rediss://, unix:// or redis+cluster://")
    broker_url: str | None = Field(
        None, description="Celery's broker, as Celery spells it; default: the store's server"
    )
    database_url: str | None = Field(None, description="Postgres: postgresql://user:password@host/database")
    result_url: str | None = Field(None, description="Celery's result backend; default: the broker if it is Redis")
    namespace: str = Field("default", description="which fleet; agents of two namespaces never meet")
    home: Path | None = Field(None, description="folder of the embedded servers")
    lifecycle: str | None = Field(None, description="your own agent lifecycle, as module:attribute")

    redis_timeout_s: PositiveSeconds = 5.0
    heartbeat_lost_after_s: PositiveSeconds = Field(60.0, description="silence after which an agent is lost")
    inbox_ring_after_s: PositiveSeconds = Field(2.0, description="age at which a waiting inbox is rung again")
    run_ring_after_s: PositiveSeconds = Field(10.0, description="first wait before a waiting run is rung again")
    early_event_wait_s: PositiveSeconds = Field(5.0, description="how long an event may wait for its predecessors")
    retry_base_s: PositiveSeconds = Field(0.2, description="first backoff after a store failure")
    retry_cap_s: PositiveSeconds = Field(30.0, description="longest backoff after a store failure")
    retry_limit: Count = Field(20, description="store failures after which a message is given up")

    metadata_limit_bytes: Count = 4096
    data_limit_bytes: Count = 65_536
    inbox_limit: Count = Field(10_000, description="events that may wait for one agent")
    queue_limit: Count = Field(100_000, description="tasks that may wait in one namespace")
    run_queue_limit: Count = Field(100_000, description="runs that may wait in one queue; more are rejected")
    event_stream_limit: Count = Field(1_000_000, description="events kept in a namespace's stream, about")

    @field_validator("namespace")
    @classmethod
    def _namespace_is_an_id(cls, value: str) -> str:
        try:
            return check_id("namespace", value)
        except InvalidIdError as error:
            raise ValueError(str(error)) from None

    @field_validator("redis_url")
    @classmethod
    def _redis_scheme(cls, value: str | None) -> str | None:
        if value is not None and urlsplit(value).scheme not in _REDIS_SCHEMES:
            raise ValueError(f"begin it with one of {', '.join(s + '://' for s in _REDIS_SCHEMES)}")
        return value

    @field_validator("database_url")
    @classmethod
    def _psycopg_url(cls, value: str | None) -> str | None:
        if value is None:
            return None
        scheme, _, rest = value.partition("://")
        if scheme not in ("postgresql", "postgres", "postgresql+psycopg"):
            raise ValueError("begin it with postgresql://")
        return f"postgresql+psycopg://{rest}"

    @model_validator(mode="after")
    def _backoff_order(self) -> Self:
        if self.retry_base_s > self.retry_cap_s:
            raise ValueError("retry_base_s must not be larger than retry_cap_s")
        return self

    @classmethod
    def load(cls, **overrides: Any) -> Settings:
        """Settings of the environment with these overrides; SettingsError says in one sentence what is wrong."""
        _refuse_unknown_names()
        try:
            return cls(**{name: value for name, value in overrides.items() if value is not None})
        except ValidationError as error:
            raise SettingsError(_sentence(error)) from None

    def require(self, field: str) -> str:
        """The URL of that field; SettingsError if it is not set."""
        value = getattr(self, field)
        if value is None:
            raise SettingsError(
                f"STATECORE_{field.upper()} is not set; set it to your server, or use the embedded servers "
                "(statecore demo, Statecore.embedded())"
            )
        return str(value)

    def shown(self) -> dict[str, Any]:
        """The effective values, fit to be printed: passwords are hidden."""
        values = self.model_dump(mode="json")
        for field in _URL_FIELDS:
            if values[field] is not None:
                values[field] = hide_password(values[field])
        return values


def _refuse_unknown_names() -> None:
    """A misspelt name would silently leave the default in force."""
    known = [f"STATECORE_{name.upper()}" for name in Settings.model_fields]
    for name in os.environ:
        if name.startswith("STATECORE_") and name not in known:
            closest = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {closest[0]}?" if closest else "statecore config lists those that are"
            raise SettingsError(f"{name} is no setting; {hint}")


def hide_password(text: str) -> str:
    """The URL, or several with ; between them, with *** in place of every password."""
    return ";".join(map(_hide_one, text.split(";")))


def _hide_one(url: str) -> str:
    scheme, separator, rest = _PASSWORD_OPTION.sub(r"\1***", url).partition("://")
    # From the right: a password may contain what only a well-behaved URL would escape.
    login, at, place = rest.rpartition("@")
    if ":" in login:
        login = login.partition(":")[0] + ":***"
    return f"{scheme}{separator}{login}{at}{place}"


def _sentence(error: ValidationError) -> str:
    problems = []
    for item in error.errors():
        name = ".".join(str(part) for part in item["loc"])
        message = item["msg"].removeprefix("Value error, ")
        problems.append(f"STATECORE_{name.upper()}: {message}" if name else message)
    return "; ".join(problems)
