"""Checks of a released index from its users' view.

Every wheel has its bytes, and its pins are satisfiable.
"""

from __future__ import annotations

import contextlib
import functools
import json
import re
from collections.abc import Iterable, Iterator, Mapping

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name, parse_wheel_filename

from promotion.index.pages import metadata_name
from promotion.storage.object_keys import ReleasedIndex
from tests.support.memory_bucket import MemoryBucket
from tests.support.wheel_sets import SetWheel

_ANCHOR = re.compile(r'<a href="([^"#]+)#sha256=([0-9a-f]{64})"[^>]*>([^<]+)</a>')
Files = Mapping[str, str]
"""File name -> sha256."""


@functools.lru_cache(maxsize=4096)
def files_of(page: bytes, *, as_json: bool) -> Files:
    """Return the files of a project's page."""
    if as_json:
        with contextlib.suppress(ValueError):
            return {
                file["filename"]: file["hashes"]["sha256"]
                for file in json.loads(page)["files"]
            }
        return {}  # pip cannot install from a broken page
    return {name: sha256 for _, sha256, name in _ANCHOR.findall(page.decode())}


class Reader:
    """Judge of pages that existed at one instant.

    Args:
        wheels: all wheels that may ever be visible.
    """

    def __init__(self, wheels: Iterable[SetWheel]) -> None:
        self._wheels = {wheel.wheel.filename: wheel.wheel for wheel in wheels}
        self._requires = {
            name: [
                (canonicalize_name(r.name), r.specifier)
                for r in map(Requirement, wheel.requires_dist)
            ]
            for name, wheel in self._wheels.items()
        }
        self._own = {wheel.name for wheel in self._wheels.values()}
        self._judged: dict[frozenset[str], tuple[str, ...]] = {}

    def unsatisfied(self, seen: Iterable[str]) -> tuple[str, ...]:
        """Return the wheels' requirements on projects of the sets that none satisfies."""
        names = frozenset(seen)
        if names not in self._judged:
            self._judged[names] = tuple(self._judge(names))
        return self._judged[names]

    def _judge(self, names: frozenset[str]) -> Iterator[str]:
        offered: dict[str, list[str]] = {}
        for name in names:
            offered.setdefault(self._wheels[name].name, []).append(
                self._wheels[name].version
            )
        for name in sorted(names):
            for project, specifier in self._requires[name]:
                met = any(
                    specifier.contains(version) for version in offered.get(project, ())
                )
                if project in self._own and not met:
                    yield f"{name} is listed, but no {project}{specifier}"

    def problems(self, bucket: MemoryBucket, released: ReleasedIndex) -> Iterator[str]:
        """Yield all problems that a user of the HTML pages or of the JSON pages would have."""
        folder = released.simple
        slashes = folder.count("/") + 1
        objects = {
            key: data
            for key, data in bucket.everything().items()
            if key.startswith(folder) and key.count("/") == slashes
        }
        for ending in (".html", ".json"):
            pages = {key: data for key, data in objects.items() if key.endswith(ending)}
            seen: dict[str, str] = {}
            for data in pages.values():
                seen |= files_of(data, as_json=ending == ".json")
            yield from (f"{ending}: {problem}" for problem in self.unsatisfied(seen))
            for name, sha256 in seen.items():
                key = released.wheel(
                    canonicalize_name(parse_wheel_filename(name)[0]), name
                )
                stored = bucket.head(key)
                if (
                    stored is None
                    or stored.sha256 != sha256
                    or sha256 != self._wheels[name].sha256
                ):
                    yield f"{ending}: {name} is listed, but its file does not exist"
                if bucket.head(metadata_name(key)) is None:
                    yield f"{ending}: {name} is listed, but its metadata does not exist"
