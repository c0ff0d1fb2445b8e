"""What a submission means when its run may stand already."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence

from statecore.errors import IdempotencyError
from statecore.runs.model import Run, Submission


def match_submissions(submissions: Sequence[Submission], found: Iterable[Run]) -> list[Run]:
    """Each submission's run, by its key or its id; IdempotencyError if that has another name or payload."""
    runs = list(found)
    by_key = {run.idempotency_key: run for run in runs if run.idempotency_key}
    by_id = {run.run_id: run for run in runs}
    matched = []
    for submission in submissions:
        run = by_key.get(submission.idempotency_key) if submission.idempotency_key else None
        run = run or by_id[submission.run_id]
        if (run.name, run.payload) != (submission.name, json.loads(submission.payload)):
            raise IdempotencyError(submission.idempotency_key or submission.run_id, run.run_id)
        matched.append(run)
    return matched
