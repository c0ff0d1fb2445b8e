"""How a message becomes a request: as Celery does it, but a body of another shape can't take the worker down.

Celery unpacks the body in the worker's main process and takes for granted that it has three parts; a foreign
producer's mistake would end the worker, come again from the broker, and end the next one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from celery import Celery, Task
from celery.exceptions import InvalidTaskError
from celery.worker.strategy import default


def checked(task: Task, app: Celery, consumer: Any, **options: Any) -> Callable[..., Any]:
    """Celery's own strategy behind a look at the body; a wrong one is logged and dropped as an invalid message."""
    handle: Callable[..., Any] = default(task, app, consumer, **options)

    def handle_checked(message: Any, body: Any, *args: Any, **kwargs: Any) -> Any:
        # With a body the message is of protocol 1, which Celery converts and checks itself.
        if body is None:
            check_payload(message.payload)
        return handle(message, body, *args, **kwargs)

    return handle_checked


def check_payload(payload: Any) -> None:
    """InvalidTaskError unless the body is [arguments, named arguments, options] or an object with `args`."""
    match payload:
        case [[*_], Mapping(), Mapping() | None] | {"args": [*_]}:
            return
        case _:
            raise InvalidTaskError("the body must be [[arguments], {named arguments}, {options}]")
