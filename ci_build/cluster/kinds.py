"""Functions of the tasks that a worker runs, by kind."""

from __future__ import annotations

from core.tasks import TaskFunction

KINDS: dict[str, TaskFunction] = {}
"""Kind of a task -> its function; imports are visible, so that import contracts cover what workers run."""
