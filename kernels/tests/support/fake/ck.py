"""FakeCk.

Attention handlers above a Composable Kernel without kernels, compiled by a ROCm with
AITER's headers.
"""

from __future__ import annotations

import ctypes
import os
import re
from pathlib import Path

from core.process import HostRunner
from core.report import NoProgress
from kernels.build_context import BuildContext
from kernels.compiler_steps import SRC, fill, named
from kernels.devicelib import include_words
from kernels.module_catalog import load_catalog
from kernels.rocmchain import with_rocm
from kernels.tests.support.fake.building import HERE
from kernels.tests.support.fake.calls import Library
from kernels.toolchains import obtain_pypi

DIRECTIONS = ("fwd", "bwd")
EXAMPLE = Path("3rdparty/composable_kernel/example/ck_tile/01_fmha")


def fields(
    source: Path,
    direction: str,
    structure: str,
) -> list[str]:
    """Return the field names of a structure in AITER's header, in order.

    Args:
        direction: fwd or bwd.
        structure: args or traits.
    """
    text = (source / EXAMPLE / f"fmha_{direction}.hpp").read_text(encoding="utf-8")
    found = re.search(
        rf"^struct fmha_{direction}_{structure}\n{{\n(.*?)^}};",
        text,
        re.MULTILINE | re.DOTALL,
    )
    assert found is not None, f"fmha_{direction}.hpp has no {structure}"
    body = re.sub(r"//[^\n]*", "", found[1])
    return [
        re.split(r"=", one)[0].split()[-1] for one in body.split(";") if one.strip()
    ]


def _fields_inc(source: Path, direction: str) -> str:
    lines = []
    for structure in ("traits", "args"):
        lines.append(f"void put_fields(const fmha_{direction}_{structure}& it) {{")
        lines += [
            f'  put("{structure}.{field}", it.{field});'
            for field in fields(source, direction, structure)
        ]
        lines.append("}")
    return "\n".join(lines) + "\n"


def build(
    source: Path,
    rocm: Path,
    cache: Path,
    folder: Path,
) -> None:
    """Compile the handler of each direction with FakeCk into a library in `folder`.

    Args:
        source: folder aiter_meta of AITER's source.
        rocm: ROCm whose compiler and headers are used.
        cache: folder `kernels` of the cache.
    """
    runner = HostRunner(os.environ)
    context = BuildContext(cache=cache, runner=runner, progress=NoProgress())
    toolchain = with_rocm(obtain_pypi(context), rocm)
    places = {
        **toolchain.places,
        "src": str(SRC),
        "source": str(source),
    }
    command = (
        *toolchain.device_lib_command("compile", "libraries", "own", "host"),
        "-O0",
    )

    def run(*argv: str) -> None:
        runner.run([fill(word, places) for word in argv], env=toolchain.environment)

    def compiled(
        file: Path,
        into: Path,
        *words: str,
    ) -> str:
        run(*command, *words, str(file), "-o", str(into / f"{file.stem}.o"))
        return str(into / f"{file.stem}.o")

    shared = [compiled(SRC / name, folder) for name in ("hip_calls.cc", "hip.cc")]
    for direction in DIRECTIONS:
        module = load_catalog().modules[f"mha_{direction}"]
        own = folder / direction
        own.mkdir()
        (own / "fields.inc").write_text(
            _fields_inc(source, direction), encoding="utf-8"
        )
        words = [*named(module, "fake"), *module.flags["rocm"], "-I", str(own)]
        words += ["-DFAKE_CK_BACKWARD"] if direction == "bwd" else []
        words += include_words("-isystem", module)
        objects = [
            *shared,
            *(
                compiled(file, own, *words)
                for file in (HERE / "fake_ck.cc", SRC / "module.cc")
            ),
        ]
        link = toolchain.device_lib_command("link")
        run(*link, "-s", *objects, "-o", str(folder / module.library))


class FakeCk:
    """Recorded calls of a loaded library."""

    def __init__(self, library: Library) -> None:
        self._library = library.library
        self._library.jax_aiter_fake_ck_said.restype = ctypes.c_char_p
        self._library.jax_aiter_fake_ck_answer.argtypes = (ctypes.c_float,)

    def said(self) -> dict[str, str]:
        """Return all fields of the last call's structures as text.

        Empty if there was none since the last query.
        """
        return dict(
            line.split("=", 1)
            for line in self._library.jax_aiter_fake_ck_said().decode().splitlines()
        )

    def answer(self, value: float) -> None:
        """Set the result: milliseconds, or -1 for "no kernel"."""
        self._library.jax_aiter_fake_ck_answer(value)
