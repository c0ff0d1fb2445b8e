"""Servers: how Redis, Postgres and the broker are reached, and what their failures are called.

Nothing here retries. What surely did not happen is StoreUnavailableError; what may have happened is
UnknownOutcomeError, and the caller settles it by repeating with the same op_id.
"""
