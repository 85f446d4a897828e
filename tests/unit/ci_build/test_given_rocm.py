"""The ROCm given to a build, as compared with its wheels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from ci_build.rocm.facts import RocmFacts
from ci_build.rocm.lock import make_lock
from ci_build.rocm.source import Rocm
from ci_build.wheelset.source.given_rocm import given_rocm
from core.errors import ProcessError
from core.process import ProcessResult
from core.rocm_trust import ChecksumOrigin, RocmTrust
from wheelkit.rocm_manifest import RocmLibrary, RocmManifest

LOCAL = RocmTrust(checksum=ChecksumOrigin.LOCAL, transport="local")
CLANG = (
    "AMD clang version 20.0.0git (https://github.com/ROCm/llvm-project.git"
    " 46fcb339+PATCHED:440716f8)"
)


@dataclass
class FakeInside:
    """A build environment whose ROCm has clang at one place.

    Attributes:
        raises: whether a missing program raises, as on the host; a container returns
            127 instead.
    """

    clang: str
    raises: bool = False
    returncode: int = 0
    runs: list[str] = field(default_factory=list)

    def run(
        self, argv: Sequence[str], *, check: bool = True, **_: object
    ) -> ProcessResult:
        assert (argv[1], check) == ("--version", False)
        self.runs.append(argv[0])
        if argv[0] == self.clang:
            text = f"{CLANG}\nTarget: x86_64-unknown-linux-gnu\nThread model: posix\n"
            return ProcessResult(
                returncode=self.returncode, stdout=text if self.returncode == 0 else ""
            )
        if self.raises:
            raise ProcessError(
                f"{argv[0]} could not be started: No such file or directory."
            )
        return ProcessResult(returncode=127)


def rocm(root: Path) -> Rocm:
    (root / "lib").mkdir(parents=True)
    (root / "lib" / "librocsolver.so.0").write_bytes(b"")
    library = RocmLibrary(
        soname="librocsolver.so.0", path="lib/librocsolver.so.0", symbols={}
    )
    facts = RocmFacts(
        version="7.10.0a20251120",
        compiler="clang 20.0.0git",
        device_libraries={},
        kernels={"rocBLAS": ()},
        manifest=RocmManifest(
            rocm_version="7.10.0", libraries={library.soname: library}
        ),
    )
    lock = make_lock(
        facts, root, source=str(root), sha256="", size=0, family="", packages=None
    )
    return Rocm(
        root=root,
        contents=None,
        facts=facts,
        lock=lock,
        trust=LOCAL,
        trust_text="",
        notes=(),
    )


@pytest.mark.parametrize(
    ("place", "raises"), [("lib/llvm/bin/clang", False), ("llvm/bin/clang", True)]
)
def test_given_rocm_has_marks_of_tree_and_clang(
    tmp_path: Path, place: str, *, raises: bool
) -> None:
    given = given_rocm(
        rocm(tmp_path / "tree"),
        "/opt/rocm",
        FakeInside(clang=f"/opt/rocm/{place}", raises=raises),
    )
    assert given.identity == CLANG
    assert (given.version, given.compiler) == ("7.10.0a20251120", "20.0.0git")
    assert given.sonames == {"librocsolver.so.0"}
    assert given.folders == ("/opt/rocm", str(tmp_path / "tree"))


def test_given_rocm_without_running_clang_has_its_version_only(tmp_path: Path) -> None:
    inside = FakeInside(clang="/opt/rocm/lib/llvm/bin/clang", returncode=1)
    given = given_rocm(rocm(tmp_path / "tree"), "/opt/rocm", inside)
    assert (given.identity, given.compiler) == ("", "20.0.0git")
    assert inside.runs == ["/opt/rocm/lib/llvm/bin/clang", "/opt/rocm/llvm/bin/clang"]
