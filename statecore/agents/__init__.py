"""Agents: long-lived executors with an identity, distinct from Celery worker processes and from runs.

Why it is so:

- The table (`transitions`) is the only place with rules. A script gets its event's row as an argument, so a rule can't
  drift between Python and Lua; the memory store calls the same functions; the conformance suite and the twins test hold
  the two together.
- An event is one script: check, swap, other fields, the task's fate in the queue, the audit event. A worker killed with
  -9 dies before it or after it.
- `send_event` puts the event into the agent's inbox first and rings then. The inbox keeps the order and survives the
  message; the script that drains it takes an event out and applies it in the same atom.
- The last 32 operations of an agent stand in its own hash with their answers, refusals included. So a repeat gets the
  first answer, and the memory of it needs no key per operation and no expiry.
- Heartbeats are members `<agent>@<epoch>` of one sorted set: a beat under an old epoch finds no member to update, and
  a sweep costs what is stale, not what is registered.
- A lease of an older namespace epoch is over even if the record still shows it: the server may have forgotten who came
  after (see `statecore.backends.epoch`).
"""
