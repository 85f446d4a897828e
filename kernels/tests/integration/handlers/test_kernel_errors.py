"""Errors of handlers: each names its cause, and the process continues."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.tests.support.fake.calls import (
    LONGER,
    MOVED,
    NO_NAME,
    CallError,
    FakeMachine,
)
from kernels.tests.support.fake.gemm_calls import bf16_call
from kernels.tests.support.fake.refused import refused
from kernels.tests.support.fake.trees import KernelTree, TreeLibrary, find_device

pytestmark = pytest.mark.network

NOT_FOUND = 5
PRECONDITION = 9
UNIMPLEMENTED = 12
INTERNAL = 13
UNAVAILABLE = 14
DATA_LOSS = 15
MI300 = find_device("gfx942", 304)
MI350 = find_device("gfx950", 256)
RDNA4 = find_device("gfx1201", 32)
OBJECT = "bf16gemm_outf32_tn_64x64_pf3.co"
KERNEL = "_ZN5aiter28bf16gemm_outf32_tn_64x64_pf3E"
CSV = "bf16gemm_outf32.csv"
HEAD = "knl_name,knl_file,tn,tileM,tileN,pf"


def gemm(
    library: TreeLibrary,
    device: int = MI300,
    kernel: str = "",
    out: str = "f32",
) -> None:
    """Make one valid call: 512 x 512 x 1024."""
    words = {"splitk": 0, "kernel": kernel}
    library.call(
        *bf16_call(
            512,
            512,
            1024,
            out=out,
        ),
        words,
        device=device,
    )


@pytest.fixture
def folder(kernel_tree: KernelTree) -> Path:
    """Return the module folder of a copy of gemm_bf16 for gfx942, which tests may damage."""
    return kernel_tree.copy_of_gemm("gfx942") / "gfx942" / "gemm_bf16"


@pytest.fixture
def library(kernel_tree: KernelTree, folder: Path) -> TreeLibrary:
    """Return a library that has loaded nothing, with the copy as its root."""
    return kernel_tree.fresh("gemm_bf16", folder.parents[1])


def test_missing_object_is_named_then_found(library: TreeLibrary, folder: Path) -> None:
    content = (folder / OBJECT).read_bytes()
    (folder / OBJECT).unlink()
    shapes = (
        "Called with a bf16[512,1024], b bf16[512,1024], bias f32[0], out f32[512,512],"
        " semaphore u32[1024]."
    )
    with refused(NOT_FOUND, str(folder / OBJECT), "is not there", shapes):
        gemm(library)
    (folder / OBJECT).write_bytes(content)
    gemm(library)


@settings(max_examples=150)
@given(
    at=st.integers(0, 17000),
    to=st.integers(0, 255),
    length=st.integers(1, 8),
)
def test_corrupted_object_does_not_end_process(
    kernel_tree: KernelTree,
    at: int,
    to: int,
    length: int,
) -> None:
    folder = kernel_tree.scratch / "overwritten" / "gfx942" / "gemm_bf16"
    if not folder.is_dir():
        copy = kernel_tree.copy_of_gemm("gfx942")
        copy.rename(kernel_tree.scratch / "overwritten")
    whole = (kernel_tree.hsa / "gfx942" / "gemm_bf16" / OBJECT).read_bytes()
    (folder / OBJECT).write_bytes(
        whole[:at] + bytes([to]) * length + whole[at + length :]
    )
    library = kernel_tree.fresh("gemm_bf16", folder.parents[1])
    error = None
    try:
        gemm(library)
    except CallError as refusal:
        error = refusal
    if error is not None:
        assert OBJECT in error.message
        assert error.code in (DATA_LOSS, PRECONDITION, NOT_FOUND, INTERNAL)


def test_object_for_other_processor_is_refused(
    kernel_tree: KernelTree,
    library: TreeLibrary,
    folder: Path,
) -> None:
    other = kernel_tree.hsa / "gfx950" / "gemm_bf16" / OBJECT
    (folder / OBJECT).write_bytes(other.read_bytes())
    with refused(
        PRECONDITION, str(folder / OBJECT), "code for gfx950", "gfx942:sramecc+"
    ):
        gemm(library)


@pytest.mark.parametrize(
    ("text", "code", "words"),
    [
        (HEAD + "\n", DATA_LOSS, ["it has no rows"]),
        (
            f"{HEAD}\n{KERNEL},{OBJECT},1,64\n",
            DATA_LOSS,
            ["line 2", "not as many fields"],
        ),
        (
            f"{HEAD}\n{KERNEL},{OBJECT},1,64,x,3\n",
            DATA_LOSS,
            ["line 2", "'x' is no size of a tile"],
        ),
        (f"{HEAD}\n{KERNEL},../{OBJECT},1,64,64,3\n", DATA_LOSS, ["line 2", "no file"]),
        (f"{HEAD}\n{KERNEL},gone.co,1,64,64,3\n", NOT_FOUND, ["gone.co is not there"]),
        (
            f"{HEAD}\nother,{OBJECT},1,64,64,3\n",
            NOT_FOUND,
            [OBJECT, "has no kernel other"],
        ),
    ],
)
def test_damaged_table_is_an_error(
    library: TreeLibrary,
    folder: Path,
    text: str,
    code: int,
    words: list[str],
) -> None:
    (folder / CSV).write_text(text)
    with refused(code, str(folder), *words):
        gemm(library)


def test_missing_table_row_is_named(library: TreeLibrary, folder: Path) -> None:
    with refused(NOT_FOUND, str(folder / CSV), "no row", "other"):
        gemm(library, kernel="other")


def test_kernel_with_more_arguments_is_refused(kernel_tree: KernelTree) -> None:
    hsa = kernel_tree.copy_of_gemm("gfx950")
    name = "f4gemm_bf16_per1x32Fp4_BpreShuffle_128x128.co"
    kernel = "_ZN5aiter42f4gemm_bf16_per1x32Fp4_BpreShuffle_128x128E"
    module = hsa / "gfx950" / "gemm_bf16"
    (module / name).write_bytes(
        (kernel_tree.hsa / "gfx950" / "gemm_fp4" / name).read_bytes()
    )
    (module / CSV).write_text(f"{HEAD}\n{kernel},{name},1,64,64,3\n")
    library = kernel_tree.fresh("gemm_bf16", hsa)
    with refused(PRECONDITION, name, "384 bytes of arguments", "packs 352"):
        gemm(
            library,
            MI350,
            out="bf16",
        )


@pytest.fixture
def failing(fake_machine: FakeMachine) -> Iterator[Callable[[str, int], None]]:
    """Make functions of HIP fail until the test ends."""
    named = []

    def fail(function: str, error: int) -> None:
        named.append(function)
        fake_machine.fail(function, error)

    yield fail
    for function in named:
        fake_machine.fail(function, 0)


@pytest.mark.parametrize(
    ("function", "words"),
    [
        ("hipStreamGetDevice", ["the stream's device"]),
        ("hipModuleLoadData", ["loading", OBJECT, "on device 0"]),
        ("hipMemsetAsync", ["zeroing the result"]),
        ("hipModuleLaunchKernel", ["launching a kernel of gemm_bf16"]),
    ],
)
def test_hip_error_is_reported(
    library: TreeLibrary,
    failing: Callable[[str, int], None],
    function: str,
    words: list[str],
) -> None:
    failing(function, 1)
    with refused(INTERNAL, "HIP failed at", "hipErrorInvalidValue (1)", *words):
        gemm(library)
    library.machine.fail(function, 0)
    gemm(library)


@pytest.mark.parametrize("kind", [LONGER, MOVED, NO_NAME])
def test_hip_with_other_device_structure_is_refused(
    library: TreeLibrary, kind: int
) -> None:
    library.machine.layout(kind)
    try:
        with refused(PRECONDITION, "libamdhip64.so.7", "another device structure"):
            gemm(library)
    finally:
        library.machine.layout(0)
    gemm(library)


def test_target_without_kernels_names_folders(kernel_tree: KernelTree) -> None:
    library = kernel_tree.fresh("gemm_bf16")
    folders = [
        str(kernel_tree.hsa / gfx / "gemm_bf16") for gfx in ("gfx1201", "gfx12-generic")
    ]
    with refused(NOT_FOUND, "gfx1201", *folders):
        gemm(library, RDNA4)


def test_library_without_root_is_an_error(kernel_tree: KernelTree) -> None:
    library = kernel_tree.fresh("gemm_bf16")
    library.library.jax_aiter_set_root(None)
    with refused(PRECONDITION, "libgemm_bf16.so", "jax_aiter_set_root"):
        gemm(library)


_CHILD = """
import sys
from pathlib import Path
from kernels.tests.support.fake import calls
machine = object.__new__(calls.FakeMachine)
machine.driver = calls.ctypes.CDLL(sys.argv[1])
class NoHip:
    def fake_hip_stream(self, device): return None
machine.hip = NoHip()
for stub in sys.argv[3:]: calls.ctypes.CDLL(stub)
library = calls.Library(Path(sys.argv[2]), Path("/nowhere"))
x, gamma, y, rstd = calls.tensors(("f32", (1, 8)), ("f32", (8,)), ("f32", (1, 8)), ("f32", (1,)))
try:
    machine.call(library, "JaxAiterRmsNorm", [x, gamma], [y, rstd], {"epsilon": 1e-6})
except calls.CallError as error:
    print(error.code, error.message)
"""


def child(tree: KernelTree, *stubs: Path) -> str:
    """Return the answer of a process without FakeHip."""
    drive = tree.fake / "drive.so"
    library = tree.lib / "librms_norm.so"
    argv = [sys.executable, "-c", _CHILD, str(drive), str(library), *map(str, stubs)]
    done = subprocess.run(
        argv,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        env={"LD_LIBRARY_PATH": ""},
    )
    return done.stdout


def test_missing_hip_is_an_error(kernel_tree: KernelTree) -> None:
    said = child(kernel_tree)
    assert said.startswith(f"{UNAVAILABLE} jax_aiter_rms_norm: There is no HIP"), said


def test_hip_without_function_is_named(kernel_tree: KernelTree, tmp_path: Path) -> None:
    stub = tmp_path / "libamdhip64.so.7"
    (tmp_path / "stub.c").write_text(
        "int hipRuntimeGetVersion(int* v) { *v = 0; return 0; }\n"
    )
    argv = [
        "cc",
        "-shared",
        "-fPIC",
        "-Wl,-soname,libamdhip64.so.7",
        "-o",
        str(stub),
        str(tmp_path / "stub.c"),
    ]
    subprocess.run(argv, check=True)
    said = child(kernel_tree, stub)
    assert said.startswith(
        f"{PRECONDITION} jax_aiter_rms_norm: libamdhip64.so.7 has no hipGetDevice"
    ), said
