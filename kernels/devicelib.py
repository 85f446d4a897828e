"""Libraries of generated device code: a device object for each unit and target, one host pass for each unit, one link.

The host pass leaves the fat binary of each unit as a symbol that somebody else defines, so that another target makes
neither the host objects nor those of other targets again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from kernels.checks import COMMON_EXPORTS
from kernels.estimate import HOST_SHARE
from kernels.generate import Generated, cuid
from kernels.modules import Catalog, Module
from kernels.sources import SourceTree, digest_of
from kernels.steps import SRC, Step, closure, fill
from kernels.store import key_of
from kernels.toolchains import Toolchain

_OWN = "module.cc"
"""What every library says to the loader."""


def places(module: Module, generated: Generated) -> dict[str, Path]:
    """The placeholder of a module's generated files."""
    return {f"generated {module.name}": generated.folder}


def device_lib_steps(
    module: Module,
    processors: Sequence[str],
    toolchain: Toolchain,
    tree: SourceTree,
    generated: Generated,
    *,
    src: Path = SRC,
) -> list[Step]:
    """Everything that makes one device-lib."""
    headers = {"headers": digest_of(tree.files, module.headers), "generated": key_of(dict(generated.headers))}
    wanted = [name for name in processors if module.supports(name)]
    units = [(f"{{generated {module.name}}}/{name}", name, digest) for name, digest in generated.units.items()]
    units += [(f"{{source}}/{path}", path, tree.files[path]) for path in module.compiled]
    steps: list[Step] = []
    parts: list[tuple[str, dict[str, str]]] = []
    for path, name, digest in units:
        inputs = {name: digest, **headers}
        host = _host(module, toolchain, path, name, inputs)
        devices = {
            target: _device(module, toolchain, path, name, inputs, target)
            for target in wanted
            if module.compiles(name, target)
        }
        steps += [*devices.values(), host]
        parts.append((host.label, {target: step.label for target, step in devices.items()}))
    return [*steps, _link(module, toolchain, parts, src)]


def _common(module: Module, toolchain: Toolchain, name: str) -> list[str]:
    include = [word for folder in module.include for word in ("-I", f"{{source}}/{folder}")]
    own = ["-I", f"{{generated {module.name}}}"]
    return [
        *toolchain.device_lib_command("compile"),
        f"-cuid={cuid(module, name)}",
        *flags(module, toolchain),
        *include,
        *own,
    ]


def _device(module: Module, toolchain: Toolchain, path: str, name: str, inputs: Mapping[str, str], target: str) -> Step:
    words = {"target": target, "code_object_version": toolchain.code_object_version(target)}
    more = [fill(word, words) for word in toolchain.device_lib_command("device")]
    return Step(
        label=f"{module.name}/{name} for {target}",
        argv=(*_common(module, toolchain, name), *more, path, "-o", "{out}"),
        name="unit.co",
        inputs=inputs,
        seconds=module.seconds * (1 - HOST_SHARE),
        memory_mb=module.memory_mb,
        module=module.name,
        target=target,
        checks={"target": target},
        rocm=True,
    )


def _host(module: Module, toolchain: Toolchain, path: str, name: str, inputs: Mapping[str, str]) -> Step:
    return Step(
        label=f"{module.name}/{name} (host)",
        argv=(*_common(module, toolchain, name), *toolchain.device_lib_command("host"), path, "-o", "{out}"),
        name="unit.o",
        inputs=inputs,
        seconds=module.seconds * HOST_SHARE,
        memory_mb=module.memory_mb,
        module=module.name,
        rocm=True,
    )


def _link(module: Module, toolchain: Toolchain, parts: Sequence[tuple[str, Mapping[str, str]]], src: Path) -> Step:
    after = [label for host, devices in parts for label in (host, *devices.values())]
    inputs = closure([src / _OWN], src)
    return Step(
        label=_label(module),
        argv=(
            *toolchain.device_lib_command("link"),
            *named(module, key_of({"files": inputs})),
            *toolchain.device_lib_command("own"),
            f"{{src}}/{_OWN}",
            *("-x", "none", "-o", "{out}"),
        ),
        name=module.library,
        inputs=inputs,
        seconds=2.0,
        memory_mb=500,
        module=module.name,
        after=tuple(after),
        link=tuple((host, tuple(sorted(devices.items()))) for host, devices in parts),
        checks={"exports": COMMON_EXPORTS, "sonames": module.sonames, "max_size": module.max_size},
        rocm=True,
    )


def shim_step(module: Module, catalog: Catalog, toolchain: Toolchain, tree: SourceTree, *, src: Path = SRC) -> Step:
    """The host library that calls device-libs: compiled with the headers, flags and C++ library that they have."""
    needed = [catalog.modules[name] for name in module.needs]
    inputs = closure([src / name for name in module.host], src)
    inputs |= {"headers": digest_of(tree.files, module.headers)}
    argv = (
        *toolchain.device_lib_command("link"),
        *named(module, key_of({"files": inputs})),
        *toolchain.device_lib_command("shim"),
        *flags(module, toolchain),
        *(word for folder in module.include for word in ("-isystem", f"{{source}}/{folder}")),
        *(f"{{src}}/{name}" for name in module.host),
        *("-x", "none", *(f"{{{_label(lib)}}}" for lib in needed), "-o", "{out}"),
    )
    exports = (*COMMON_EXPORTS, *(ffi.symbol for ffi in module.ffi))
    return Step(
        label=f"{module.library} (host)",
        argv=argv,
        name=module.library,
        inputs=inputs,
        seconds=module.seconds,
        memory_mb=module.memory_mb,
        module=module.name,
        after=tuple(_label(lib) for lib in needed),
        checks={"exports": exports, "sonames": module.sonames, "max_size": module.max_size},
        rocm=True,
    )


def _label(module: Module) -> str:
    return f"{module.library} (link)"


def flags(module: Module, toolchain: Toolchain) -> tuple[str, ...]:
    """A module's own flags."""
    return module.flags.get(toolchain.name, module.flags.get("rocm", ()))


def named(module: Module, digest: str) -> tuple[str, ...]:
    """Words that give a library its name, for the linker and for the loader."""
    return (
        f'-DJAX_AITER_MODULE="{module.name}"',
        f'-DJAX_AITER_SOURCE_DIGEST="{digest}"',
        f"-Wl,-soname,{module.library}",
    )
