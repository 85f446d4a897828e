"""Child process that downloads one source archive as pip would, without running any of its code.

`pip download` executes the setup.py of a source archive to obtain its metadata; this
program does not. It uses pip's own configuration, session and finder, so indexes,
find-links, proxies, certificates and credentials apply. It prints one line of JSON:
{"url", "sha256", "filename", "versions"}, where the URL has no credentials.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import sys
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit


def main(project: str, version: str, pinned: str, folder: str) -> int:
    """Download `project==version` into a folder, preferring an archive with the pinned sha256."""
    # Imported here, so that only the child process loads the internals of pip.
    from packaging.version import Version
    from pip._internal.commands import create_command

    command: Any = create_command("download")
    options, _ = command.parse_args(["--no-input", f"{project}=={version}"])
    with command.main_context():
        session = command.get_default_session(options)
        finder = command._build_package_finder(options=options, session=session)
        candidates = [
            c
            for c in finder.find_all_candidates(project)
            if c.link.filename.endswith((".tar.gz", ".tgz"))
        ]
        links = [
            c.link for c in candidates if Version(str(c.version)) == Version(version)
        ]
        if not links:
            versions = sorted({str(candidate.version) for candidate in candidates})
            print(  # noqa: T201
                json.dumps(
                    {"url": "", "sha256": "", "filename": "", "versions": versions}
                )
            )
            return 0
        link = next(
            (link for link in links if pinned and link.hash == pinned), links[0]
        )
        path = Path(folder, Path(link.filename).name)
        digest = _fetch(session, link, path)
    parts = urlsplit(link.url_without_fragment)
    url = urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))
    if link.hash_name == "sha256" and link.hash != digest:
        print(  # noqa: T201
            f"{path.name} has sha256 {digest}, but the index lists {link.hash}",
            file=sys.stderr,
        )
        return 1
    print(  # noqa: T201
        json.dumps(
            {"url": url, "sha256": digest, "filename": path.name, "versions": []}
        )
    )
    return 0


def _fetch(session: Any, link: Any, path: Path) -> str:  # noqa: ANN401 - pip's own classes
    """Download a file and return its sha256."""
    if link.is_file:
        shutil.copyfile(link.file_path, path)
    else:
        # Content encoding is refused, because the digest is that of the compressed
        # archive.
        with session.get(
            link.url_without_fragment,
            headers={"Accept-Encoding": "identity"},
            stream=True,
        ) as answer:
            answer.raise_for_status()
            with path.open("wb") as file:
                for chunk in answer.raw.stream(1 << 18, decode_content=False):
                    file.write(chunk)
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
