"""What a worker does besides running tasks."""
