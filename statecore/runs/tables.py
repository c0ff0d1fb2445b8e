"""Runs and their events in Postgres, as SQLModel sees them; the migrations make them."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    Column,
    DateTime,
    Float,
    ForeignKey,
    Identity,
    Index,
    Integer,
    Text,
    text,
)
from sqlalchemy.dialects.postgresql import ARRAY, JSONB
from sqlmodel import Field, SQLModel

from statecore.runs.model import RunStatus


def _time(nullable: bool = True) -> Column[datetime]:
    return Column(DateTime(timezone=True), nullable=nullable)


class RunRow(SQLModel, table=True):
    """One run; see `statecore.runs.model.Run` for what its fields mean."""

    __tablename__ = "runs"
    __table_args__ = (
        CheckConstraint(f"status IN ({', '.join(f'{s.value!r}' for s in RunStatus)})", name="runs_status_known"),
        CheckConstraint("attempt BETWEEN 0 AND max_attempts", name="runs_attempt_in_range"),
        CheckConstraint("executor IS NULL OR status IN ('running', 'cancelling')", name="runs_executor_holds"),
        CheckConstraint("(executor IS NULL) = (lease_expires_at IS NULL)", name="runs_executor_has_lease"),
        Index(
            "runs_idempotency",
            "namespace",
            "idempotency_key",
            unique=True,
            postgresql_where=text("idempotency_key IS NOT NULL"),
        ),
        Index("runs_newest", "namespace", "submitted_at"),
        Index("runs_labels", "labels", postgresql_using="gin"),
        Index("runs_waiting", "namespace", "queue", postgresql_where=text("status = 'queued'")),
        Index("runs_lease_due", "namespace", "lease_expires_at", postgresql_where=text("status = 'running'")),
        Index("runs_queue_deadline_due", "namespace", "queue_deadline", postgresql_where=text("status = 'queued'")),
        Index(
            "runs_run_deadline_due",
            "namespace",
            "run_deadline",
            postgresql_where=text("status IN ('running', 'cancelling')"),
        ),
        Index("runs_grace_due", "namespace", "cancel_deadline", postgresql_where=text("status = 'cancelling'")),
        Index(
            "runs_ring_due",
            "namespace",
            "ring_at",
            postgresql_where=text("executor IS NULL AND status IN ('queued', 'running')"),
        ),
    )

    run_id: str = Field(sa_column=Column(Text, primary_key=True))
    namespace: str = Field(sa_column=Column(Text, nullable=False))
    name: str = Field(sa_column=Column(Text, nullable=False))
    status: str = Field(sa_column=Column(Text, nullable=False))
    payload: Any = Field(sa_column=Column(JSONB, nullable=False))
    queue: str = Field(sa_column=Column(Text, nullable=False))
    priority: int = Field(sa_column=Column(Integer, nullable=False))
    labels: list[str] = Field(sa_column=Column(ARRAY(Text), nullable=False))
    attempt: int = Field(sa_column=Column(Integer, nullable=False))
    max_attempts: int = Field(sa_column=Column(Integer, nullable=False))
    lease_s: float = Field(sa_column=Column(Float, nullable=False))
    run_timeout_s: float | None = Field(sa_column=Column(Float))
    executor: str | None = Field(sa_column=Column(Text))
    lease_expires_at: datetime | None = Field(sa_column=_time())
    available_at: datetime = Field(sa_column=_time(nullable=False))
    queue_deadline: datetime | None = Field(sa_column=_time())
    run_deadline: datetime | None = Field(sa_column=_time())
    cancel_deadline: datetime | None = Field(sa_column=_time())
    cancel_reason: str | None = Field(sa_column=Column(Text))
    ring_at: datetime = Field(sa_column=_time(nullable=False))
    rings: int = Field(sa_column=Column(Integer, nullable=False))
    idempotency_key: str | None = Field(sa_column=Column(Text))
    result: Any = Field(sa_column=Column(JSONB))
    error: Any = Field(sa_column=Column(JSONB))
    attempt_errors: list[Any] = Field(sa_column=Column(JSONB, nullable=False))
    submitted_at: datetime = Field(sa_column=_time(nullable=False))
    started_at: datetime | None = Field(sa_column=_time())
    finished_at: datetime | None = Field(sa_column=_time())


class RunEventRow(SQLModel, table=True):
    """One line of a run's story. An operation has one line per run, so its repeat can be told."""

    __tablename__ = "run_events"
    __table_args__ = (
        Index("run_events_operation", "run_id", "op_id", unique=True, postgresql_where=text("op_id <> ''")),
        Index("run_events_story", "run_id", "id"),
    )

    id: int = Field(sa_column=Column(BigInteger, Identity(always=True), primary_key=True))
    run_id: str = Field(sa_column=Column(Text, ForeignKey("runs.run_id", ondelete="CASCADE"), nullable=False))
    at: datetime = Field(sa_column=_time(nullable=False))
    kind: str = Field(sa_column=Column(Text, nullable=False))
    actor: str = Field(sa_column=Column(Text, nullable=False))
    op_id: str = Field(sa_column=Column(Text, nullable=False))
    before: Any = Field(sa_column=Column(JSONB))
    after: Any = Field(sa_column=Column(JSONB))
    data: Any = Field(sa_column=Column(JSONB))
