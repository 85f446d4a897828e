"""Packs a wheel: pack.py WHEEL --commit=HASH FOLDER=FILE…; the same files give the same bytes."""

import base64
import hashlib
import os
import sys
import time
import zipfile
from pathlib import Path


def main(target: str, commit: str, *files: str) -> None:
    """Write the wheel."""
    name = Path(target).name
    project, version, *tags = name.removesuffix(".whl").split("-")
    members = {}
    for word in files:
        folder, _, path = word.partition("=")
        members[f"{folder}/{Path(path).name}"] = Path(path).read_bytes()
    folder = next(iter(members)).rpartition("/")[0]
    members[f"{folder}/version.py"] = (
        f"__version__ = {version!r}\n_git_hash = {commit.partition('=')[2]!r}\n".encode()
    )
    info = f"{project}-{version}.dist-info"
    lines = [
        "Metadata-Version: 2.1",
        f"Name: {project.replace('_', '-')}",
        f"Version: {version}",
        "Summary: JAX",
    ]
    if "plugin" in project:
        lines.append(
            f"Requires-Dist: {project.replace('_', '-').replace('plugin', 'pjrt')}=={version}"
        )
    members[f"{info}/METADATA"] = "\n".join([*lines, "", ""]).encode()
    pure = str("pjrt" in project).lower()
    lines = [
        "Wheel-Version: 1.0",
        "Generator: pack.py",
        f"Root-Is-Purelib: {pure}",
        f"Tag: {'-'.join(tags)}",
    ]
    members[f"{info}/WHEEL"] = "\n".join([*lines, "", ""]).encode()
    if "pjrt" in project:
        module = folder.replace("/", ".")
        members[f"{info}/entry_points.txt"] = (
            f"[jax_plugins]\n{module.rpartition('.')[2]} = {module}\n".encode()
        )
    record = "".join(
        f"{path},sha256={digest(data)},{len(data)}\n" for path, data in members.items()
    )
    members[f"{info}/RECORD"] = f"{record}{info}/RECORD,,\n".encode()
    told = time.gmtime(max(int(os.environ.get("SOURCE_DATE_EPOCH", "0")), 315532800))
    when = (
        told.tm_year,
        told.tm_mon,
        told.tm_mday,
        told.tm_hour,
        told.tm_min,
        told.tm_sec,
    )
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for path, data in members.items():
            entry = zipfile.ZipInfo(path, when)
            entry.external_attr = (0o755 if path.endswith(".so") else 0o644) << 16
            archive.writestr(entry, data, zipfile.ZIP_DEFLATED)
    # jax's wheel builder prints the same, with a path inside Bazel's output tree.
    sys.stderr.write(
        f"Output wheel: {target}\n\n  pip install {target} --force-reinstall\n\n"
    )


def digest(data: bytes) -> str:
    """As RECORD has it."""
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()


if __name__ == "__main__":
    main(*sys.argv[1:])
