"""One producer that feeds several consumer threads through bounded queues."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterable

Sink = Callable[[bytes], object]

DEPTH = 8
"""Most chunks that wait for a consumer; with chunks of 1 MiB this bounds the memory."""


class _Consumer(threading.Thread):
    def __init__(self, sink: Sink) -> None:
        super().__init__(daemon=True)
        self.sink = sink
        self.waiting: queue.Queue[bytes | None] = queue.Queue(DEPTH)
        self.error: BaseException | None = None

    def run(self) -> None:
        while (chunk := self.waiting.get()) is not None:
            if self.error is None:
                try:
                    self.sink(chunk)
                except BaseException as error:
                    self.error = error


def pump(chunks: Iterable[bytes], *sinks: Sink) -> None:
    """Pass every chunk to every sink, in order; hashing, writing and inflating overlap because they release the GIL.

    Raises:
        BaseException: the error of the producer or of the first failing sink.
    """
    consumers = [_Consumer(sink) for sink in sinks]
    for consumer in consumers:
        consumer.start()
    try:
        for chunk in chunks:
            for consumer in consumers:
                consumer.waiting.put(chunk)
            if any(consumer.error for consumer in consumers):
                break
    finally:
        for consumer in consumers:
            consumer.waiting.put(None)
        for consumer in consumers:
            consumer.join()
    for consumer in consumers:
        if consumer.error is not None:
            raise consumer.error
