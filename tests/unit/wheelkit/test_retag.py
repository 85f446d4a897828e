"""Re-tagging of wheels whose libraries stay unchanged."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

from core.errors import RepairError
from tests.support.made_wheel import GLIBC, LIB, MadeWheel, clean_pjrt, library
from tests.support.tiny_elf import TinySymbol
from wheelkit.inspect.compare import compare_wheels
from wheelkit.repair.wheel_repair import retag


def wheel(symbol: TinySymbol = GLIBC) -> MadeWheel:
    made = clean_pjrt()
    made.files[LIB] = library(symbol)
    made.platform = "manylinux_2_27_x86_64"
    made.replace("Tag", "py3-none-manylinux_2_27_x86_64")
    return made


def test_retag_changes_only_the_tag(tmp_path: Path) -> None:
    before = wheel().write(tmp_path)
    path, findings = retag(before, tmp_path)
    assert path.name == "jax_rocm7_pjrt-1.2.3-py3-none-manylinux_2_28_x86_64.whl"
    assert findings == ()
    (found,) = compare_wheels(before, path, tmp_path)
    assert found.member.endswith(".dist-info/WHEEL")
    with zipfile.ZipFile(path) as archive:
        text = archive.read(found.member).decode()
    assert "Tag: py3-none-manylinux_2_28_x86_64\n" in text
    assert sorted(tmp_path.iterdir()) == sorted([before, path])


def test_retag_refuses_untrue_tag(tmp_path: Path) -> None:
    before = wheel(TinySymbol("new", "libc.so.6", "GLIBC_2.38")).write(tmp_path)
    with pytest.raises(RepairError, match=r"GLIBC_2\.38"):
        retag(before, tmp_path, platform="manylinux_2_28_x86_64")
    assert list(tmp_path.iterdir()) == [before]
    path, _ = retag(before, tmp_path)
    assert path.name.endswith("-manylinux_2_38_x86_64.whl")


def test_retag_names_only_what_no_tag_permits(tmp_path: Path) -> None:
    made = wheel()
    made.files[LIB] = library(
        TinySymbol("new", "libc.so.6", "GLIBC_2.38"),
        needed=("libc.so.6", "libnuma.so.1"),
    )
    with pytest.raises(RepairError, match=r"libnuma\.so\.1") as raised:
        retag(made.write(tmp_path), tmp_path)
    assert "GLIBC_2.38" not in str(raised.value)
