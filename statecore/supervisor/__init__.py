"""The supervisor: brings waiting tasks and idle agents together.

Why it is so:

- One script picks the best task and the longest idle agent able to do it, and applies the assignment. There is no
  moment at which a task is off the queue and not yet with an agent.
- Waiting tasks and idle agents are ranked per set of capabilities, so a hundred tasks that nobody can do do not hide
  the one that somebody can.
- A conflict is healthy concurrency: no backoff, the task keeps priority and place. Only a store that fails is left
  alone for a while, by this process, for exponentially longer, until it succeeds once.
"""
