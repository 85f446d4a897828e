"""Device code that a library registers when it is loaded, compared with the device code in its file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from promotion.gates.load.registered import kernels_digest, registration_findings
from tests.support.host_code import HostCode, kernel_bundle
from wheelkit.gpu.bundle_reader import find_bundles

NAMES = (["_Z3addv", "_Z3mulv"], ["_Z3divv"])
MAGIC = 0x48495046


def library(folder: Path, **form: Any) -> Path:
    bundles = [kernel_bundle({"gfx942": names}) for names in NAMES]
    path = folder / "lib.so"
    path.write_bytes(HostCode(NAMES, **form).library(folder, bundles))
    return path


def seen(path: Path, *facts: tuple[int, int, list[str]]) -> dict[str, list[Any]]:
    """Return the probe's answer: magic, version and kernels of each bundle in order."""
    return {
        hex(bundle.address): [magic, version, len(names), kernels_digest(frozenset(names))]
        for bundle, (magic, version, names) in zip(find_bundles(path), facts, strict=False)
    }


def codes(path: Path, registered: Mapping[str, list[Any]]) -> list[tuple[str, str]]:
    found = list(registration_findings("x.whl: lib.so", "lib.so", path, registered))
    assert all(item.message.startswith("x.whl: lib.so registers ") and item.member == "lib.so" for item in found)
    return [(item.code, item.message.removeprefix("x.whl: lib.so registers ")) for item in found]


def test_registered_code_has_no_findings(tmp_path: Path) -> None:
    path = library(tmp_path)
    assert codes(path, seen(path, (MAGIC, 1, NAMES[0]), (MAGIC, 1, NAMES[1]))) == []


def test_bundle_without_read_constructor_is_an_error(tmp_path: Path) -> None:
    """The coverage gate would compare no kernels of the bundle."""
    path = library(tmp_path, silent=[1])
    (found,) = codes(path, seen(path, (MAGIC, 1, NAMES[0]), (MAGIC, 1, NAMES[1])))
    assert found[0] == "registration-differs"
    assert found[1].endswith("not the 0 that its constructors name.")


def test_kernels_with_unread_names_are_not_compared(tmp_path: Path) -> None:
    path = library(tmp_path, nameless=1)
    assert codes(path, seen(path, (MAGIC, 1, [*NAMES[0], "_Z5otherv"]), (MAGIC, 1, NAMES[1]))) == []


def test_damaged_library_is_left_to_other_gates(tmp_path: Path) -> None:
    (tmp_path / "lib.so").write_bytes(b"no library")
    assert codes(tmp_path / "lib.so", {}) == []
