"""Functions that inject each fault of the matrix into a good set."""

from __future__ import annotations

import csv
import io
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from core.digests import file_sha256
from core.model import SHA256SUMS, WHEELS_JSON, GfxTarget
from core.wheels_json import dump_wheel_set
from core.wheelset import read_set, sha256sums
from promotion.storage.directory_bucket import DirBucket
from promotion.storage.keys import StagedSet
from tests.support.faults.bench import PROJECTS, XLA, Bench, Case
from tests.support.faults.patches import Patches
from wheelkit.archive.rewrite import WheelRewrite
from wheelkit.gpu.slim import slim
from wheelkit.rocm_manifest import RocmLibrary

HIP, HIPSPARSE = "libamdhip64.so.7", "libhipsparse.so.4"
PACKAGE = "jax_rocm7_plugin"

Inject = Callable[[Bench], Case]


# The ROCm


def rocm(soname: str, change: Callable[[RocmLibrary], RocmLibrary]) -> Inject:
    """Replace a library of the set's ROCm."""

    def inject(bench: Bench) -> Case:
        libraries = dict(bench.manifest.libraries)
        changed = change(libraries.pop(soname))
        libraries[changed.soname] = changed
        return Case(manifest=replace(bench.manifest, libraries=libraries))

    return inject


def without_symbol(name: str) -> Callable[[RocmLibrary], RocmLibrary]:
    """Remove a symbol."""
    return lambda row: replace(row, symbols={key: value for key, value in row.symbols.items() if key != name})


def without_version(version: str) -> Callable[[RocmLibrary], RocmLibrary]:
    """Rename a symbol version."""

    def change(row: RocmLibrary) -> RocmLibrary:
        assert any(version in versions for versions in row.symbols.values())
        return replace(
            row,
            symbols={
                name: tuple("hip_9.9" if v == version else v for v in versions)
                for name, versions in row.symbols.items()
            },
        )

    return change


def renamed(soname: str) -> Callable[[RocmLibrary], RocmLibrary]:
    """Change the soname."""
    return lambda row: replace(row, soname=soname, path=f"lib/{soname}")


def without_manifest(inject: Inject) -> Inject:
    """Leave the manifest of the ROCm out of a set."""
    return lambda bench: replace(inject(bench), manifest=None)


# Libraries


def library(name: str, find: Callable[[Path], Patches]) -> Inject:
    """Patch a library of the plugin wheel."""
    return lambda bench: bench.case(plugin=bench.patched("plugin", f"{PACKAGE}/{name}", find))


def xla(find: Callable[[Path], Patches]) -> Inject:
    """Patch XLA's plugin."""
    return lambda bench: bench.case(pjrt=bench.patched("pjrt", XLA, find))


def replaced(name: str, data: Callable[[bytes], bytes]) -> Inject:
    """Replace the content of a library of the plugin wheel."""
    member = f"{PACKAGE}/{name}"
    return lambda bench: bench.case(
        plugin=bench.rewritten("plugin", lambda wheel: wheel.set(member, data(bench.read("plugin", member))))
    )


def half(data: bytes) -> bytes:
    """Truncate a file to its first half."""
    return data[: len(data) // 2]


# Device code


def only_gfx950(bench: Bench) -> Case:
    """Slim a library to gfx950 only."""
    file = bench.extract("plugin", f"{PACKAGE}/_prng.so", bench.fresh())
    slim(file, [GfxTarget.parse("gfx950")])
    data = file.read_bytes()
    return bench.case(plugin=bench.rewritten("plugin", lambda wheel: wheel.set(f"{PACKAGE}/_prng.so", data)))


def not_slimmed(bench: Bench) -> Case:
    """Keep the library as published."""
    with zipfile.ZipFile(bench.real_wheel("jax-rocm7-plugin", "0.10.2", "3.12")) as archive:
        data = archive.read(f"{PACKAGE}/_prng.so")
    return bench.case(plugin=bench.rewritten("plugin", lambda wheel: wheel.set(f"{PACKAGE}/_prng.so", data)))


# Files of a wheel


def without(kind: str, member: str) -> Inject:
    """Remove a file from a wheel."""
    return lambda bench: bench.case(**{kind: bench.without(kind, member)})


def text(kind: str, member: str, old: str, new: str, *, beside: tuple[str, ...] = ()) -> Inject:
    """Replace text in a file of a wheel."""

    def inject(bench: Bench) -> Case:
        wheels = {kind: bench.with_text(kind, member, old, new)} | {other: bench.path(other) for other in beside}
        return bench.case(**wheels)

    return inject


def of_another_python(name: str = "") -> Inject:
    """Put the extension modules of Python 3.11, or one of them, into the wheel for 3.12."""

    def inject(bench: Bench) -> Case:
        folder = bench.fresh()

        def edit(wheel: WheelRewrite) -> None:
            with zipfile.ZipFile(bench.real_wheel("jax-rocm7-plugin", "0.10.2", "3.11")) as archive:
                for member in (member for member in archive.namelist() if member.endswith(name or ".so")):
                    wheel.set(member, Path(archive.extract(member, folder)))

        return bench.case(plugin=bench.rewritten("plugin", edit))

    return inject


def record(change: Callable[[list[list[str]]], None]) -> Inject:
    """Edit RECORD of the plugin wheel."""

    def inject(bench: Bench) -> Case:
        out, name = bench.fresh() / bench.path("plugin").name, f"{bench.info('plugin')}/RECORD"
        rows = list(csv.reader(io.StringIO(bench.read("plugin", name).decode())))
        change(rows)
        target = io.StringIO()
        csv.writer(target, lineterminator="\n").writerows(rows)
        with zipfile.ZipFile(bench.path("plugin")) as old, zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as new:
            for item in old.infolist():
                new.writestr(item, target.getvalue() if item.filename == name else old.read(item))
        return bench.case(plugin=out)

    return inject


def twice(rows: list[list[str]]) -> None:
    """Duplicate an entry."""
    rows.insert(0, next(row for row in rows if row[0].endswith("_rnn.so")))


def wrong_hash(rows: list[list[str]]) -> None:
    """Swap the hashes of two files."""
    one, other = (next(row for row in rows if row[0].endswith(name)) for name in ("_rnn.so", "_prng.so"))
    one[1], other[1] = other[1], one[1]


def unlisted(rows: list[list[str]]) -> None:
    """Remove an entry."""
    rows[:] = [row for row in rows if not row[0].endswith("_rnn.so")]


def damaged_archive(bench: Bench) -> Case:
    """Flip one bit of a compressed member."""
    out = bench.fresh() / bench.path("plugin").name
    data = bytearray(bench.path("plugin").read_bytes())
    with zipfile.ZipFile(bench.path("plugin")) as archive:
        item = archive.getinfo(f"{PACKAGE}/_triton.so")
    data[item.header_offset + item.compress_size // 2] ^= 1
    out.write_bytes(data)
    return bench.case(plugin=out)


def packed_again(bench: Bench) -> Case:
    """Pack the files of a wheel with another time."""
    out = bench.fresh() / bench.path("plugin").name
    with zipfile.ZipFile(bench.path("plugin")) as old, zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as new:
        for item in old.infolist():
            data = old.read(item)
            item.date_time = (2024, 5, 6, 7, 8, 10)
            new.writestr(item, data)
    return bench.case(plugin=out)


# Sets


def newer_jaxlib(bench: Bench) -> Case:
    """Use jax and jaxlib of the next release."""
    case = bench.case(jaxlib=bench.real_wheel("jaxlib", "0.12.0", "3.12"), plugin=bench.path("plugin"))
    return replace(case, fields={"pins": {"jax": "0.12.0"}})


def older_jaxlib(bench: Bench) -> Case:
    """Use jax and jaxlib of the previous release."""
    wheels = {
        kind: bench.real_wheel(project, "0.12.0", "3.12")
        for kind, project in (("pjrt", "jax-rocm7-pjrt"), ("plugin", "jax-rocm7-plugin"))
    }
    fields = {"pins": {"jax": "0.10.2"}, "rocm_version": "7.14.0"}
    return Case(wheels=wheels | {"jaxlib": bench.path("jaxlib")}, fields=fields)


def altered_after_staging(bench: Bench) -> Case:
    """Change one byte of a staged wheel."""

    def tamper(bucket: DirBucket, staged: StagedSet) -> None:
        path = bucket.path(staged.file(bench.path("plugin").name))
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.unlink()
        path.write_bytes(data)

    return Case(manifest=bench.manifest, tamper=tamper)


def recorded(**fields: object) -> Inject:
    """Write other values of the set into wheels.json."""
    return lambda bench: Case(manifest=bench.manifest, fields=fields)


def requested(**fields: object) -> Inject:
    """Write other values of the build request into wheels.json."""
    return lambda bench: Case(manifest=bench.manifest, fields={"request": {**bench.wheel_set.request, **fields}})


def set_file(name: str, old: str, new: str) -> Inject:
    """Replace text in a file beside the wheels, whose digest is recorded again."""

    def edit(folder: Path) -> None:
        text = (folder / name).read_text("utf-8")
        assert old in text, f"{name} has no {old!r}"
        (folder / name).write_text(text.replace(old, new), "utf-8")
        made = read_set(folder)
        sizes = {**made.file_sizes, name: (folder / name).stat().st_size}
        made = replace(made, files={**made.files, name: file_sha256(folder / name)}, file_sizes=sizes)
        (folder / SHA256SUMS).write_bytes(sha256sums(made))
        (folder / WHEELS_JSON).write_text(dump_wheel_set(made), "utf-8")

    return lambda bench: Case(manifest=bench.manifest, edit=edit)


def locked_file(name: str, old: str, new: str) -> Inject:
    """Replace text in a file beside the wheels of a set with a lock file, which has all of its wheels."""
    inject = set_file(name, old, new)
    return lambda bench: replace(inject(bench), wheels={kind: bench.path(kind) for kind in PROJECTS})


def added(kind: str, member: str, data: bytes) -> Inject:
    """Add a member to a wheel; its name may begin with `{info}` or `{data}`, the folders of metadata and of schemes."""

    def inject(bench: Bench) -> Case:
        info = bench.info(kind)
        name = member.format(info=info, data=f"{info.removesuffix('.dist-info')}.data")
        return bench.case(**{kind: bench.rewritten(kind, lambda rewrite: rewrite.set(name, data))})

    return inject
