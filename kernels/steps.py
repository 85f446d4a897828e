"""Modules and targets -> steps: what to compile, with which words, and the key that everything about it decides."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from core.errors import KernelError
from kernels.checks import COMMON_EXPORTS
from kernels.modules import Module, Unit
from kernels.store import key_of
from kernels.toolchains import Toolchain

SRC = Path(__file__).with_name("src")
NAMED = "module.cc"
"""The one of our sources that tells a library which module it is."""
EXPORTS = "exports.map"
"""The one of them that tells the linker what a library offers."""
_FORMAT = 1
"""Of keys: another one makes everything anew."""
_INCLUDE = re.compile(rb'^[ \t]*#[ \t]*include[ \t]*"([^"\n]+)"', re.MULTILINE)


@dataclass(frozen=True, kw_only=True, slots=True)
class Step:
    """One command that makes one file.

    Attributes:
        label: unit and target, for people; also the name under which its costs are remembered.
        argv: with placeholders, so that it is the same wherever the folders are; `{out}` is what it writes,
            `{<label of another step>}` what that one has made.
        name: of the file that it makes.
        inputs: what it reads -> digest, by names that do not depend on where the folders are.
        after: labels of the steps whose files it takes.
        checks: what the file has to be: `target` and `kernels`, or `exports`, `alone` where it may offer nothing
            else, and `sonames`; and `max_size`.
        link: of a device-lib: label of each host object, and of its device objects by target.
        rocm: it runs with the compiler of a ROCm, and so behind the toolchain's launcher and wrapper.
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
    rocm: bool = False

    def key(self, toolchain: Toolchain, before: Mapping[str, str]) -> str:
        """Of everything that decides what it makes.

        Args:
            before: label -> key of the steps whose files it takes.
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


def library_steps(module: Module, toolchain: Toolchain, *, strip: bool = True, src: Path = SRC) -> tuple[Step, ...]:
    """The objects of a module's host library, those that all libraries share among them, and the library.

    It is the same for all targets.
    """
    everything = closure([src / name for name in module.host], src)
    words = named(module, key_of({"files": everything}))
    own = tuple(_object(module, toolchain, name, words, src) for name in module.host)
    labels = tuple(step.label for step in own)
    exports = (*COMMON_EXPORTS, *(ffi.symbol for ffi in module.ffi))
    argv = (
        *toolchain.host_link(strip=strip),
        f"-Wl,-soname,{module.library}",
        *(f"{{{label}}}" for label in labels),
        *("-o", "{out}"),
    )
    library = Step(
        label=f"{module.library} (host)",
        argv=argv,
        name=module.library,
        inputs=closure([src / EXPORTS], src),
        seconds=module.seconds / (len(own) + 1),
        memory_mb=module.memory_mb,
        module=module.name,
        after=labels,
        checks={"exports": exports, "alone": True, "sonames": module.sonames, "max_size": module.max_size},
    )
    return (*own, library)


def _object(module: Module, toolchain: Toolchain, name: str, words: Sequence[str], src: Path) -> Step:
    """The object of one of our sources; one step for all modules that have it, but for what names the module."""
    shared = name != NAMED
    return Step(
        label=f"{name} (host)" if shared else f"{module.name}/{name} (host)",
        argv=(*toolchain.host_command(), *(() if shared else words), "-c", f"{{src}}/{name}", "-o", "{out}"),
        name="unit.o",
        inputs=closure([src / name], src),
        seconds=module.seconds / (len(module.host) + 1),
        memory_mb=module.memory_mb,
        module=module.name,
    )


def named(module: Module, digest: str) -> tuple[str, ...]:
    """Words that tell a library what it is and what of: see `module.cc`."""
    return (f'-DJAX_AITER_MODULE="{module.name}"', f'-DJAX_AITER_SOURCE_DIGEST="{digest}"')


def unit_steps(
    module: Module, processors: Sequence[str], toolchain: Toolchain, *, src: Path = SRC
) -> Iterator[tuple[Unit, Step]]:
    """The device code of a portable module: a step for each unit and target."""
    for unit in module.units:
        inputs = closure([src / unit.source], src)
        for target in (name for name in processors if module.supports(name)):
            words = {
                "target": target,
                "code_object_version": toolchain.code_object_version(target),
                # Else it would follow from the command line, and so from where the folders are.
                "cuid": hashlib.sha256(f"{module.name}/{unit.name}/{target}".encode()).hexdigest()[:16],
            }
            argv = [fill(word, words) for word in toolchain.device_command()]
            argv += [f"-D{name}={value}" if value else f"-D{name}" for name, value in sorted(unit.defines.items())]
            yield (
                unit,
                Step(
                    label=f"{module.name}/{unit.name} for {target}",
                    argv=(*argv, f"{{src}}/{unit.source}", "-o", "{out}"),
                    name=f"{unit.name}.co",
                    inputs=inputs,
                    seconds=unit.seconds,
                    memory_mb=unit.memory_mb,
                    module=module.name,
                    target=target,
                    checks={"target": target, "kernels": unit.kernels},
                    rocm=toolchain.name != "pypi",
                ),
            )


def closure(files: Iterable[Path], src: Path) -> dict[str, str]:
    """Digests of sources and of all that they include with quotes below `src`, by path below it.

    Headers of the toolchain count by its own digest. A conditional include counts too.

    Raises:
        KernelError: a file that is not there.
    """
    digests: dict[str, str] = {}
    waiting = list(files)
    while waiting:
        path = waiting.pop()
        name = str(PurePosixPath(path.relative_to(src)))
        if name in digests:
            continue
        try:
            content = path.read_bytes()
        except OSError as error:
            raise KernelError(f"kernels/src/{name} cannot be read: {error.strerror}.", hint="Restore it.") from error
        digests[name] = hashlib.sha256(content).hexdigest()
        for found in _INCLUDE.findall(content):
            # As the preprocessor looks: beside the file first, then on the include path.
            for folder in (path.parent, src):
                candidate = folder / found.decode()
                if candidate.is_file() and candidate.resolve().is_relative_to(src.resolve()):
                    waiting.append(_below(candidate, src))
                    break
    return dict(sorted(digests.items()))


def _below(path: Path, src: Path) -> Path:
    """The path without `..`, below `src` as it was given."""
    return src / path.resolve().relative_to(src.resolve())


def fill(word: str, values: Mapping[str, str]) -> str:
    """Replace the placeholders that are known; others stay."""
    return re.sub(r"\{([\w ./()-]+)\}", lambda found: values.get(found[1], found[0]), word)
