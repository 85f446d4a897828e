"""Comparison of a ledger with its published checkpoint, and with checkpoints that a caller kept."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from core.atomic import write_whole
from core.errors import BusyError, RequestError
from core.merkle import EMPTY_TREE
from promotion.index.authority import Authority
from promotion.index.checkpoint import (
    SignedCheckpoint,
    cut_problem,
    known_keys,
    load_checkpoint,
    rewrite_problem,
)  # fmt: skip
from promotion.index.ledger import Ledger
from promotion.storage.bucket import Bucket
from promotion.storage.keys import ReleasedIndex


class CheckpointAudit:
    """The comparison of a ledger with its published checkpoint and with kept ones.

    Create it before the ledger is read, see `read_checkpoint`.

    Args:
        since: file with a checkpoint that the ledger must continue, or None.
        keep: file to which `save` writes the published checkpoint, or None. An existing file counts like `since`.

    Raises:
        RequestError: a file cannot be read, or is not a checkpoint of the index.
    """

    def __init__(
        self,
        bucket: Bucket,
        released: ReleasedIndex,
        authority: Authority,
        *,
        since: Path | None = None,
        keep: Path | None = None,
    ) -> None:
        stored = bucket.read(released.checkpoint)
        self._published, self._released, self._authority = stored[0] if stored else None, released, authority
        self._keep = keep
        self._kept = {path: self._read(path) for path in (since, keep) if path and (path == since or path.exists())}

    def _read(self, path: Path) -> bytes:
        try:
            data = path.read_bytes()
            load_checkpoint(data, self._released, (), place=str(path))
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else error
            raise RequestError(
                f"{path} is not a checkpoint of {self._released.index}: {reason}.",
                hint=f"Give a file that `ci_build verify {self._released.index} --checkpoint FILE` wrote.",
            ) from error
        return data

    def problems(self, ledger: Ledger) -> Iterator[str]:
        """Yield a sentence for each checkpoint that the ledger does not continue, and for a missing or old one.

        Raises:
            RequestError: no accepted key signed a kept checkpoint, or its signature is invalid.
        """
        anyone, keys = self._authority.keys is None, self._keys(ledger)
        signed = bool(ledger.entries) and bool(ledger.entries[-1].key)
        place, repair = self._released.checkpoint, "run `ci_build index publish` with the key of the ledger."
        published = None
        try:
            if self._published is not None:
                published = load_checkpoint(self._published, self._released, keys, place=place)
            elif signed:
                yield f"{place} is missing: {repair}"
        except ValueError as error:
            yield f"{place} is not a valid checkpoint: {error}."
        if published is not None:
            if not published.signers and not anyone:
                yield f"{place} is signed by no key in ledger_keys of channel {self._authority.channel}."
            if problem := self._problem(ledger, published):
                yield problem
                published = None
            elif published.checkpoint.size < len(ledger.entries) and signed:
                yield f"{place} covers {published.checkpoint.size} of {len(ledger.entries)} entries: {repair}"
        yield from self.kept_problems(ledger, published)

    def kept_problems(self, ledger: Ledger, published: SignedCheckpoint | None = None) -> Iterator[str]:
        """Yield a sentence for each kept checkpoint that the ledger does not continue.

        Args:
            published: the published checkpoint, if it belongs to the ledger.

        Raises:
            RequestError: no accepted key signed a kept checkpoint, or its signature is invalid.
        """
        for path, data in self._kept.items():
            yield from self._kept_problem(ledger, path, data, published)

    def _keys(self, ledger: Ledger) -> list[str]:
        """Return the keys whose signatures are verified: those of the policy, or for any key those of the entries."""
        if self._authority.keys is None:
            return [entry.key for entry in ledger.entries if entry.key]
        return [*known_keys(self._authority)]

    def _problem(self, ledger: Ledger, known: SignedCheckpoint) -> str:
        size = known.checkpoint.size
        if size > len(ledger.leaves):
            return cut_problem(self._released, known, len(ledger.leaves))
        tree = EMPTY_TREE.grown(ledger.leaves[:size])
        return "" if tree.root == known.checkpoint.root else rewrite_problem(self._released, known, tree)

    def _kept_problem(
        self, ledger: Ledger, path: Path, data: bytes, published: SignedCheckpoint | None
    ) -> Iterator[str]:
        hint = "Compare it with another copy; without a trusted one, keep a new checkpoint."
        try:
            kept = load_checkpoint(data, self._released, self._keys(ledger), place=str(path))
        except ValueError as error:
            raise RequestError(f"{path} was changed after it was signed: {error}.", hint=hint) from error
        if not kept.signers and self._authority.keys is not None:
            channel = self._authority.channel
            raise RequestError(f"{path} is signed by no key in ledger_keys of channel {channel}.", hint=hint)
        problem = self._problem(ledger, kept)
        if problem and published is not None and kept.checkpoint.size <= len(ledger.leaves):
            common = {*kept.signers} & {*published.signers}
            how = "forked, and one key signed both" if common else "signed again with another key"
            problem += f" Since {published.place} belongs to these entries, the ledger was {how}."
        if problem:
            yield problem

    def save(self) -> str:
        """Write the published checkpoint to its file after a verification without problems; return a sentence.

        Raises:
            RequestError: the index has no checkpoint.
            BusyError: the file changed since it was read.
        """
        path, index = self._keep, self._released.index
        assert path is not None
        if self._published is None:
            raise RequestError(
                f"The ledger of {index} is not signed, so it has no checkpoint.",
                hint="Sign it: `ci_build index publish` with --ledger-key writes a checkpoint.",
            )
        old = self._kept.get(path)
        if (path.read_bytes() if path.exists() else None) != old:
            raise BusyError(f"{path} was changed by another process.", hint="Run the command again.")
        fresh = load_checkpoint(self._published, self._released, (), place=self._released.checkpoint).checkpoint
        if old is not None and load_checkpoint(old, self._released, (), place=str(path)).checkpoint.size > fresh.size:
            return f"{path} stays: it covers more entries than {self._released.checkpoint}"
        write_whole(path, self._published)
        return f"{path}: checkpoint of {fresh.size} entries"
