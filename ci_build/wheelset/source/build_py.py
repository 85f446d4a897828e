"""The commands that build native wheels with jax's build/build.py, as argument lists.

One command builds each wheel, in the folder that contains build/build.py. Arguments of
the command:

    python build/build.py build --wheels=<jax-rocm-pjrt|jax-rocm-plugin|jaxlib>
    --python_version=X.Y
      --bazel_path --bazel_startup_options=--output_user_root=…
      [--bazel_startup_options=--bazelrc=…] --clang_path (rocm-jax: --use_clang=true
      --clang_path, or --use_clang=false --gcc_path; without it, since 0.10.2,
        Bazel downloads the clang and the sysroot of upstream's ROCm wheels)
      --target_cpu_features=release --output_path=<an empty folder>
      ROCm wheels: --rocm_path --rocm_version=<major> --rocm_amdgpu_targets
      --bazel_options=<one option each; see `bazel_options`>

The wheel's version is set before the build: jax reads ML_WHEEL_TYPE and
ML_WHEEL_VERSION_SUFFIX as repo_env, rocm-jax reads JAX_RELEASE, WHEEL_VERSION_SUFFIX
and ROCM_VERSION_EXTRA from the environment.

`ci_build.wheelset.source.output` describes how the output names the wheels.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import field

from packaging.version import Version

from ci_build.wheelset.source import bazel
from ci_build.wheelset.source.pins import BuildRepository, Interface, interface_for
from core import rocm_layouts as layouts
from core import targets
from core.errors import RequestError
from core.frozen import frozen
from core.model import BuildRequest
from core.source_request import (
    Checkout,
    Compiler,
    SourceInputs,
    SourceRequest,
)
from core.versions import jaxlib_version, package_name


@frozen
class BuildPaths:
    """Absolute paths as seen by the commands of a build.

    Attributes:
        rocm: read-only prefix of the ROCm.
        device_libraries: folder of device libraries that the ROCm's clang does not find
            by itself, or empty.
        sources: folders of jax, xla and rocm-jax by name.
        cache: folder for Bazel's own output.
        disk_cache: folder of `--action-cache`.
        out: parent of the output folder of each wheel.
        bazel: Bazel program.
        clang, gcc: host compilers.
        pythons: Python version -> interpreter that runs build.py.
        path: PATH of the commands; empty uses the image's PATH.
        home: writable home folder.
    """

    rocm: str
    sources: Mapping[str, str]
    cache: str
    disk_cache: str
    out: str
    bazel: str
    clang: str
    gcc: str
    pythons: Mapping[str, str] = field(default_factory=dict)
    device_libraries: str = ""
    path: str = ""
    home: str = "/tmp/home"  # noqa: S108 - inside a container

    def python(self, version: str) -> str:
        """Return the interpreter that runs build.py for a Python version."""
        return (
            self.pythons.get(version)
            or f"/opt/python/{cpython_tag(version)}-{cpython_tag(version)}/bin/python"
        )


IN_CONTAINER = BuildPaths(
    rocm="/opt/rocm",
    sources={"jax": "/jax", "xla": "/xla", "rocm-jax": "/rocm-jax"},
    cache="/cache",
    disk_cache="/disk-cache",
    out="/out",
    bazel="/usr/local/bin/bazel",
    clang="/usr/lib/llvm-18/bin/clang",
    gcc="/opt/rh/gcc-toolset-14/root/usr/bin/gcc",
)
"""Paths inside the builder image."""


@frozen
class SourceLayout:
    """Paths of a build from source.

    Attributes:
        paths: paths as seen by the build's commands.
        checkouts: folder on this machine for fetched source trees.
    """

    paths: BuildPaths = IN_CONTAINER
    checkouts: str = "sources"

    def folder(self, checkout: Checkout) -> str:
        """Return the folder of a source tree on this machine."""
        return checkout.folder or f"{self.checkouts}/{checkout.name}-{checkout.commit}"


CONTAINER_LAYOUT = SourceLayout()
"""Paths of a build in the builder container."""


@frozen
class BuildCommand:
    """The build of one wheel.

    Attributes:
        project: normalised name of the wheel's project.
        python: Python version of the wheel; empty if the wheel serves all Pythons.
        argv, env, cwd: arguments, variables and working directory of the command.
        output: folder for the wheel; it must exist and be empty.
        versions: accepted versions of the wheel; the repair sets the final version.
        target: name of the wheel in `--wheels` of build.py.
    """

    project: str
    python: str
    argv: tuple[str, ...]
    env: Mapping[str, str]
    cwd: str
    output: str
    versions: tuple[str, ...]
    target: str


def build_commands(
    request: BuildRequest, inputs: SourceInputs, version: str, paths: BuildPaths
) -> tuple[BuildCommand, ...]:
    """Return the builds of a request.

    Pjrt once, then the plugin and, if requested, jaxlib for each Python.

    Raises:
        RequestError: the sources of the release do not support the request.
    """
    pythons = request.python_versions
    wheels = [
        ("jax-rocm-pjrt", pythons[0]),
        *(("jax-rocm-plugin", python) for python in pythons),
    ]
    if source_of(request).jaxlib:
        wheels += [("jaxlib", python) for python in pythons]
    return tuple(
        _command(request, inputs, version, paths, target, python)
        for target, python in wheels
    )


def source_of(request: BuildRequest) -> SourceRequest:
    """Return the source part of a request with --payload=source."""
    assert request.source is not None
    return request.source


def _command(
    request: BuildRequest,
    inputs: SourceInputs,
    version: str,
    paths: BuildPaths,
    target: str,
    python: str,
) -> BuildCommand:
    source = source_of(request)
    interface = interface_for(request.jax_version)
    major = request.rocm_version.major
    jaxlib = target == "jaxlib"
    shared = target == "jax-rocm-pjrt"
    if jaxlib:
        project = "jaxlib"
        version = jaxlib_version(request)
    else:
        project = package_name("pjrt" if shared else "plugin", major)
    by_jax = jaxlib or interface.kind is BuildRepository.JAX
    folder = paths.sources["jax" if by_jax else "rocm-jax"]
    output = f"{paths.out}/{target}-{'all' if shared else python}"
    options = bazel_options(request, inputs, version, paths, rocm_wheel=not jaxlib)
    rocm = []
    versions = [version]
    if not jaxlib:
        gfx_targets = targets.for_bazel(request.targets or ())
        rocm = [
            f"--rocm_path={paths.rocm}",
            f"--rocm_version={major}",
            f"--rocm_amdgpu_targets={gfx_targets}",
        ]
    if not by_jax:
        # Some releases of rocm-jax ignore WHEEL_VERSION_SUFFIX.
        base = Version(request.jax_version).base_version
        local = version.partition("+")[2]
        versions += [f"{base}+{local}" if local else base, base]
    argv = (
        paths.python(python),
        "build/build.py",
        "build",
        f"--wheels={target}",
        f"--python_version={python}",
        f"--bazel_path={paths.bazel}",
        *(
            f"--bazel_startup_options={option}"
            for option in _startup(source, interface, paths, by_jax=by_jax)
        ),
        *_compiler(source, interface, paths, by_jax=by_jax, rocm_wheel=not jaxlib),
        "--target_cpu_features=release",
        *rocm,
        f"--output_path={output}",
        *(f"--bazel_options={option}" for option in options),
    )
    return BuildCommand(
        project=project,
        python="" if shared else python,
        argv=argv,
        env=_environment(
            request, inputs.epoch, version, paths, by_jax=by_jax, rocm_wheel=not jaxlib
        ),
        cwd=folder if by_jax else f"{folder}/{interface.folder}",
        output=output,
        versions=tuple(dict.fromkeys(versions)),
        target=target,
    )


def _startup(
    source: SourceRequest, interface: Interface, paths: BuildPaths, *, by_jax: bool
) -> tuple[str, ...]:
    """Return Bazel's startup options, quoted because build.py puts them into a shell command."""
    options = [f"--output_user_root={paths.cache}/bazel"]
    if by_jax and interface.kind is BuildRepository.JAX and interface.bazelrc:
        options.append(f"--bazelrc={interface.bazelrc}")
    if source.bazelrc:
        options.append(f"--bazelrc={source.bazelrc}")
    return tuple(shlex.quote(option) for option in options)


def _compiler(
    source: SourceRequest,
    interface: Interface,
    paths: BuildPaths,
    *,
    by_jax: bool,
    rocm_wheel: bool,
) -> tuple[str, ...]:
    """Return the options of the host compiler.

    Raises:
        RequestError: the release does not support the compiler.
    """
    supported = (
        (Compiler.CLANG,)
        if by_jax and source.compiler is Compiler.CLANG
        else interface.compilers
    )
    if source.compiler not in supported:
        raise RequestError(
            f"--compiler={source.compiler}: this jax is built by"
            f" {', '.join(interface.compilers)} only.",
            hint="Omit --compiler.",
        )
    if rocm_wheel and interface.downloads_clang(source.clang):
        return ()
    if by_jax:
        # jax's build.py always compiles jaxlib with clang.
        return (f"--clang_path={paths.clang}",)
    if source.compiler is Compiler.GCC:
        return ("--use_clang=false", f"--gcc_path={paths.gcc}")
    return ("--use_clang=true", f"--clang_path={paths.clang}")


def bazel_options(
    request: BuildRequest,
    inputs: SourceInputs,
    version: str,
    paths: BuildPaths,
    *,
    rocm_wheel: bool,
) -> tuple[str, ...]:
    """Return options for `bazel build` or `bazel run`; later options override earlier ones.

    Args:
        version: version of the wheel.
        rocm_wheel: whether the wheel is pjrt or plugin; jaxlib has no device code.
    """
    source = source_of(request)
    interface = interface_for(request.jax_version)
    by_jax = not rocm_wheel or interface.kind is BuildRepository.JAX
    # Parseable output: no colours, no cursor movements, progress once a second, the
    # files of the one built target.
    options = [
        "--color=no",
        "--curses=no",
        "--show_progress_rate_limit=1",
        "--show_result=1",
    ]
    if rocm_wheel:
        options += interface.rocm_options(source.clang)
        by_clang = (
            interface.kind is BuildRepository.JAX or source.compiler is Compiler.CLANG
        )
        if by_clang and not interface.downloads_clang(source.clang):
            options += bazel.environment_settings(
                "CLANG_COMPILER_PATH", paths.clang, "action_env"
            )
        options += bazel.device_options(
            request.targets or (), paths.rocm, paths.device_libraries
        )
        # A placeholder at least as long as the run path that the repair writes over it.
        longest = max(
            len(layouts.runpath(kind, request.targets)) for kind in ("pjrt", "plugin")
        )
        room = "/opt/rocm/lib/" + "room/" * (longest // len("room/") + 1)
        options += (
            "--linkopt=-Wl,--enable-new-dtags",
            bazel.setting("linkopt", f"-Wl,-rpath,{room}"),
        )
    else:
        # An image may set ROCM_PATH, and repository rules would look for a ROCm there.
        options += bazel.environment_settings("ROCM_PATH", "", "repo_env")
    if source.xla != "pin":
        # For WORKSPACE and for Bzlmod.
        xla = f"xla={paths.sources['xla']}"
        options += [
            bazel.setting("override_repository", xla),
            bazel.setting("override_module", xla),
        ]
    if by_jax:
        # build.py derives the wheel's name from these.
        options += bazel.environment_settings("ML_WHEEL_TYPE", "release", "repo_env")
        if suffix := version_suffix(request, version):
            options += bazel.environment_settings(
                "ML_WHEEL_VERSION_SUFFIX", suffix, "repo_env"
            )
        tree = inputs.source("jax")
        if commit := tree.commit if tree else inputs.jax_commit:
            options.append(bazel.setting("//jaxlib/tools:jaxlib_git_hash", commit))
    options += bazel.environment_settings("SOURCE_DATE_EPOCH", str(inputs.epoch))
    options += bazel.remote_options(source, interface.rbe_platform, paths.disk_cache)
    return tuple(options)


def version_suffix(request: BuildRequest, version: str) -> str:
    """Return the suffix after the version of the sources.

    .post1+rocm7.2.0 for 0.10.2.post1+rocm7.2.0.
    """
    return version.removeprefix(Version(request.jax_version).base_version)


def _environment(
    request: BuildRequest,
    epoch: int,
    version: str,
    paths: BuildPaths,
    *,
    by_jax: bool,
    rocm_wheel: bool,
) -> dict[str, str]:
    env = {
        "HOME": paths.home,
        "USER": "builder",
        "SOURCE_DATE_EPOCH": str(epoch),
        "JAX_RELEASE": "1",
        "JAXLIB_RELEASE": "1",
        # Unset, because settings of the user's other builds must not affect these
        # wheels.
        "JAXCI_XLA_GIT_DIR": "",
        # A remote configuration in place of the given ROCm, even if empty (XLA,
        # rocm_configure.bzl).
        "TF_ROCM_CONFIG_REPO": "",
    }
    if rocm_wheel:
        env |= {
            "ROCM_PATH": paths.rocm,
            "ROCM_VERSION": str(request.rocm_version),
            "THEROCK_BUILD": "1",
        }
    if paths.path:
        env["PATH"] = paths.path
    if not by_jax:
        env |= _rocm_jax_version(request, version)
    return env


def _rocm_jax_version(request: BuildRequest, version: str) -> dict[str, str]:
    """Return the variables from which rocm-jax derives the version of a wheel.

    rocm-jax appends WHEEL_VERSION_SUFFIX (since 0.9), then `+rocm` and
    ROCM_VERSION_EXTRA.
    """
    env = {}
    suffix = version_suffix(request, version)
    public, _, local = suffix.partition("+")
    if local.startswith("rocm"):
        env["ROCM_VERSION_EXTRA"] = local.removeprefix("rocm")
        suffix = public
    if suffix:
        env["WHEEL_VERSION_SUFFIX"] = suffix
    return env


def cpython_tag(python: str) -> str:
    """Return the interpreter tag of a Python version: cp312 for 3.12."""
    return "cp" + python.replace(".", "")
