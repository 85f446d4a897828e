"""Run of one step of a kernel build: a compiler, the checks of its output, and its storage.

Failed output is discarded.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from core.errors import CiBuildError, KernelError
from core.frozen import frozen
from core.model import GfxTarget
from core.process import Runner, render
from kernels.compiled_checks import code_problems, library_problems
from kernels.compiled_store import KernelStore
from wheelkit.elf.constants import SHT_SYMTAB
from wheelkit.elf.elf_tables import ElfImage, string_at
from wheelkit.gpu import offload_bundle as bundle
from wheelkit.gpu.code_object import HEAD_SIZE, code_object_problem

_TAIL = 30
_DROPPED = re.compile(r"warning: .*(unused|ignor|unknown|unsupported|not supported)")
_HOST = "host-x86_64-unknown-linux-gnu-"
_ENTRY = "hipv4-amdgcn-amd-amdhsa--"
_SYMBOL = "__hip_fatbin_"
_WRAPPER = "__hip_fatbin_wrapper"
_ROOT = str(Path(__file__).parents[1])


@frozen
class StepRun:
    """A step with its command; `{out}` remains a placeholder.

    Attributes:
        key: key of the result in the store.
        link: host objects of a device-lib's link, each with its device objects by
            target.
    """

    label: str
    module: str
    target: str
    key: str
    argv: tuple[str, ...]
    name: str
    environment: Mapping[str, str]
    checks: Mapping[str, Any]
    link: tuple[tuple[str, Mapping[str, str]], ...] = ()


def run_step(
    step: StepRun,
    store: KernelStore,
    runner: Runner,
) -> None:
    """Compile, check and store the output of a step.

    Raises:
        KernelError: the compiler failed or ignored an option, or the output failed its
            checks; the message has target, command and output.
    """
    try:
        _run(step, store, runner)
    except CiBuildError as error:
        where = f"{step.module}, {step.target}" if step.target else step.module
        lines = (
            f"{step.label} ({where})",
            f"command: {render(step.argv)}",
            *error.message.splitlines(),
        )
        raise KernelError("\n  ".join(lines)) from error


def _run(
    step: StepRun,
    store: KernelStore,
    runner: Runner,
) -> None:
    with store.scratch() as name:
        folder = Path(name) / "made"
        folder.mkdir()
        out = folder / step.name
        argv = [word.replace("{out}", str(out)) for word in step.argv]
        if step.link:
            parts = Path(name) / "parts"
            parts.mkdir()
            argv += prepare_link(step.link, parts)
        done = runner.run(argv, env=step.environment, check=False, cwd=_ROOT)
        output = f"{done.stdout}\n{done.stderr}".replace(str(out), step.name)
        if done.returncode or not out.is_file():
            raise KernelError(f"exit code {done.returncode}\n{_tail(output)}")
        # A flag ignored with a warning would silently change the code.
        if _DROPPED.search(output):
            raise KernelError(f"the compiler ignored an option\n{_tail(output)}")
        if problems := check(out, step.label, step.checks):
            raise KernelError("\n".join(problems))
        store.keep(step.key, folder, step.name)


def check(
    out: Path,
    label: str,
    checks: Mapping[str, Any],
) -> list[str]:
    """Return the problems of the output."""
    problems: list[str] = []
    if "exports" in checks:
        problems += library_problems(out, label, checks["exports"])
    if "target" in checks and "kernels" not in checks:
        clause = code_object_problem(
            out.read_bytes()[:HEAD_SIZE], GfxTarget.parse(checks["target"])
        )
        problems += [f"{label} {clause}"] if clause else []
    if "kernels" in checks:
        problems += code_problems(
            out.read_bytes(), label, checks["target"], checks["kernels"]
        )
    return problems


def prepare_link(
    parts: Sequence[tuple[str, Mapping[str, str]]], folder: Path
) -> list[str]:
    """Write the inputs of a device-lib's link.

    For each host object a bundle under the symbol that it refers to.

    Args:
        parts: host objects, each with its device objects by target.
        folder: empty folder; receives bundles, an assembler file that includes them,
            and a list of the objects.

    Returns:
        Arguments for the linker's command.

    Raises:
        KernelError: a host object refers to several bundles, or two objects refer to
            the same bundle.
    """
    lines = ['.section .hip_fatbin,"a",@progbits']
    seen: dict[str, str] = {}
    for number, (host, devices) in enumerate(parts):
        symbols = fatbin_symbols(Path(host).read_bytes(), host)
        if not symbols:
            continue  # a unit without kernels
        (symbol,) = symbols if len(symbols) == 1 else (None,)
        if symbol is None or symbol in seen:
            raise KernelError(
                f"{host} needs one unique fat binary symbol, not {', '.join(symbols)}"
                f" (also in {seen.get(symbol or '', 'no other object')}).",
                hint="Give each unit a unique cuid.",
            )
        seen[symbol] = host
        data = bundle.build(
            [
                (_HOST, b""),
                *((_ENTRY + gfx, Path(co).read_bytes()) for gfx, co in devices.items()),
            ]
        )
        path = folder / f"{number}.hipfb"
        path.write_bytes(bundle.pack(data))
        lines += [
            ".p2align 12",
            f".globl {symbol}",
            f".hidden {symbol}",
            f"{symbol}:",
            f'.incbin "{path.name}"',
        ]
    lines += ['.section .note.GNU-stack,"",@progbits', ""]
    (folder / "bundles.s").write_text("\n".join(lines), encoding="utf-8")
    (folder / "objects.rsp").write_text(
        "".join(f'"{host}"\n' for host, _ in parts), encoding="utf-8"
    )
    return [f"-Wa,-I{folder}", str(folder / "bundles.s"), f"@{folder / 'objects.rsp'}"]


def fatbin_symbols(data: bytes, label: str) -> list[str]:
    """Return the undefined symbols with which an object refers to its fat binary."""
    image = ElfImage.parse(data, label)
    table = next(
        (section for section in image.sections if section.type == SHT_SYMTAB), None
    )
    if table is None:
        return []
    strings = image.contents(image.sections[table.link])
    names = (
        string_at(strings, symbol.name, label)
        for symbol in image.symbols(table)
        if symbol.name and not symbol.section
    )
    return sorted(
        {name for name in names if name.startswith(_SYMBOL) and name != _WRAPPER}
    )


def _tail(text: str) -> str:
    lines = [line for line in text.splitlines() if line.strip()]
    return "\n".join(lines[-_TAIL:])
