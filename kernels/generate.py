"""Runs of upstream generators, once per content, with their exit status and output checked."""

from __future__ import annotations

import itertools
import re
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from core.digests import sha256_of
from core.errors import KernelError, ProcessError
from core.frozen import frozen
from core.model import KernelRequest
from core.process import Runner
from kernels.aiter_sources import SourceTree, digest_of
from kernels.build_context import BuildContext
from kernels.compiled_store import key_of
from kernels.compiler_steps import fill
from kernels.modules import GENERATORS, Generator, KernelModule

_CHILD = Path(__file__).with_name("generator_child.py")


@frozen
class Generated:
    """Output of a module's generators.

    Attributes:
        units: files to compile: name -> sha256.
        headers: other files, which the units may include: name -> sha256.
    """

    folder: Path
    units: dict[str, str]
    headers: dict[str, str]


def generate(
    module: KernelModule,
    tree: SourceTree,
    context: BuildContext,
    request: KernelRequest,
) -> Generated:
    """Run a module's generators unless the cache has their output.

    Args:
        request: selects the generated instances, by a pattern or for attention.

    Raises:
        KernelError: a generator failed, or the number of written or kept files differs
            from `modules.toml`.
    """
    scripts = [generator.script.rpartition("/")[0] for generator in module.generators]
    own = {}
    for generator in module.generators:
        if generator.driver:
            own[generator.driver] = sha256_of(GENERATORS / generator.driver)
    parts = {
        "digest": digest_of(tree.files, [*module.headers, *scripts]),
        "generators": repr(module.generators),
        "own": own,
        "python": sys.version_info[:2],
    }
    patterns = []
    for generator in module.generators:
        patterns.append(request.instances or generator.pattern(request.attention))
    key = key_of(parts | {"instances": patterns})
    folder = context.cache / "generated" / key
    if not folder.is_dir():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(
            prefix=".generate-", dir=folder.parent
        ) as name:
            fresh = Path(name) / "out"
            fresh.mkdir()
            for generator, instances in zip(module.generators, patterns, strict=True):
                context.progress.step(f"generate the units of {module.name}")
                _run(
                    module,
                    generator,
                    tree,
                    fresh,
                    context.runner,
                    instances,
                )
            if not folder.is_dir():
                fresh.rename(folder)
    suffixes = tuple(generator.suffix for generator in module.generators)
    made = Generated(folder=folder, units={}, headers={})
    for path in sorted(folder.iterdir()):
        if path.is_file():
            kind = made.units if path.name.endswith(suffixes) else made.headers
            kind[path.name] = sha256_of(path)
    return made


def _run(
    module: KernelModule,
    generator: Generator,
    tree: SourceTree,
    out: Path,
    runner: Runner,
    instances: str,
) -> None:
    before = set(out.iterdir())
    places = {
        "out": str(out),
        "source": str(tree.folder),
        "keep": next(iter(generator.keep), ""),
    }
    scripts = [str(tree.folder / generator.script)]
    if generator.driver:
        scripts.insert(0, str(GENERATORS / generator.driver))
        places["instances"] = instances
    argv = [
        sys.executable,
        str(_CHILD),
        *scripts,
        *(fill(word, places) for word in generator.arguments),
    ]
    try:
        runner.run(
            argv,
            cwd=str(out),
            env={"PYTHONDONTWRITEBYTECODE": "1"},
            on_line=lambda _: None,
        )
    except ProcessError as error:
        raise KernelError(
            f"The generator {generator.script} of {module.name} failed: {error.message}"
        ) from error
    wrote = [
        path
        for path in out.iterdir()
        if path not in before and path.name.endswith(generator.suffix)
    ]
    wanted = re.compile("|".join(generator.keep or (".*",)))
    kept = [path for path in wrote if wanted.fullmatch(path.name)]
    _check(module, generator, len(wrote), [path.name for path in kept], instances)
    for path in wrote:
        if path not in kept:
            path.unlink()


def _check(
    module: KernelModule,
    generator: Generator,
    wrote: int,
    kept: Sequence[str],
    instances: str,
) -> None:
    """Check the number of written and kept files.

    With restricted instances, a generator writes its dispatcher even if no instance
    remains.
    """
    pairs = itertools.product(kept, module.targets)
    exact = instances in ("", generator.common)
    count, kept_count = generator.counts(instances)
    problem = ""
    hint = (
        "The numbers are those of the sdist: use --aiter-source=sdist, or check the files"
        " and correct count and kept in modules.toml."
    )
    if not exact and not any(itertools.starmap(module.compiles, pairs)):
        problem = f"No instance of {module.name} has a name that matches {instances!r}."
        hint = (
            "Compare the pattern with the names of the files that"
            f" {generator.script} writes."
        )
    elif exact and wrote != count:
        problem = (
            f"The generator {generator.script} of {module.name} wrote {wrote} files, not"
            f" {count}."
        )
    elif exact and len(kept) != kept_count:
        problem = (
            f"{module.name} keeps {len(kept)} files of {generator.script}, not"
            f" {kept_count}."
        )
        hint = "Correct keep or kept in modules.toml."
    if problem:
        raise KernelError(problem, hint=hint)
