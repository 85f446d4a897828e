"""Compilation of generated device code.

Device objects per unit and target, a host pass per unit, one handler library.

The host pass leaves the fat binary of each unit as an undefined symbol. Adding a target
therefore recompiles neither host objects nor other targets. The units and the handlers
that call them are linked into one library. Each library contains its own C++ runtime,
so exceptions cannot pass between libraries.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from core.frozen import frozen
from kernels.aiter_sources import SourceTree, digest_of
from kernels.compiled_checks import COMMON_EXPORTS
from kernels.compiled_store import key_of
from kernels.compiler_steps import (
    EXPORTS,
    NAMED,
    SRC,
    CompileStep,
    cuid,
    digests,
    fill,
    named,
    with_headers,
)
from kernels.generate import Generated
from kernels.modules import KernelModule
from kernels.toolchains import Toolchain

_HOST_SHARE = 0.25
"""Share of the host pass in the seconds of a unit; the rest is the cost of one target."""
_PRELUDE = "hip_libcxx.h"
_REGISTERING = ("__hipRegisterFatBinary", "__hipRegisterFunction")
"""HIP functions that compiled host code calls by name; `hip_calls.cc` defines them."""


@frozen
class LinkInputs:
    """Inputs of the link of a device-lib.

    Attributes:
        steps: steps that compile the inputs.
        parts: label of each host object, with the labels of its device objects by
            target.
    """

    steps: tuple[CompileStep, ...]
    parts: tuple[tuple[str, tuple[tuple[str, str], ...]], ...]


def device_objects(
    module: KernelModule,
    processors: Sequence[str],
    toolchain: Toolchain,
    tree: SourceTree,
    generated: Generated,
) -> LinkInputs:
    """Return the compiled objects of one device-lib as inputs of a link."""
    headers = {
        "headers": digest_of(tree.files, module.headers),
        "generated": key_of(dict(generated.headers)),
    }
    headers |= digests(SRC, _PRELUDE)
    own = f"{{generated {module.name}}}"
    include = [*include_words("-I", module), "-I", own]
    steps: list[CompileStep] = []
    parts = []
    for name, digest in generated.units.items():
        path = f"{own}/{name}"
        common = (
            *_common(module, toolchain, name),
            *toolchain.device_lib_command("generated"),
            *include,
        )
        host = CompileStep(
            label=f"{module.name}/{name} (host)",
            argv=(*common, *toolchain.device_lib_command("host"), path, "-o", "{out}"),
            name="unit.o",
            inputs={name: digest, **headers},
            seconds=module.seconds * _HOST_SHARE,
            memory_mb=module.memory_mb,
            module=module.name,
        )
        devices = {}
        for target in processors:
            if not module.compiles(name, target):
                continue
            words = {
                "target": target,
                "code_object_version": toolchain.code_object_version(target),
            }
            more = [
                fill(word, words) for word in toolchain.device_lib_command("device")
            ]
            devices[target] = replace(
                host,
                label=f"{module.name}/{name} for {target}",
                argv=(*common, *more, path, "-o", "{out}"),
                name="unit.co",
                seconds=module.seconds * (1 - _HOST_SHARE),
                target=target,
                checks={"target": target},
            )
        steps += [*devices.values(), host]
        labels = [(target, step.label) for target, step in sorted(devices.items())]
        parts.append((host.label, tuple(labels)))
    return LinkInputs(steps=tuple(steps), parts=tuple(parts))


def include_words(option: str, module: KernelModule) -> list[str]:
    """Return the words that add a module's include folders of the source."""
    words = []
    for folder in module.include:
        words += [option, f"{{source}}/{folder}"]
    return words


def _common(module: KernelModule, toolchain: Toolchain, name: str) -> tuple[str, ...]:
    return (
        *toolchain.device_lib_command("compile", "libraries"),
        f"-cuid={cuid(module.name, name)}",
        *module.flags.get(toolchain.name, ()),
    )


def shim_steps(
    module: KernelModule,
    libraries: Sequence[LinkInputs],
    toolchain: Toolchain,
    tree: SourceTree,
    *,
    strip: bool = True,
) -> tuple[CompileStep, ...]:
    """Return the steps of a handler library.

    Its objects, compiled with the device-libs' headers, and the link.

    Args:
        libraries: device-libs that the handlers call.
    """
    everything = with_headers(SRC, *module.host)
    words = named(module, key_of({"files": everything}))
    headers = {"headers": digest_of(tree.files, module.headers)}
    own = tuple(
        CompileStep(
            label=f"{module.name}/{name} (host)",
            argv=(
                *_common(module, toolchain, name),
                *toolchain.device_lib_command("own", "host"),
                *(words if name == NAMED else ()),
                *include_words("-isystem", module),
                *(f"{{src}}/{name}", "-o", "{out}"),
            ),
            name="unit.o",
            inputs=with_headers(SRC, name) | headers,
            seconds=module.seconds / len(module.host),
            memory_mb=module.memory_mb,
            module=module.name,
        )
        for name in module.host
    )
    parts: list[tuple[str, tuple[tuple[str, str], ...]]] = []
    parts += [(step.label, ()) for step in own]
    for library in libraries:
        parts += library.parts
    after = []
    for host, devices in parts:
        after += [host, *(label for _, label in devices)]
    exports = (*COMMON_EXPORTS, *_REGISTERING, *(ffi.symbol for ffi in module.ffi))
    link = CompileStep(
        label=f"{module.library} (link)",
        argv=(
            *toolchain.device_lib_command("link"),
            *(["-s"] if strip else []),
            f"-Wl,-soname,{module.library}",
            *("-o", "{out}"),
        ),
        name=module.library,
        inputs=digests(SRC, EXPORTS),
        seconds=2.0,
        memory_mb=500,
        module=module.name,
        after=tuple(after),
        link=tuple(parts),
        checks={"exports": exports},
    )
    return (*own, link)
