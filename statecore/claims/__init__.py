"""The queue of tasks: claim the next one, at most once.

Three stores, one for each option of the decision record on claim races, behind one port and one suite: Redis
(the server's atomicity, the default), a process's memory (a lock), a file (an exclusive lock, then read again and
verify). None of them has rules of its own: `ledger` is the queue as a pure model. Memory and file run it; the Redis
scripts repeat it and are held to it by `statecore.testing.claims`.

Why it is so:

- A task keeps the place it got when it was queued. Whoever gives it back, or loses it, does not send it to the end.
- A fence is drawn for every hold, from one counter for all tasks. So it also tells the order of the claims, and an
  id that is used again after its task was forgotten can't meet its own old fence.
- A lease that is overdue but not reclaimed still counts: the fence alone decides, not the time of the write.
- A task that an agent was assigned is held without a deadline, because the agent's heartbeat governs it.
- An attempt counts when its holder vanished, not when it gave the task back.
"""
