"""The runs' SQL, derived from the table of transitions: one statement changes the run and writes its event."""

from __future__ import annotations

from sqlalchemy import TextClause, text

from statecore.runs.transitions import RULES, Verb

# Time is Postgres's own, unless a test injects it.
NOW = "COALESCE(CAST(:now AS timestamptz), clock_timestamp())"

_STORY = "jsonb_build_object('status', {0}.status, 'attempt', {0}.attempt, 'executor', {0}.executor)"
_IDLE = "executor = NULL, lease_expires_at = NULL"
_ENDED = f"{_IDLE}, finished_at = {NOW}"
_RING_NOW = f"ring_at = {NOW}, rings = 0"

# What each verb writes besides the status.
_SETS: dict[Verb, str] = {
    Verb.CLAIM: f"""executor = :executor, lease_expires_at = {NOW} + r.lease_s * interval '1 second',
        attempt = GREATEST(r.attempt, 1), started_at = COALESCE(r.started_at, {NOW}), queue_deadline = NULL,
        run_deadline = COALESCE(r.run_deadline, {NOW} + r.run_timeout_s * interval '1 second')""",
    Verb.SUCCEED: f"result = CAST(:result AS jsonb), {_ENDED}",
    Verb.FAIL: f"error = CAST(:error AS jsonb), {_ENDED}",
    Verb.RETRY: f"""attempt = r.attempt + 1, attempt_errors = r.attempt_errors || CAST(:error AS jsonb), {_IDLE},
        available_at = {NOW} + :delay_s * interval '1 second', ring_at = {NOW} + :delay_s * interval '1 second',
        rings = 0""",
    Verb.CANCEL: f"""cancel_reason = :reason,
        finished_at = CASE old.status WHEN 'queued' THEN {NOW} END,
        cancel_deadline = CASE old.status WHEN 'running' THEN {NOW} + :grace_s * interval '1 second' END""",
    Verb.CONFIRM_CANCELED: _ENDED,
    Verb.ABANDON: _ENDED,
    Verb.TIME_OUT: _ENDED,
    Verb.RECLAIM: f"attempt = r.attempt + 1, {_IDLE}, {_RING_NOW}",
    Verb.GIVE_UP: f"""error = jsonb_build_object('type', 'WorkerLost', 'message', 'the last lease ran out'),
        {_ENDED}""",
    Verb.GIVE_BACK: f"{_IDLE}, {_RING_NOW}",
}

# What must hold of the run besides its status.
_GUARDS: dict[Verb, str] = {
    Verb.CLAIM: f"executor IS NULL AND available_at <= {NOW}",
    Verb.RETRY: "attempt < max_attempts",
}

_HELD = "attempt = :attempt AND executor = :executor"


def change_one(verb: Verb) -> TextClause:
    """Do it to one run, unless this op_id has a line in its story already."""
    conditions = ["run_id = :run_id", _GUARDS.get(verb, "true")]
    if RULES[verb].held:
        conditions.append(_HELD)
    conditions.append("NOT EXISTS (SELECT FROM run_events e WHERE e.run_id = :run_id AND e.op_id = :op_id)")
    return _change(verb, " AND ".join(conditions), "FOR UPDATE", ":op_id")


def change_due(verb: Verb, due: str, order: str) -> TextClause:
    """Do it to every run of the namespace that is due, as many as :limit, passing over those in other hands."""
    return _change(verb, due, f"ORDER BY {order} LIMIT :limit FOR UPDATE SKIP LOCKED", "''")


def _change(verb: Verb, where: str, selection: str, op_id: str) -> TextClause:
    rule = RULES[verb]
    sources = ", ".join(f"'{source}'" for source in rule.edges)
    targets = " ".join(f"WHEN '{source}' THEN '{target}'" for source, target in rule.edges.items())
    return text(
        f"""
        WITH old AS (
            SELECT * FROM runs WHERE namespace = :namespace AND status IN ({sources}) AND {where} {selection}
        ), changed AS (
            UPDATE runs r SET status = CASE old.status {targets} END, {_SETS[verb]}
            FROM old WHERE r.run_id = old.run_id RETURNING r.*
        ), story AS (
            INSERT INTO run_events (run_id, at, kind, actor, op_id, before, after, data)
            SELECT r.run_id, {NOW}, '{rule.event.replace(":", chr(92) + ":")}', :actor, {op_id},
                {_STORY.format("old")}, {_STORY.format("r")}, CAST(:data AS jsonb)
            FROM changed r JOIN old ON old.run_id = r.run_id
        )
        SELECT * FROM changed
        """
    )


SWEEPS: dict[str, tuple[Verb, TextClause]] = {
    "queue deadline": (
        Verb.TIME_OUT,
        change_due(Verb.TIME_OUT, f"status = 'queued' AND queue_deadline <= {NOW}", "queue_deadline"),
    ),
    "run deadline": (
        Verb.TIME_OUT,
        change_due(Verb.TIME_OUT, f"status IN ('running', 'cancelling') AND run_deadline <= {NOW}", "run_deadline"),
    ),
    "cancel grace": (
        Verb.ABANDON,
        change_due(Verb.ABANDON, f"status = 'cancelling' AND cancel_deadline <= {NOW}", "cancel_deadline"),
    ),
    "last lease": (
        Verb.GIVE_UP,
        change_due(Verb.GIVE_UP, f"lease_expires_at <= {NOW} AND attempt >= max_attempts", "lease_expires_at"),
    ),
    "lease": (
        Verb.RECLAIM,
        change_due(Verb.RECLAIM, f"lease_expires_at <= {NOW} AND attempt < max_attempts", "lease_expires_at"),
    ),
}

# Make runs that do not exist yet; what is known by its id or key is left out and looked up afterwards.
SUBMIT = text(
    f"""
    WITH wanted AS (
        SELECT * FROM jsonb_to_recordset(CAST(:rows AS jsonb)) AS w(
            run_id text, name text, payload jsonb, queue text, priority int, labels text[], max_attempts int,
            lease_s float, run_timeout_s float, queue_timeout_s float, start_at timestamptz, idempotency_key text,
            op_id text)
    ), waiting AS (
        SELECT queue, CASE WHEN CAST(:queue_limit AS int) <= (
            SELECT count(*) FROM (SELECT FROM runs q WHERE q.namespace = :namespace AND q.queue = w.queue
                AND q.status = 'queued' LIMIT :queue_limit) up_to_the_limit) THEN 'rejected' ELSE 'queued' END AS status
        FROM (SELECT DISTINCT queue FROM wanted) w
    ), made AS (
        INSERT INTO runs (run_id, namespace, name, status, payload, queue, priority, labels, attempt, max_attempts,
            lease_s, run_timeout_s, available_at, queue_deadline, ring_at, rings, idempotency_key, attempt_errors,
            submitted_at, finished_at)
        SELECT run_id, :namespace, name, waiting.status, COALESCE(payload, CAST('null' AS jsonb)), queue, priority,
            labels, 0, max_attempts, lease_s, run_timeout_s, COALESCE(start_at, {NOW}),
            COALESCE(start_at, {NOW}) + queue_timeout_s * interval '1 second',
            COALESCE(start_at, {NOW}), 0, idempotency_key, '[]', {NOW},
            CASE waiting.status WHEN 'rejected' THEN {NOW} END
        FROM wanted JOIN waiting USING (queue)
        ON CONFLICT DO NOTHING RETURNING *
    ), story AS (
        INSERT INTO run_events (run_id, at, kind, actor, op_id, before, after, data)
        SELECT made.run_id, {NOW}, CASE made.status WHEN 'rejected' THEN 'run\\:rejected' ELSE 'run\\:submitted' END,
            :actor, wanted.op_id, NULL, {_STORY.format("made")}, NULL
        FROM made JOIN wanted ON wanted.run_id = made.run_id
    )
    SELECT * FROM made
    """
)

# Runs that a submission meant and that stood already.
FIND = text(
    """
    SELECT * FROM runs WHERE namespace = :namespace
    AND (run_id = ANY(:run_ids) OR idempotency_key = ANY(:keys))
    """
)

# What an operation without effect met: the run, and the line that its op_id has in the story.
EXPLAIN = text(
    """
    SELECT r.*, e.kind AS known_kind, e.data AS known_data FROM runs r
    LEFT JOIN run_events e ON e.run_id = r.run_id AND e.op_id = :op_id
    WHERE r.namespace = :namespace AND r.run_id = :run_id
    """
)

REFUSE = text(
    f"""
    INSERT INTO run_events (run_id, at, kind, actor, op_id, data)
    VALUES (:run_id, {NOW}, 'run\\:refused', :actor, :op_id, CAST(:data AS jsonb)) ON CONFLICT DO NOTHING
    """
)

# A whole pool's leases at once; a lease that is over renews nothing.
RENEW = text(
    f"""
    UPDATE runs r SET lease_expires_at = {NOW} + r.lease_s * interval '1 second'
    FROM unnest(CAST(:run_ids AS text[]), CAST(:attempts AS int[]), CAST(:executors AS text[]))
        AS held(run_id, attempt, executor)
    WHERE r.namespace = :namespace AND r.run_id = held.run_id AND r.attempt = held.attempt
        AND r.executor = held.executor AND r.status IN ('running', 'cancelling')
    RETURNING r.run_id, r.status
    """
)

# Runs whose message may be lost; each ring waits twice as long as the one before, up to an hour.
DUE_FOR_RING = text(
    f"""
    WITH due AS (
        SELECT run_id FROM runs
        WHERE namespace = :namespace AND executor IS NULL AND status IN ('queued', 'running') AND ring_at <= {NOW}
        ORDER BY ring_at LIMIT :limit FOR UPDATE SKIP LOCKED
    )
    UPDATE runs r SET rings = rings + 1,
        ring_at = {NOW} + LEAST(3600, :first_delay_s * 2 ^ LEAST(rings, 20)) * interval '1 second'
    FROM due WHERE r.run_id = due.run_id RETURNING r.*
    """
)

LIST = text(
    """
    SELECT * FROM runs WHERE namespace = :namespace
    AND (CAST(:status AS text) IS NULL OR status = :status)
    AND (CAST(:label AS text) IS NULL OR labels @> ARRAY[CAST(:label AS text)])
    AND (CAST(:before AS timestamptz) IS NULL OR submitted_at < :before)
    ORDER BY submitted_at DESC, run_id LIMIT :limit
    """
)

STORY = text(
    """
    SELECT e.* FROM run_events e JOIN runs r ON r.run_id = e.run_id
    WHERE r.namespace = :namespace AND e.run_id = :run_id ORDER BY e.id
    """
)
