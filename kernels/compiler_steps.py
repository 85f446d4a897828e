"""Compiler steps of kernel modules: commands, inputs and the keys of their results."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field
from pathlib import Path

from core.digests import sha256_of
from core.errors import KernelError
from core.frozen import frozen
from kernels.compiled_checks import COMMON_EXPORTS
from kernels.compiled_store import key_of
from kernels.modules import KernelModule
from kernels.toolchains import Toolchain

SRC = Path(__file__).with_name("src")
NAMED = "module.cc"
"""Source that is compiled with the module's name."""
EXPORTS = "exports.map"
"""Linker version script of the libraries."""
_FORMAT = 1
"""Version of the keys; a new version rebuilds everything."""


@frozen
class CompileStep:
    """One command that creates one file.

    Attributes:
        label: unit and target, for display.
        argv: command with placeholders instead of folders: `{out}` is the output,
            `{<label of another step>}` the output of that step.
        name: file name of the output.
        inputs: input -> digest, by names that do not depend on folders.
        after: labels of the steps whose outputs the command reads.
        checks: requirements of the output: `target` and `kernels`, or `exports`.
        link: for a device-lib: label of each host object, with the labels of its device
            objects by target.
    """

    label: str
    argv: tuple[str, ...]
    name: str
    inputs: Mapping[str, str]
    seconds: float
    memory_mb: int
    module: str
    target: str = ""
    after: tuple[str, ...] = ()
    checks: Mapping[str, object] = field(default_factory=dict)
    link: tuple[tuple[str, tuple[tuple[str, str], ...]], ...] = ()

    def key(self, toolchain: Toolchain, before: Mapping[str, str]) -> str:
        """Return the digest of everything that the output depends on.

        Args:
            before: label -> key of the steps whose outputs this step reads.
        """
        parts = {
            "format": _FORMAT,
            "argv": self.argv,
            "name": self.name,
            "inputs": dict(self.inputs),
            "after": [before[label] for label in self.after],
            "toolchain": toolchain.digest,
            "checks": dict(self.checks),
        }
        return key_of(parts)


def library_steps(
    module: KernelModule, toolchain: Toolchain, *, strip: bool = True, src: Path = SRC
) -> tuple[CompileStep, ...]:
    """Return the steps of a module's host library, which is the same for all targets."""
    everything = with_headers(src, *module.host)
    words = named(module, key_of({"files": everything}))
    # Modules share the objects that do not contain the module's name.
    own = tuple(
        CompileStep(
            label=f"{module.name}/{name} (host)" if name == NAMED else f"{name} (host)",
            argv=(
                *toolchain.host_command(),
                *(words if name == NAMED else ()),
                "-c",
                f"{{src}}/{name}",
                "-o",
                "{out}",
            ),
            name="unit.o",
            inputs=with_headers(src, name),
            seconds=module.seconds / (len(module.host) + 1),
            memory_mb=module.memory_mb,
            module=module.name,
        )
        for name in module.host
    )
    labels = tuple(step.label for step in own)
    exports = (*COMMON_EXPORTS, *(ffi.symbol for ffi in module.ffi))
    argv = (
        *toolchain.data["host"]["link"],
        *(["-s"] if strip else []),
        f"-Wl,-soname,{module.library}",
        *(f"{{{label}}}" for label in labels),
        *("-o", "{out}"),
    )
    library = CompileStep(
        label=f"{module.library} (host)",
        argv=argv,
        name=module.library,
        inputs=digests(src, EXPORTS),
        seconds=module.seconds / (len(own) + 1),
        memory_mb=module.memory_mb,
        module=module.name,
        after=labels,
        checks={"exports": exports},
    )
    return (*own, library)


def named(module: KernelModule, digest: str) -> tuple[str, ...]:
    """Return the compiler options that define a library's module name and source digest.

    See `module.cc`.
    """
    return (
        f'-DJAX_AITER_MODULE="{module.name}"',
        f'-DJAX_AITER_SOURCE_DIGEST="{digest}"',
    )


def unit_steps(
    module: KernelModule,
    processors: Sequence[str],
    toolchain: Toolchain,
    *,
    src: Path = SRC,
) -> Iterator[CompileStep]:
    """Yield the device code steps of a portable module, for each unit and target."""
    for unit in module.units:
        inputs = with_headers(src, unit.source)
        for target in filter(module.supports, processors):
            words = {
                "target": target,
                "code_object_version": toolchain.code_object_version(target),
                # The default CUID depends on the command line, and therefore on
                # folders.
                "cuid": cuid(module.name, unit.name, target),
            }
            argv = [fill(word, words) for word in toolchain.device_command()]
            yield CompileStep(
                label=f"{module.name}/{unit.name} for {target}",
                argv=(*argv, f"{{src}}/{unit.source}", "-o", "{out}"),
                name=f"{unit.name}.co",
                inputs=inputs,
                seconds=unit.seconds,
                memory_mb=unit.memory_mb,
                module=module.name,
                target=target,
                checks={"target": target, "kernels": unit.kernels},
            )


def cuid(*parts: str) -> str:
    """Return the machine-independent identifier of a translation unit in its library."""
    return sha256_of("/".join(parts).encode())[:16]


def digests(src: Path, *names: str) -> dict[str, str]:
    """Return the digests of files of this project.

    Raises:
        KernelError: a file cannot be read.
    """
    found = {}
    for name in names:
        try:
            found[name] = sha256_of((src / name).read_bytes())
        except OSError as error:
            raise KernelError(
                f"kernels/src/{name} cannot be read: {error.strerror}.",
                hint="Restore the file.",
            ) from error
    return found


def with_headers(src: Path, *names: str) -> dict[str, str]:
    """Return the digests of sources and of all headers, which they may include."""
    headers = (path.name for path in src.iterdir() if path.suffix in (".h", ".inc"))
    return digests(src, *names, *sorted(headers))


def fill(word: str, values: Mapping[str, str]) -> str:
    """Replace the known placeholders and leave all others."""
    return re.sub(
        r"\{([\w ./()-]+)\}", lambda found: values.get(found[1], found[0]), word
    )
