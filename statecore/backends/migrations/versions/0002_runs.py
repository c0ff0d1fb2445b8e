"""Runs, their events, and the trigger that keeps a terminal run as it is."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import ARRAY, JSONB

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def _time(name: str, nullable: bool = True) -> sa.Column[object]:
    return sa.Column(name, sa.DateTime(timezone=True), nullable=nullable)


def upgrade() -> None:
    op.create_table(
        "runs",
        sa.Column("run_id", sa.Text(), primary_key=True),
        sa.Column("namespace", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("status", sa.Text(), nullable=False),
        sa.Column("payload", JSONB(), nullable=False),
        sa.Column("queue", sa.Text(), nullable=False),
        sa.Column("priority", sa.Integer(), nullable=False),
        sa.Column("labels", ARRAY(sa.Text()), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("max_attempts", sa.Integer(), nullable=False),
        sa.Column("lease_s", sa.Float(), nullable=False),
        sa.Column("run_timeout_s", sa.Float()),
        sa.Column("executor", sa.Text()),
        _time("lease_expires_at"),
        _time("available_at", nullable=False),
        _time("queue_deadline"),
        _time("run_deadline"),
        _time("cancel_deadline"),
        sa.Column("cancel_reason", sa.Text()),
        _time("ring_at", nullable=False),
        sa.Column("rings", sa.Integer(), nullable=False),
        sa.Column("idempotency_key", sa.Text()),
        sa.Column("result", JSONB()),
        sa.Column("error", JSONB()),
        sa.Column("attempt_errors", JSONB(), nullable=False),
        _time("submitted_at", nullable=False),
        _time("started_at"),
        _time("finished_at"),
        sa.CheckConstraint(
            "status IN ('queued', 'running', 'cancelling', 'succeeded', 'failed', 'canceled', 'timedOut', 'rejected')",
            name="runs_status_known",
        ),
        sa.CheckConstraint("attempt BETWEEN 0 AND max_attempts", name="runs_attempt_in_range"),
        sa.CheckConstraint("executor IS NULL OR status IN ('running', 'cancelling')", name="runs_executor_holds"),
        sa.CheckConstraint("(executor IS NULL) = (lease_expires_at IS NULL)", name="runs_executor_has_lease"),
    )
    op.create_table(
        "run_events",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=True), primary_key=True),
        sa.Column("run_id", sa.Text(), sa.ForeignKey("runs.run_id", ondelete="CASCADE"), nullable=False),
        _time("at", nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("actor", sa.Text(), nullable=False),
        sa.Column("op_id", sa.Text(), nullable=False),
        sa.Column("before", JSONB()),
        sa.Column("after", JSONB()),
        sa.Column("data", JSONB()),
    )
    _create_indexes()
    # The last word: whatever a statement says, a run that has ended stays as it ended.
    op.execute(
        """
        CREATE FUNCTION runs_keep_terminal() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN
            RAISE EXCEPTION 'run % has ended as %, it can not change any more', OLD.run_id, OLD.status
                USING ERRCODE = 'check_violation';
        END $$
        """
    )
    op.execute(
        """
        CREATE TRIGGER runs_keep_terminal BEFORE UPDATE ON runs FOR EACH ROW
        WHEN (OLD.status IN ('succeeded', 'failed', 'canceled', 'timedOut', 'rejected'))
        EXECUTE FUNCTION runs_keep_terminal()
        """
    )


def _create_indexes() -> None:
    def partial(name: str, columns: list[str], where: str, *, unique: bool = False, table: str = "runs") -> None:
        op.create_index(name, table, columns, unique=unique, postgresql_where=sa.text(where))

    partial("runs_idempotency", ["namespace", "idempotency_key"], "idempotency_key IS NOT NULL", unique=True)
    op.create_index("runs_newest", "runs", ["namespace", "submitted_at"])
    op.create_index("runs_labels", "runs", ["labels"], postgresql_using="gin")
    partial("runs_waiting", ["namespace", "queue"], "status = 'queued'")
    # The sweeps look at what is due and at nothing else.
    partial("runs_lease_due", ["namespace", "lease_expires_at"], "status = 'running'")
    partial("runs_queue_deadline_due", ["namespace", "queue_deadline"], "status = 'queued'")
    partial("runs_run_deadline_due", ["namespace", "run_deadline"], "status IN ('running', 'cancelling')")
    partial("runs_grace_due", ["namespace", "cancel_deadline"], "status = 'cancelling'")
    partial("runs_ring_due", ["namespace", "ring_at"], "executor IS NULL AND status IN ('queued', 'running')")
    partial("run_events_operation", ["run_id", "op_id"], "op_id <> ''", unique=True, table="run_events")
    op.create_index("run_events_story", "run_events", ["run_id", "id"])
