"""What a build from source is asked for, parsed and checked; frozen, without I/O. Part of `model.BuildRequest`."""

from __future__ import annotations

import enum
from dataclasses import dataclass


class Compiler(enum.StrEnum):
    """The compiler of host code; device code is always compiled by the ROCm's own clang."""

    CLANG = "clang"
    GCC = "gcc"


@dataclass(frozen=True, kw_only=True, slots=True)
class Checkout:
    """One source tree.

    Attributes:
        name: jax, xla or rocm-jax.
        url: where it is fetched from; empty for a folder of the user's.
        commit: 40 hexadecimal digits; of a folder with changes `<commit>-dirty.<digest>`, of one that git does not
            know `tree-<digest>`; `HEAD` in a plan that is only looked at, and never afterwards.
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
        platform: label of the platform that the executors are, or empty.
        jobs: actions under way at once.
        fallback: what fails there is built here; otherwise the build fails.
        accept_cached: take results that are there already; otherwise every action is carried out once more.
    """

    endpoint: str = ""
    platform: str = ""
    jobs: int = 200
    fallback: bool = True
    accept_cached: bool = True


@dataclass(frozen=True, kw_only=True, slots=True)
class Credentials:
    """Files that open remote executors and caches; only their paths are passed on, and Bazel reads them.

    Attributes:
        ca: certificates of the authorities that may have signed the server's, in place of the usual ones.
        cert, key: the client's certificate and its key.
        credential_helper: program that Bazel asks for the headers of a request.
        bazelrc: further options, such as `build --remote_header=…`.
    """

    ca: str = ""
    cert: str = ""
    key: str = ""
    credential_helper: str = ""
    bazelrc: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class ActionCache:
    """Where Bazel keeps results of actions, beside its own output tree.

    Attributes:
        remote: URL of a remote cache; empty for none.
        disk: folder; empty for none.
        read_only: take from them, and put nothing there.
    """

    remote: str = ""
    disk: str = ""
    read_only: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Container:
    """Where commands of the build run.

    Attributes:
        host: on this machine itself, without a container.
        engine: docker or podman; empty takes the one that is there.
        image: builder image by name, `search` to find one, empty to build one.
        base: base image that a builder image is built on; empty takes the pinned one.
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
    """All that a build from source is asked for beside what every build is.

    Attributes:
        sources: the trees that it is made of.
        xla: pin, head, a commit, or dir where the user gave a folder.
        jax_commit, xla_commit: of what the pjrt and plugin wheels are compiled of, also where a pin of the sources
            themselves decides.
        jaxlib: build jaxlib too.
        epoch: SOURCE_DATE_EPOCH, seconds since 1970: when the commit that is built was made.
        own_commit: of this repository.
        rocm: sha256 of the ROCm's lock, and of names and sizes where it is a folder; empty in a plan that is only
            looked at.
        builder: digest of the builder image, or what compiles on this machine; empty like `rocm`.
        credentials: for `remote` and for the remote one of `cache`.
        one_target: the fast loop of a developer: one target, one Python, no jaxlib.
        clang: path of the host clang as the build sees it; empty takes the newest one that is there.
    """

    compiler: Compiler = Compiler.CLANG
    sources: tuple[Checkout, ...] = ()
    xla: str = "pin"
    jax_commit: str = ""
    xla_commit: str = ""
    jaxlib: bool = False
    epoch: int = 0
    own_commit: str = ""
    rocm: str = ""
    builder: str = ""
    container: Container = Container()
    remote: Remote | None = None
    credentials: Credentials = Credentials()
    cache: ActionCache = ActionCache()
    one_target: bool = False
    clang: str = ""

    def source(self, name: str) -> Checkout | None:
        """The tree of that name, if the build has one."""
        return next((checkout for checkout in self.sources if checkout.name == name), None)

    def stamps(self) -> dict[str, str]:
        """What the wheels say they were made of, by name; each is a commit or a digest."""
        found = {
            "jax": self.jax_commit,
            "xla": self.xla_commit,
            "jax-rocm-release": self.own_commit,
            "rocm": self.rocm,
            "builder": self.builder,
        }
        if tree := self.source("rocm-jax"):
            found["rocm-jax"] = tree.commit
            # rocm-jax compiles the jax that it pins; a tree of one's own is where jaxlib comes from.
            if own := self.source("jax"):
                found["jaxlib"] = own.commit
        return found
