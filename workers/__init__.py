"""Statecore's Celery side, the only code that imports Celery. `celery -A workers worker` starts a worker."""

from workers.app import create_app, setup

celery = create_app()

__all__ = ["celery", "create_app", "setup"]
