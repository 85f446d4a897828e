"""A build from source: its options, and the commits and digests of its inputs."""

from __future__ import annotations

import enum
from dataclasses import dataclass, replace


class Compiler(enum.StrEnum):
    """The compiler of host code; device code is always compiled by the ROCm's own clang."""

    CLANG = "clang"
    GCC = "gcc"


@dataclass(frozen=True, kw_only=True, slots=True)
class Checkout:
    """One source tree.

    Attributes:
        name: jax, xla or rocm-jax.
        url: repository to fetch from; empty for a folder of the user.
        commit: 40 hexadecimal digits; `<commit>-dirty.<digest>` for a folder with changes, `tree-<digest>` for a
            folder outside git; `HEAD` in a dry run only.
        folder: the user's folder; empty for a tree that is fetched.
    """

    name: str
    url: str = ""
    commit: str
    folder: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Remote:
    """Remote execution (REAPI).

    Attributes:
        endpoint: grpc:// or grpcs:// URL; empty when the bazelrc of the credentials names it.
        platform: label of the executors' platform, or empty.
        jobs: number of concurrent actions.
        fallback: build locally what fails remotely; otherwise the build fails.
        accept_cached: use cached results; otherwise every action runs again.
    """

    endpoint: str = ""
    platform: str = ""
    jobs: int = 200
    fallback: bool = True
    accept_cached: bool = True


@dataclass(frozen=True, kw_only=True, slots=True)
class Credentials:
    """Files that authenticate to remote executors and caches; Bazel reads them, only their paths are passed on.

    Attributes:
        ca: CA bundle that verifies the server, instead of the system's.
        cert, key: client certificate and its key.
        credential_helper: program that Bazel runs to get the headers of a request.
        bazelrc: further options, such as `build --remote_header=…`.
    """

    ca: str = ""
    cert: str = ""
    key: str = ""
    credential_helper: str = ""
    bazelrc: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class ActionCache:
    """Bazel's caches for results of actions.

    Attributes:
        remote: URL of a remote cache; empty for none.
        disk: folder; empty for none.
        read_only: read from the caches, but never write to them.
    """

    remote: str = ""
    disk: str = ""
    read_only: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Container:
    """The container of a build, or this machine.

    Attributes:
        host: run on this machine, without a container.
        engine: docker, podman or a file; empty detects the engine.
        image: name of the builder image, `search` to find one, empty to build one.
        base: base image of a builder image that is built; empty uses the pinned one.
        network, memory, shm_size: as the engine's options; empty memory sets no limit.
    """

    host: bool = False
    engine: str = ""
    image: str = ""
    base: str = ""
    network: str = "host"
    memory: str = ""
    shm_size: str = "64g"


@dataclass(frozen=True, kw_only=True, slots=True)
class SourceRequest:
    """The part of a build request that only a build from source has.

    Attributes:
        sources: source trees; the commit of a folder is empty, that of `--xla=head` is HEAD.
        xla: pin, head, a commit, or dir where the user gave a folder.
        jaxlib: build jaxlib too.
        credentials: for `remote` and for the remote part of `cache`.
        one_target: build one target for one Python without jaxlib, for a developer.
        clang: path of the host clang inside the build environment; empty selects the newest one there.
    """

    compiler: Compiler = Compiler.CLANG
    sources: tuple[Checkout, ...] = ()
    xla: str = "pin"
    jaxlib: bool = False
    container: Container = Container()
    remote: Remote | None = None
    credentials: Credentials = Credentials()
    cache: ActionCache = ActionCache()
    one_target: bool = False
    clang: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class SourceInputs:
    """Commits and digests of everything that a build from source uses, resolved from its request.

    Attributes:
        sources: source trees with their commits.
        jax_commit, xla_commit: of the code in the pjrt and plugin wheels, also where the sources themselves pin it.
        epoch: SOURCE_DATE_EPOCH, the commit time in seconds since 1970.
        own_commit: of this repository.
        rocm: sha256 of the ROCm's lock, and of names and sizes where it is a folder; empty in a dry run.
        builder: digest of the builder image, or a description of the host's compiler; empty in a dry run.
    """

    sources: tuple[Checkout, ...] = ()
    jax_commit: str = ""
    xla_commit: str = ""
    epoch: int = 0
    own_commit: str = ""
    rocm: str = ""
    builder: str = ""

    def source(self, name: str) -> Checkout | None:
        """Return the source tree of that name, if the build has one."""
        return next((checkout for checkout in self.sources if checkout.name == name), None)

    def with_tools(self, *, rocm: str, builder: str) -> SourceInputs:
        """Return the same inputs with the digests of the ROCm and of the builder."""
        return replace(self, rocm=rocm, builder=builder)

    def stamps(self) -> dict[str, str]:
        """Return the commits and digests that the wheels record, by name."""
        stamps_of = {
            "jax": self.jax_commit,
            "xla": self.xla_commit,
            "jax-rocm-release": self.own_commit,
            "rocm": self.rocm,
            "builder": self.builder,
        }
        if tree := self.source("rocm-jax"):
            stamps_of["rocm-jax"] = tree.commit
            # rocm-jax compiles the jax that it pins; a jax folder beside it is only the source of jaxlib.
            if own := self.source("jax"):
                stamps_of["jaxlib"] = own.commit
        return stamps_of
