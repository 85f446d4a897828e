"""Messages between client and workers, as JSON text, which the scheduler only passes on."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any

from core.errors import CiBuildError
from core.tasks import Task


@dataclass(frozen=True, kw_only=True, slots=True)
class Order:
    """A task on its way to a worker.

    Attributes:
        identity: identity of the client's program.
        store: name of the store.
        name: name of the task in its run, unique in the store.
        inputs: name -> [sha256, tree].
        earlier: workers whose machines failed with the task.
    """

    identity: str
    store: str
    name: str
    kind: str
    arguments: dict[str, Any]
    inputs: dict[str, list[Any]]
    earlier: list[str]

    def dump(self) -> str:
        """Return the order as text."""
        return json.dumps(asdict(self), separators=(",", ":"))


def new_order(
    task: Task, *, identity: str, store: str, name: str, earlier: list[str]
) -> Order:
    """Return the order for a task."""
    return Order(
        identity=identity,
        store=store,
        name=name,
        kind=task.kind,
        arguments=dict(task.arguments),
        inputs={
            name: [given.sha256, given.tree] for name, given in task.inputs.items()
        },
        earlier=earlier,
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkerAnswer:
    """A worker's answer.

    Attributes:
        worker: name of the worker.
        address: address of the worker in the cluster.
        value: result of the function.
        files: path below the result's folder -> [sha256, executable].
        error: failure of the task itself.
        kind: name of the error's class, see `TaskResult`.
        machine: failure of the worker's machine; the task may succeed on another one.
        refused: reason why the worker may not run the task; this is no try.
        lost: workers that were lost with the task.
    """

    worker: str
    address: str
    value: Any = None
    files: dict[str, list[Any]] | None = None
    seconds: float = 0.0
    error: str = ""
    kind: str = CiBuildError.__name__
    machine: str = ""
    refused: str = ""
    lost: tuple[str, ...] = ()

    def dump(self) -> str:
        """Return the answer as text."""
        return json.dumps(asdict(self), separators=(",", ":"))


def load_order(text: str) -> Order:
    """Return the order of a text."""
    return Order(**json.loads(text))


def load_answer(text: str) -> WorkerAnswer:
    """Return the answer of a text."""
    body = json.loads(text)
    return WorkerAnswer(**{**body, "lost": tuple(body["lost"])})
