"""Native code built from source: the commands that jax's own build/build.py gets, as argument lists; pure.

Every wheel is one command, run in the folder that holds build/build.py. What it is told, for each release:

    python build/build.py build --wheels=<jax-rocm-pjrt|jax-rocm-plugin|jaxlib> --python_version=X.Y
      --bazel_path --bazel_startup_options=--output_user_root=… [--bazel_startup_options=--bazelrc=…]
      --clang_path (rocm-jax: --use_clang=true --clang_path, or --use_clang=false --gcc_path)
      --target_cpu_features=release --output_path=<an empty folder>
      ROCm wheels: --rocm_path --rocm_version=<major> --rocm_amdgpu_targets
      --bazel_options=<one option each; see `bazel_options`>

The wheel's version is decided before it is built: jax takes ML_WHEEL_TYPE and ML_WHEEL_VERSION_SUFFIX as repo_env,
rocm-jax takes JAX_RELEASE, WHEEL_VERSION_SUFFIX and ROCM_VERSION_EXTRA from the environment.

The build says where each wheel is: jax's build.py logs `Distribution path: <path>`, that of rocm-jax lets the wheel's
own builder print `Output wheel: <path>`.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field

from packaging.version import Version

from ci_build.build.source import bazel
from ci_build.build.source.pins import Interface, Kind, interface_for
from core import layouts
from core.errors import RequestError
from core.model import BuildRequest
from core.source_request import Compiler, Credentials, SourceRequest
from core.versions import package_name, wheel_version

_CREDENTIALS = Credentials(
    ca="/rbe/ca.crt",
    cert="/rbe/client.crt",
    key="/rbe/client.key",
    credential_helper="/rbe/credential-helper",
    bazelrc="/rbe/rbe.bazelrc",
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Places:
    """Where things are, as the commands of the build see them: absolute paths.

    Attributes:
        rocm: the ROCm's prefix; nothing may be written there.
        sources: jax, xla and rocm-jax by name.
        cache: what Bazel keeps for itself.
        disk_cache: the folder of `--disk-cache`.
        out: below it, each step gets an empty folder of its own.
        bazel: the program.
        clang, gcc: host compilers.
        pythons: Python version -> interpreter that runs build.py.
        credentials: files that open remote executors and caches.
        path: PATH of the commands; empty leaves it to the image.
        home: a folder that may be written to.
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
    credentials: Credentials = _CREDENTIALS
    path: str = ""
    home: str = "/tmp/home"  # noqa: S108 - in a container of its own

    def python(self, version: str) -> str:
        """The interpreter that runs build.py for a Python version."""
        return self.pythons.get(version) or f"/opt/python/{tag(version)}-{tag(version)}/bin/python"


IN_CONTAINER = Places(
    rocm="/opt/rocm",
    sources={"jax": "/jax", "xla": "/xla", "rocm-jax": "/rocm-jax"},
    cache="/cache",
    disk_cache="/disk-cache",
    out="/out",
    bazel="/usr/local/bin/bazel",
    clang="/usr/lib/llvm-18/bin/clang",
    gcc="/opt/rh/gcc-toolset-14/root/usr/bin/gcc",
)
"""Where the builder image has, and mounts put, everything."""


@dataclass(frozen=True, kw_only=True, slots=True)
class BuildCommand:
    """One wheel's build.

    Attributes:
        project: normalised name of the wheel's project.
        python: the Python that it is for; empty when it serves all.
        argv, env, cwd: the command.
        output: folder that has to be there, empty, when it starts, and holds the wheel afterwards.
        versions: those that the wheel may have; what is repaired gets its final one then.
        target: what to build, as build.py calls it.
    """

    project: str
    python: str
    argv: tuple[str, ...]
    env: Mapping[str, str]
    cwd: str
    output: str
    versions: tuple[str, ...]
    target: str


def build_commands(request: BuildRequest, version: str, places: Places) -> tuple[BuildCommand, ...]:
    """Every build of a request: pjrt once, then the plugin for each Python, then jaxlib for each where it is built.

    Args:
        version: of the pjrt and plugin wheels.

    Raises:
        RequestError: something that the sources of that release cannot do.
    """
    source = source_of(request)
    first = request.python_versions[0]
    commands = [_command(request, version, places, "jax-rocm-pjrt", first, shared=True)]
    commands += [_command(request, version, places, "jax-rocm-plugin", python) for python in request.python_versions]
    if source.jaxlib:
        commands += [_command(request, version, places, "jaxlib", python) for python in request.python_versions]
    return tuple(commands)


def source_of(request: BuildRequest) -> SourceRequest:
    """The part of a request that is about sources."""
    assert request.source is not None, "only a request with --payload=source gets here"
    return request.source


def jaxlib_version(request: BuildRequest) -> str:
    """Of a jaxlib that is built here: it says for which ROCm, so that it is never taken for the published one."""
    return wheel_version(
        request.jax_version,
        rocm=request.rocm_version if request.rocm_version_extra else None,
        post=request.post_release,
    )


def _command(
    request: BuildRequest, version: str, places: Places, target: str, python: str, *, shared: bool = False
) -> BuildCommand:
    source, interface = source_of(request), interface_for(request.jax_version)
    major = request.rocm_version.major
    jaxlib = target == "jaxlib"
    if jaxlib:
        project, version = "jaxlib", jaxlib_version(request)
    else:
        project = package_name("pjrt" if target == "jax-rocm-pjrt" else "plugin", major)
    by_jax = jaxlib or interface.kind is Kind.JAX
    folder = places.sources["jax" if by_jax else "rocm-jax"]
    output = f"{places.out}/{target}-{'all' if shared else python}"
    options = bazel_options(request, version, places, rocm_wheel=not jaxlib)
    argv = (
        places.python(python),
        "build/build.py",
        "build",
        f"--wheels={target}",
        f"--python_version={python}",
        f"--bazel_path={places.bazel}",
        *(f"--bazel_startup_options={option}" for option in _startup(source, interface, places, by_jax=by_jax)),
        *_compiler(source, interface, places, by_jax=by_jax),
        "--target_cpu_features=release",
        *(() if jaxlib else _rocm(request, places)),
        f"--output_path={output}",
        *(f"--bazel_options={option}" for option in options),
    )
    return BuildCommand(
        project=project,
        python="" if shared else python,
        argv=argv,
        env=_environment(request, version, places, by_jax=by_jax, rocm_wheel=not jaxlib),
        cwd=folder if by_jax else f"{folder}/{interface.folder}",
        output=output,
        versions=(version,) if by_jax else _rocm_jax_versions(request, version),
        target=target,
    )


def _startup(source: SourceRequest, interface: Interface, places: Places, *, by_jax: bool) -> tuple[str, ...]:
    """Options in front of Bazel's command; build.py puts them into a shell command as they are."""
    options = [f"--output_user_root={places.cache}/bazel"]
    if by_jax and interface.kind is Kind.JAX and interface.bazelrc:
        options.append(f"--bazelrc={interface.bazelrc}")
    if source.credentials.bazelrc:
        options.append(f"--bazelrc={places.credentials.bazelrc}")
    return tuple(shlex.quote(option) for option in options)


def _compiler(source: SourceRequest, interface: Interface, places: Places, *, by_jax: bool) -> tuple[str, ...]:
    """The host compiler.

    Raises:
        RequestError: the release's build takes no such compiler.
    """
    supported = (Compiler.CLANG,) if by_jax and source.compiler is Compiler.CLANG else interface.compilers
    if source.compiler not in supported:
        raise RequestError(
            f"--compiler={source.compiler}: the build of this jax takes no host compiler but "
            f"{', '.join(interface.compilers)}.",
            hint="Leave --compiler out.",
        )
    if by_jax:
        # jax's own build.py compiles jaxlib with clang whatever the plugin is compiled with.
        return (f"--clang_path={places.clang}",)
    if source.compiler is Compiler.GCC:
        return ("--use_clang=false", f"--gcc_path={places.gcc}")
    return ("--use_clang=true", f"--clang_path={places.clang}")


def _rocm(request: BuildRequest, places: Places) -> tuple[str, ...]:
    from core.targets import for_bazel

    return (
        f"--rocm_path={places.rocm}",
        f"--rocm_version={request.rocm_version.major}",
        f"--rocm_amdgpu_targets={for_bazel(request.targets or ())}",
    )


def bazel_options(request: BuildRequest, version: str, places: Places, *, rocm_wheel: bool) -> tuple[str, ...]:
    """Options for `bazel build` or `bazel run`, in the order in which later ones win.

    Args:
        version: of this wheel.
        rocm_wheel: pjrt or plugin; jaxlib has no device code.
    """
    source, interface = source_of(request), interface_for(request.jax_version)
    by_jax = not rocm_wheel or interface.kind is Kind.JAX
    options = [*bazel.output_options()]
    if rocm_wheel:
        options += interface.options
        if interface.kind is Kind.JAX or source.compiler is Compiler.CLANG:
            options += bazel.environment_settings("CLANG_COMPILER_PATH", places.clang, "action_env")
        options += bazel.device_options(request.targets or (), places.rocm)
        options += (
            "--linkopt=-Wl,--enable-new-dtags",
            bazel.setting("linkopt", f"-Wl,-rpath,{run_path_room(request)}"),
        )
    else:
        # An image may set it, and repository rules would look for a ROCm there.
        options += bazel.environment_settings("ROCM_PATH", "", "repo_env")
    if source.xla != "pin":
        options += bazel.xla_options(places.sources["xla"])
    if by_jax:
        options += _version_options(request, version)
        tree = source.source("jax")
        if commit := tree.commit if tree else source.jax_commit:
            options.append(bazel.setting("//jaxlib/tools:jaxlib_git_hash", commit))
    epoch = str(source.epoch)
    options += bazel.environment_settings("SOURCE_DATE_EPOCH", epoch)
    options += bazel.remote_options(source.remote)
    options += bazel.cache_options(source.cache, places.disk_cache)
    servers = [source.remote.endpoint] if source.remote else []
    servers += [source.cache.remote] if source.cache.remote else []
    options += bazel.credential_options(source.credentials, places.credentials, servers)
    return tuple(options)


def run_path_room(request: BuildRequest) -> str:
    """A folder that is not there, whose name is as long as the run path that the repair writes into its place."""
    longest = max(len(layouts.runpath(kind, request.targets)) for kind in ("pjrt", "plugin"))
    return "/opt/rocm/lib/" + "room/" * (longest // len("room/") + 1)


def _version_options(request: BuildRequest, version: str) -> tuple[str, ...]:
    """A release of jax's own version with our suffix; build.py reads both, to know the wheel's name."""
    suffix = version_suffix(request, version)
    settings = bazel.environment_settings("ML_WHEEL_TYPE", "release", "repo_env")
    return (*settings, *(bazel.environment_settings("ML_WHEEL_VERSION_SUFFIX", suffix, "repo_env") if suffix else ()))


def version_suffix(request: BuildRequest, version: str) -> str:
    """What has to follow the version that the sources have: of 0.10.2.post1+rocm7.2.0 it is .post1+rocm7.2.0."""
    return version.removeprefix(Version(request.jax_version).base_version)


def _environment(
    request: BuildRequest, version: str, places: Places, *, by_jax: bool, rocm_wheel: bool
) -> dict[str, str]:
    source = source_of(request)
    env = {
        "HOME": places.home,
        "USER": "builder",
        "SOURCE_DATE_EPOCH": str(source.epoch),
        "JAX_RELEASE": "1",
        "JAXLIB_RELEASE": "1",
        # Options of the caller's own builds would end up in these wheels.
        "JAXCI_XLA_GIT_DIR": "",
    }
    if rocm_wheel:
        env |= {"ROCM_PATH": places.rocm, "ROCM_VERSION": str(request.rocm_version), "THEROCK_BUILD": "1"}
    if places.path:
        env["PATH"] = places.path
    if not by_jax:
        env |= _rocm_jax_version(request, version)
    return env


def _rocm_jax_version(request: BuildRequest, version: str) -> dict[str, str]:
    """How rocm-jax is told: it appends WHEEL_VERSION_SUFFIX (not before 0.9), then `+rocm` and ROCM_VERSION_EXTRA."""
    public, _, local = version_suffix(request, version).partition("+")
    if local.startswith("rocm"):
        extra = local.removeprefix("rocm")
        return {"ROCM_VERSION_EXTRA": extra, **({"WHEEL_VERSION_SUFFIX": public} if public else {})}
    return {"WHEEL_VERSION_SUFFIX": version_suffix(request, version)} if public or local else {}


def _rocm_jax_versions(request: BuildRequest, version: str) -> tuple[str, ...]:
    """Versions of before WHEEL_VERSION_SUFFIX was read are acceptable too: the repair sets the final one."""
    base = Version(request.jax_version).base_version
    local = version.partition("+")[2]
    return tuple(dict.fromkeys((version, f"{base}+{local}" if local else base, base)))


def tag(python: str) -> str:
    """cp312 of 3.12."""
    return "cp" + python.replace(".", "")
