"""Runs: durable, fenced, cancellable pieces of work; a row each, and a message that only says "look".

Why it is so:

- The table (`transitions`) is the only place with rules; the SQL of every change is built from it. A change is one
  statement that updates the row and writes its event; a trigger keeps a run that has ended as it ended.
- `attempt` is the fence. A claim gives attempt 1; a lease that runs out, or a failed attempt, raises it. Whoever
  finishes names the attempt it was given, so a zombie's finish meets a higher one and is refused; that is written too.
- A lost race is a value (`Outcome`), because losing is normal: a cancel and a finish meet, two workers claim.
- An operation has one line in a run's story, by a unique index. So a repeat with the same `op_id` gets the first
  answer, for as long as the run exists.
- Deadlines, leases, graces and rings have partial indexes: a sweep costs what is due, not what is stored.

An executor is a Celery task with the run's name that takes `run_id`, claims the run and finishes it.
"""
