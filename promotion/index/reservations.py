"""Reservations: the agreement of promotions and repairs on files that no ledger entry names.

A promotion copies its files before its ledger entry exists. A repair removes files that no entry names, but no young
ones, so that a running promotion keeps what it copied. A file that an earlier, killed promotion copied may be old: who
wants to use it reserves it, and then copies it again if it is gone. One object for each index, replaced by
compare-and-swap, orders reservations and removals: a removal sees the reservations before it, refuses those during it,
and has ended before those after it.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta

from core.errors import BucketError, BusyError
from promotion.storage.bucket import Bucket, ConflictError
from promotion.storage.keys import ReleasedIndex

Clock = Callable[[], datetime]
MOST_HOURS = 6
"""Maximum hours between the copies of a promotion and its ledger entry."""
_REMOVAL = timedelta(minutes=10)
"""Maximum duration of a removal; a killed one blocks others for this time."""
_MAX_RACES = 100
_NEVER = datetime.min.replace(tzinfo=UTC)


@dataclass(frozen=True, kw_only=True, slots=True)
class _State:
    """The stored object.

    Attributes:
        reserved: digest of a set -> time of its last reservation.
        remover: random name of the running removal, or empty.
        since: start of the running removal.
        etag: etag of the object. None if there is none.
    """

    reserved: Mapping[str, datetime] = field(default_factory=dict)
    remover: str = ""
    since: datetime = _NEVER
    etag: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Removal:
    """The right to remove files that no ledger entry names.

    Attributes:
        reserved: digest of a set -> time of its last reservation.
    """

    reserved: Mapping[str, datetime]
    _end: datetime
    _now: Clock

    def check(self) -> None:
        """Raise BusyError after the time of the removal, when others may rely on the files again."""
        if self._now() >= self._end:
            raise BusyError(f"The removal takes longer than {_REMOVAL}.", hint="Run the command again.")


def reserve(bucket: Bucket, released: ReleasedIndex, digest: str, *, now: Clock) -> None:
    """Protect the existing files of a set from removals.

    Raises:
        BusyError: files are being removed at this moment.
    """
    _change(bucket, released, now, lambda state: replace(state, reserved={**state.reserved, digest: now()}))


@contextmanager
def removing(bucket: Bucket, released: ReleasedIndex, *, promoted: frozenset[str], now: Clock) -> Iterator[Removal]:
    """Provide the right to remove files, for the duration of the block.

    Args:
        promoted: digests of promoted sets, which need no reservation any more.

    Raises:
        BusyError: another process is removing files.
    """
    start, remover = now(), secrets.token_hex(8)

    def begin(state: _State) -> _State:
        reserved = {digest: time for digest, time in state.reserved.items() if digest not in promoted}
        return replace(state, reserved=reserved, remover=remover, since=start)

    state = _change(bucket, released, now, begin)
    try:
        yield Removal(reserved=state.reserved, _end=start + _REMOVAL, _now=now)
    finally:
        if (state := _read(bucket, released)).remover == remover:
            _write_once(bucket, released, replace(state, remover=""))


def _change(bucket: Bucket, released: ReleasedIndex, now: Clock, change: Callable[[_State], _State]) -> _State:
    """Change the state; BusyError while files are being removed."""
    for _ in range(_MAX_RACES):
        state = _read(bucket, released)
        if state.remover and now() < (end := state.since + _REMOVAL):
            raise BusyError(
                f"`verify --repair` is removing files of {released.index}, or was killed.",
                hint=f"Run the command again when it has ended, or after {end:%H:%M} UTC.",
            )
        changed = change(state)
        try:
            _write_once(bucket, released, changed)
        except ConflictError:
            continue
        return changed
    raise BusyError(f"{released.reservations} changed during each of {_MAX_RACES} attempts.", hint="Try again later.")


def _read(bucket: Bucket, released: ReleasedIndex) -> _State:
    stored = bucket.read(released.reservations)
    if stored is None:
        return _State()
    data, info = stored
    try:
        body = json.loads(data)
        return _State(
            reserved={str(digest): datetime.fromisoformat(time) for digest, time in body["reserved"].items()},
            remover=str(body["remover"]),
            since=datetime.fromisoformat(body["since"]),
            etag=info.etag,
        )
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise BucketError(
            f"{released.reservations} is damaged: {error!r}.",
            hint="Remove it while neither a promotion nor `verify --repair` runs.",
        ) from error


def _write_once(bucket: Bucket, released: ReleasedIndex, state: _State) -> None:
    """Write the state. A store refuses the repetition of a request whose response was lost, though it was done."""
    try:
        _write(bucket, released, state)
    except ConflictError:
        if replace(_read(bucket, released), etag=state.etag) != state:
            raise


def _write(bucket: Bucket, released: ReleasedIndex, state: _State) -> None:
    body = {
        "reserved": {digest: time.isoformat() for digest, time in sorted(state.reserved.items())},
        "remover": state.remover,
        "since": state.since.isoformat(),
    }
    bucket.put_if_match(released.reservations, f"{json.dumps(body, indent=1)}\n".encode(), etag=state.etag)
