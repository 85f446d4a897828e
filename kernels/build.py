"""Builds of kernel modules: sources, steps and native files for a set of targets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from core.errors import KernelError
from core.frozen import frozen
from core.model import GfxTarget, InputFile, KernelRequest
from core.tasks import Tasks
from core.units import human
from kernels import aiter_sources as sources
from kernels import kernel_recipe as recipe
from kernels.build_context import BuildContext
from kernels.compiled_store import KernelStore, StoredFile
from kernels.compiler_steps import SRC, CompileStep, library_steps, unit_steps
from kernels.devicelib import LinkInputs, device_objects, shim_steps
from kernels.generate import Generated, generate
from kernels.graph import Capacity, Forecast, Graph
from kernels.kernel_recipe import NativeFile
from kernels.module_catalog import load_catalog
from kernels.modules import ModuleKind, processors
from kernels.objects import find_objects
from kernels.remote_steps import run_steps
from kernels.toolchains import Toolchain


@frozen
class KernelBuildResult:
    """Result of a kernel build.

    Attributes:
        wanted: requested processors.
        natives: all native files of the wheel.
        missing: modules that a complete wheel would also contain.
        source: record of the upstream archive; None if a checkout or no source was
            used.
        forecast: estimated work of the build before its start.
        skipped: one line for each module without code for some targets.
        request: the request of the build.
    """

    wanted: tuple[str, ...]
    natives: tuple[NativeFile, ...]
    missing: tuple[str, ...]
    source: InputFile | None
    forecast: Forecast
    skipped: tuple[str, ...]
    request: KernelRequest


class KernelBuild:
    """Build of a request's kernel modules for a set of targets.

    Raises:
        RequestError: the request has no targets or unknown modules, or a required
            module has no code for a target.
    """

    def __init__(
        self,
        request: KernelRequest,
        targets: Sequence[GfxTarget],
        toolchain: Toolchain,
        context: BuildContext,
        *,
        strip: bool = True,
    ) -> None:
        self.request = request
        self.toolchain = toolchain
        self.context = context
        self.strip = strip
        self.wanted = processors(targets)
        self.expected = recipe.expected_modules(self.wanted, request)
        self.modules = recipe.chosen_modules(self.wanted, request)
        self.store = KernelStore(context.cache / "store")
        self._tree: sources.SourceTree | None = None
        self._generated: dict[str, Generated] = {}

    def skipped(self) -> tuple[str, ...]:
        """Return one line for each module that lacks code for some targets."""
        lines = []
        for module in recipe.requested_modules(self.request):
            lacking = [name for name in self.wanted if not module.supports(name)]
            if lacking:
                instead = f"; {module.fallback} serves them" if module.fallback else ""
                lines.append(
                    f"{module.name} has no code for {', '.join(lacking)}{instead}"
                )
        if recipe.lacks_attention(self.wanted, self.modules):
            lines.append(recipe.ASM_ALONE)
        return tuple(lines)

    def steps(self) -> tuple[CompileStep, ...]:
        """Return all compiler steps; the steps of device-libs are known only after `fetch`."""
        compile_steps: list[CompileStep] = []
        objects: dict[str, LinkInputs] = {}
        tree = self._tree
        chain = self.toolchain
        for module in self.modules:
            if module.name in self._generated:
                assert tree is not None
                generated = self._generated[module.name]
                objects[module.name] = device_objects(
                    module, self.wanted, chain, tree, generated
                )
                compile_steps += objects[module.name].steps
            compile_steps += unit_steps(module, self.wanted, chain)
            if module.kind is ModuleKind.FFI_SHIM:
                if tree is not None:
                    called = [objects[name] for name in module.needs]
                    compile_steps += shim_steps(
                        module, called, chain, tree, strip=self.strip
                    )
            elif module.host:
                compile_steps += library_steps(module, chain, strip=self.strip)
        return tuple({step.label: step for step in compile_steps}.values())

    def fetch(self) -> None:
        """Obtain the upstream source and run its generators."""
        users = [module for module in self.modules if module.source]
        if not users:
            return
        (source,) = {module.source for module in users}
        self._tree = sources.obtain(
            self.request.source,
            load_catalog().sources[source],
            users,
            self.context,
        )
        for module in (module for module in self.modules if module.generators):
            self._generated[module.name] = generate(
                module,
                self._tree,
                self.context,
                self.request,
            )

    def graph(self) -> Graph:
        """Return the steps with their keys."""
        folders = {"src": SRC}
        for name, generated in self._generated.items():
            folders[f"generated {name}"] = generated.folder
        locked: list[str] = []
        if self._tree is not None:
            folders["source"] = self._tree.folder
            locked += self._tree.files
        return Graph(self.steps(), self.toolchain, self.store, folders, locked)

    def work(self) -> Path:
        """Return the folder for temporary files of builds."""
        return self.context.cache / "work" / self.toolchain.digest[:16]

    def run(self, capacity: Capacity, tasks: Tasks | None = None) -> KernelBuildResult:
        """Compile the missing steps and check all results.

        Args:
            tasks: machines that compile; None for this machine, which links in either
                case.

        Raises:
            KernelError: steps failed, or their results differ from modules.toml; the
                message lists all of them.
            RequestError: the modules have no handler.
        """
        recipe.refuse_code_alone(self.modules)
        self.fetch()
        tree = self._tree
        objects = list[NativeFile]()
        for module in self.modules:
            if module.kind is ModuleKind.CO_LAUNCHER:
                assert tree is not None
                objects += find_objects(
                    module, self.wanted, tree, self.context.cache / "tables"
                )
        graph = self.graph()
        forecast = graph.forecast(capacity)
        if forecast.steps:
            self.context.progress.step(describe(forecast))
        results = self._make(graph, capacity, tasks)
        natives, missing = self._natives(results, objects)
        return KernelBuildResult(
            wanted=self.wanted,
            natives=natives,
            missing=missing,
            source=tree.origin if tree else None,
            forecast=forecast,
            skipped=self.skipped(),
            request=self.request,
        )

    def _make(
        self,
        graph: Graph,
        capacity: Capacity,
        tasks: Tasks | None,
    ) -> dict[str, tuple[CompileStep, StoredFile]]:
        """Run the missing steps, and return the results of all steps by label.

        With `tasks` first those that other machines can run, then the rest here. With
        `allow_partial`, failed steps are skipped if at least one module is complete.
        """
        try:
            if tasks is not None:
                run_steps(graph, tasks, self.work())
            graph.build(self.context.runner, self.context.progress, capacity)
        except KernelError as error:
            broken = {step.module for step in graph.missing()}
            if not self.request.allow_partial or all(
                module.name in broken for module in self.modules
            ):
                raise
            self.context.progress.step(
                f"continuing without failed modules: {error.message}"
            )
        results = {}
        for step in graph.steps:
            if result := self.store.find(graph.keys[step.label]):
                results[step.label] = (step, result)
        return results

    def _natives(
        self,
        made: Mapping[str, tuple[CompileStep, StoredFile]],
        objects: Sequence[NativeFile],
    ) -> tuple[tuple[NativeFile, ...], tuple[str, ...]]:
        """Return the files of all complete modules, and the names of the missing modules."""
        all_steps = self.steps()
        broken = {step.module for step in all_steps if step.label not in made}
        for module in self.modules:
            if broken.intersection(module.needs):
                broken.add(module.name)
        natives = [native for native in objects if native.module not in broken]
        for step, result in made.values():
            module = load_catalog().modules[step.module]
            # Other results are linked into a library.
            if step.name == module.library:
                path = recipe.library_path(module)
            elif module.kind is ModuleKind.PORTABLE and step.target:
                path = recipe.object_path(module.name, step.target, step.name)
            else:
                continue
            if step.module not in broken:
                natives.append(
                    NativeFile(
                        path=path,
                        file=result.path,
                        sha256=result.sha256,
                        module=module.name,
                        target=step.target,
                    )
                )
        whole = {native.module for native in natives}
        missing = tuple(
            module.name for module in self.expected if module.name not in whole
        )
        return tuple(sorted(natives, key=lambda native: native.path)), missing


def describe(forecast: Forecast) -> str:
    """Return a forecast as one line of text."""
    return (
        f"{forecast.steps} of {forecast.steps + forecast.found} steps to run:"
        f" {_time(forecast.seconds)} of CPU, about {_time(forecast.wall_seconds)} with"
        f" {forecast.jobs} jobs"
    )


def _time(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 600 else f"{seconds / 3600:.1f} h"


def sizes(built: KernelBuildResult) -> str:
    """Return the number and size of libraries and code objects in one line."""
    libraries = [native for native in built.natives if not native.target]
    codes = [native for native in built.natives if native.path.endswith(".co")]
    total = sum(native.file.stat().st_size for native in built.natives)
    return (
        f"{len(libraries)} libraries, {len(codes)} code objects, {human(total)}"
        " unpacked"
    )
