"""Reports of an inspection: contents, pins, module names, wheel sets."""

from __future__ import annotations

import io
import json
import random
from pathlib import Path

from rich.console import Console

from core.model import to_json
from tests.support.made_wheel import (
    LIB,
    clean_pjrt,
    coded,
    codes,
    fat_binary,
    library,
    linked,
    look,
)
from tests.support.whole_code import whole_code
from wheelkit.archive.wheel_archive import WheelArchive
from wheelkit.gpu.fatbin import FatbinReport, read_targets
from wheelkit.inspect.inspection_model import member_infos
from wheelkit.inspect.inspector import inspect_wheel
from wheelkit.inspect.text import render


def test_inspect_accepts_generic_code_for_covered_targets(tmp_path: Path) -> None:
    made = clean_pjrt()
    coded(made, fat_binary(["gfx9-4-generic"]))
    assert codes(look(made, tmp_path)) == []


def test_inspect_sibling_library_is_not_external(tmp_path: Path) -> None:
    made = clean_pjrt()
    linked(made, needed=("libc.so.6", "librocblas.so.5"), runpath="$ORIGIN")
    made.files["jax_plugins/xla_rocm7/librocblas.so.5"] = library(
        fatbins=[fat_binary()]
    )
    assert codes(look(made, tmp_path)) == []


def test_inspect_reports_invalid_file_name(tmp_path: Path) -> None:
    path = clean_pjrt().write(tmp_path).rename(tmp_path / "latest.whl")
    report = inspect_wheel(path)
    assert codes(report) == ["archive-damaged"]
    assert report.project == ""
    assert report.metadata is None


def test_inspect_without_verify_skips_damaged_code(tmp_path: Path) -> None:
    made = clean_pjrt()
    good = fat_binary()
    coded(made, good[:24] + bytes(8) + good[32:])
    made.record = lambda rows: [[rows[0][0], rows[1][1], rows[0][2]], *rows[1:]]
    assert codes(look(made, tmp_path)) == ["bundle-damaged", "record-wrong-hash"]
    assert codes(look(made, tmp_path, verify=False)) == []


def test_inspect_for_integrity_looks_only_for_wrong_bytes(tmp_path: Path) -> None:
    made = clean_pjrt()
    made.files["jax_plugins/xla_rocm7/more.py"] = b"def"
    made.platform = "manylinux_2_17_x86_64"
    made.replace("Tag", "py3-none-manylinux_2_17_x86_64")
    others = codes(look(made, tmp_path))
    assert others == ["python-invalid", "symbol-version-too-new"]
    good = fat_binary()
    coded(made, good[:24] + bytes(8) + good[32:])
    assert codes(look(made, tmp_path)) == sorted([*others, "bundle-damaged"])
    report = look(made, tmp_path, integrity=True)
    assert codes(report) == ["bundle-damaged"]
    assert [elf.path for elf in report.elfs] == [LIB]


class Kept:
    """Libraries in a folder, with checks of whole code objects."""

    def __init__(self, tree: Path) -> None:
        self.tree = tree
        self.decoded = list[str]()

    def unpack(self, archive: WheelArchive, name: str) -> Path:
        if not (path := self.tree / name).exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            archive.unpack(name, path)
        return path

    def device_code(self, archive: WheelArchive, name: str) -> FatbinReport:
        self.decoded.append(name)
        return read_targets(
            self.unpack(archive, name), verify=True, whole=True, name=name
        )


def test_inspect_uses_libraries_that_the_caller_keeps(tmp_path: Path) -> None:
    path = clean_pjrt().write(tmp_path)
    kept = Kept(tmp_path / "tree")
    report = inspect_wheel(path, libraries=kept)
    own = inspect_wheel(path)
    assert report.elfs == own.elfs
    assert report.findings == own.findings
    assert kept.decoded == [LIB]
    changed = bytearray((kept.tree / LIB).read_bytes())
    changed[-1] ^= 1
    (kept.tree / LIB).write_bytes(changed)
    assert "record-wrong-hash" in codes(inspect_wheel(path, libraries=kept))


def test_inspect_reports_damaged_library_without_record(tmp_path: Path) -> None:
    made = clean_pjrt()
    made.files[LIB] += random.Random(1).randbytes(
        2 << 20
    )  # the damage is not in the first chunk
    path = made.write(tmp_path)
    kept = Kept(tmp_path / "tree")
    with WheelArchive(path) as archive:
        member = archive[LIB]
        record = archive[f"{archive.dist_info}/RECORD"]
    data = bytearray(path.read_bytes())
    for damaged in (member, record):
        data[damaged.data_end - 1] ^= 1
    path.write_bytes(data)
    assert (
        codes(inspect_wheel(path, libraries=kept))
        == codes(inspect_wheel(path))
        == ["member-damaged", "record-unreadable"]
    )


def test_inspect_report_lists_contents(tmp_path: Path) -> None:
    report = look(clean_pjrt(), tmp_path)
    (elf,) = report.elfs
    sizes = {target: 2 * len(whole_code(target)) for target in ("gfx942", "gfx950")}
    assert {c.target: (c.code_bytes, c.bundles) for c in report.targets} == {
        t: (size, 2) for t, size in sizes.items()
    }
    assert elf.device.bundles == 2
    assert elf.device.formats == ("CCOB v3 zstd",)
    assert elf.symbol_versions == {"GLIBC": "2.28"}
    assert report.platform is not None
    assert report.platform.policy == "manylinux_2_28_x86_64"
    assert member_infos(report)[0].targets == ("gfx942", "gfx950")
    assert (
        json.loads(json.dumps(to_json(report)))["metadata"]["requires_python"]
        == ">=3.11"
    )


def test_extra_with_rocm_is_no_finding(tmp_path: Path) -> None:
    made = clean_pjrt()
    needs = [
        f'Requires-Dist: rocm-sdk-{name}==7.14.0; extra == "device-gfx942"'
        for name in ("core", "libraries", "device-gfx942")
    ]
    made.metadata += ["Provides-Extra: device-gfx942", *needs]
    assert codes(look(made, tmp_path)) == codes(look(clean_pjrt(), tmp_path))


def test_render_escapes_markup_and_control_sequences(tmp_path: Path) -> None:
    made = clean_pjrt()
    made.replace("Summary", "[red]loud[/] \x1b[31mred\x07 (ROCm:7.2.0)")
    made.metadata += [
        "Provides-Extra: with-rocm",
        'Requires-Dist: amd_rccl_instinct; extra == "with-rocm"',
    ]
    console = Console(width=100, record=True, file=io.StringIO())
    render(look(made, tmp_path), console)
    text = console.export_text()
    assert "[red]loud[/] \ufffd[31mred\ufffd (ROCm:7.2.0)" in text
    assert "[with-rocm] requires 1 distributions" in text
    assert "\x1b" not in text
