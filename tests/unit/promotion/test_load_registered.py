"""Device code that a library registers when it is loaded, compared with the device code in its file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from promotion.gates.load.registered import kernels_digest, registration_findings, variable_findings
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
        hex(bundle.address): [magic, version, len(names), kernels_digest(frozenset(names)), []]
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


# Variables.

DEVICE = {"gfx942": {"table": 64, "count": 4, "shared": 8}, "gfx950": {"table": 64, "count": 4, "shared": 8}}
VARIABLES = [["variable", "count", 4], ["managed", "shared", 4096], ["variable", "table", 64]]


def variable_codes(
    folder: Path,
    registered: Sequence[Sequence[object]],
    device: Mapping[str, Mapping[str, int]],
    *,
    bundle: int = 1,
    targets: Sequence[str] = ("gfx942", "gfx950"),
) -> list[tuple[str, str]]:
    """Return the findings on variables that a library registers for one of its two bundles."""
    kernels = {target: ["_Z3addv"] for target in device}
    path = folder / "lib.so"
    fatbins = [kernel_bundle(kernels), kernel_bundle(kernels, device)]
    path.write_bytes(HostCode([["_Z3addv"], ["_Z3addv"]]).library(folder, fatbins))
    addresses = [hex(found.address) for found in find_bundles(path)]
    answer = {address: [MAGIC, 1, 0, "", registered if n == bundle else []] for n, address in enumerate(addresses)}
    found = list(variable_findings("x.whl: lib.so", "lib.so", path, answer, targets))
    assert all(item.member == "lib.so" and item.remedy for item in found)
    return [(item.code, item.message.removeprefix("x.whl: lib.so ")) for item in found]


def test_registered_variables_with_code_have_no_findings(tmp_path: Path) -> None:
    others = [["texture", "table", 0], ["surface", "count", 0]]
    assert variable_codes(tmp_path, [*VARIABLES, *others], DEVICE) == []


def test_renamed_variable_is_an_error(tmp_path: Path) -> None:
    device = DEVICE | {"gfx950": {"tablE": 64, "count": 4, "shared": 8}}
    (found,) = variable_codes(tmp_path, VARIABLES, device)
    assert found == ("variable-missing", "has no code for gfx950 with 1 registered variable: table.")


@pytest.mark.parametrize("kind", ["managed", "surface", "texture"])
def test_missing_variable_of_each_kind_is_an_error(tmp_path: Path, kind: str) -> None:
    (found,) = variable_codes(tmp_path, [[kind, "lost", 8]], DEVICE, targets=["gfx942"])
    assert found == ("variable-missing", "has no code for gfx942 with 1 registered variable: lost.")


def test_variable_of_another_bundle_is_an_error(tmp_path: Path) -> None:
    found = variable_codes(tmp_path, VARIABLES, DEVICE, bundle=0, targets=["gfx942"])
    assert found == [("variable-missing", "has no code for gfx942 with 3 registered variables: count, shared, table.")]


def test_variable_of_another_size_is_an_error(tmp_path: Path) -> None:
    device = DEVICE | {"gfx942": {"table": 32, "count": 4, "shared": 4096}}
    found = variable_codes(tmp_path, VARIABLES, device)
    assert found == [
        ("variable-differs", "registers shared with 8 bytes; its code for gfx942 has 4096."),
        ("variable-differs", "registers table with 64 bytes; its code for gfx942 has 32."),
    ]


def test_target_without_code_is_left_to_coverage(tmp_path: Path) -> None:
    assert variable_codes(tmp_path, VARIABLES, DEVICE, targets=["gfx1100"]) == []


def test_variables_of_damaged_library_are_left_to_other_gates(tmp_path: Path) -> None:
    (tmp_path / "lib.so").write_bytes(b"no library")
    answer = {"0x1000": [MAGIC, 1, 0, "", VARIABLES]}
    assert list(variable_findings("x", "lib.so", tmp_path / "lib.so", answer, ["gfx942"])) == []
