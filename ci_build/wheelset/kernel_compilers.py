"""Compilers of the kernels: this machine's, or those of a container image."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from shutil import which
from typing import TYPE_CHECKING

from core.errors import RequestError
from core.model import KernelRequest
from core.process import HostRunner, render

if TYPE_CHECKING:
    from ci_build.containers.engine import Engine
    from kernels.api import CompilerLocation


def find_compilers(
    request: KernelRequest, cache: Path, runner: HostRunner, inputs: Path | None = None
) -> CompilerLocation:
    """Return the location of the compilers.

    This machine, with ccache or sccache if present, or a container.

    Args:
        inputs: further folder that compilers in a container read.

    Raises:
        NoContainerEngineError: the machine has no container engine.
        RequestError: the container engine does not have the image.
    """
    # Start-up time: only a build needs it.
    from kernels.api import THIS_MACHINE, CompilerLocation

    if request.toolchain == "pypi":
        return THIS_MACHINE
    if request.toolchain == "rocm":
        return CompilerLocation(launcher=which("sccache") or which("ccache") or "")
    # Start-up time: only this toolchain needs containers.
    from ci_build.containers.engine import find_engine

    engine = find_engine(None, runner)
    image = runner.run(_image_argv(engine, request.image), check=False)
    if image.returncode:
        raise RequestError(
            f"{engine.name} has no image {request.image}.",
            hint="Pull or build it first.",
        )
    (cache / "kernels").mkdir(parents=True, exist_ok=True)
    wrap = _container_argv(request, cache, engine, image.stdout.strip(), inputs)
    return CompilerLocation(wrap=wrap, image=image.stdout.strip())


def container_lines(request: KernelRequest, cache: Path) -> Iterator[str]:
    """Yield the lines of a dry run about the container of the compilers.

    None without a container.
    """
    if request.toolchain == "container":
        # Start-up time: only this toolchain needs containers.
        from ci_build.containers.engine import planned_engine

        engine = planned_engine("")
        yield (
            f"compile in containers of {request.image}, which must be on this machine;"
            " COMMAND stands for a compiler"
        )
        yield f"  $ {render(_image_argv(engine, request.image))}"
        argv = _container_argv(request, cache, engine, request.image)
        yield f"  $ {render((*argv, 'COMMAND'))}"


def _image_argv(engine: Engine, image: str) -> tuple[str, ...]:
    return (engine.program, "image", "inspect", "--format={{.Id}}", image)


def _container_argv(
    request: KernelRequest,
    cache: Path,
    engine: Engine,
    image: str,
    inputs: Path | None = None,
) -> tuple[str, ...]:
    """Return the command that runs a compiler in a container.

    The compiler's own command follows it.
    """
    # Start-up time: only this toolchain needs containers.
    from ci_build.containers.container import Mount, container_argv, make_spec
    from kernels.api import FOLDER, INSIDE, SRC, TIMED

    folder = cache / FOLDER
    rocm = Path(request.rocm or "/opt/rocm").resolve()
    mounts = [
        Mount(folder, str(folder), writable=True),
        Mount(rocm, str(INSIDE)),
        Mount(SRC, str(SRC)),
    ]
    if request.source and Path(request.source).is_dir():
        source = Path(request.source).resolve()
        mounts.append(Mount(source, str(source)))
    if inputs is not None:
        mounts.append(Mount(inputs, str(inputs)))
    return container_argv(
        replace(make_spec(engine, image, mounts=mounts), network="none"), TIMED
    )
