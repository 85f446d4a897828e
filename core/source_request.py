"""Options of a build from source, and the commits and digests of its inputs."""

from __future__ import annotations

import enum

from core.frozen import frozen


class Compiler(enum.StrEnum):
    """Compiler of host code; the clang of ROCm always compiles device code."""

    CLANG = "clang"
    GCC = "gcc"


@frozen
class Checkout:
    """One source tree.

    Attributes:
        name: jax, xla or rocm-jax.
        url: repository to fetch the tree from; empty for a folder of the user.
        commit: 40 hexadecimal digits; `<commit>-dirty.<digest>` for a folder with
            changes, `tree-<digest>` for a folder outside git; `HEAD` in a dry run only.
        folder: the user's folder; empty for a fetched tree.
    """

    name: str
    url: str = ""
    commit: str
    folder: str = ""


@frozen
class Remote:
    """Remote execution (REAPI).

    Attributes:
        endpoint: grpc:// or grpcs:// URL; empty if the bazelrc contains the endpoint.
        accept_cached: whether cached results are used; otherwise every action runs
            again.
    """

    endpoint: str = ""
    accept_cached: bool = True


@frozen
class Container:
    """Container of a build, or this machine without a container.

    Attributes:
        host: whether the build runs on this machine, without a container.
        engine: docker, podman or the path of one of them; empty detects the engine.
        image: name of the builder image, `search` to find one, empty to build one.
        base: base image for building the builder image; empty selects the pinned base
            image.
        args: further options of the engine's command `run`.
    """

    host: bool = False
    engine: str = ""
    image: str = ""
    base: str = ""
    args: tuple[str, ...] = ()


@frozen
class SourceRequest:
    """The part of a build request that only a build from source has.

    Attributes:
        sources: source trees; the commit is empty for a folder and HEAD for
            `--xla=head`.
        xla: pin, head, a commit, or dir for a folder of the user.
        jaxlib: whether jaxlib is built too.
        bazelrc: absolute path of a file with further options of Bazel, such as the
            credentials for `remote` and `cache`; empty for none. Only Bazel reads it.
        cache: URL or folder of Bazel's cache for results of actions; empty for none.
        one_target: whether to build only one target for one Python, without jaxlib (for
            developers).
        clang: path of the host clang inside the build environment; empty selects the
            newest clang there.
        bazel: path of the Bazel of a build on this machine; empty selects the pinned
            Bazel.
    """

    compiler: Compiler = Compiler.CLANG
    sources: tuple[Checkout, ...] = ()
    xla: str = "pin"
    jaxlib: bool = False
    container: Container = Container()
    remote: Remote | None = None
    bazelrc: str = ""
    cache: str = ""
    one_target: bool = False
    clang: str = ""
    bazel: str = ""

    @property
    def cache_folder(self) -> str:
        """The folder of the cache for results of actions; empty for a URL or none."""
        return "" if "://" in self.cache else self.cache


@frozen
class SourceInputs:
    """Commits and digests of everything that a build from source uses, resolved from its request.

    Attributes:
        sources: source trees with their commits.
        jax_commit, xla_commit: commits of the code in the pjrt and plugin wheels, even
            if a source tree pins them.
        epoch: SOURCE_DATE_EPOCH, the commit time in seconds since 1970.
        own_commit: commit of this repository.
        rocm: sha256 of the set's rocm.lock; empty in a dry run.
        builder: digest of the builder image, or a description of the host's compiler;
            empty in a dry run.
    """

    sources: tuple[Checkout, ...] = ()
    jax_commit: str = ""
    xla_commit: str = ""
    epoch: int = 0
    own_commit: str = ""
    rocm: str = ""
    builder: str = ""

    def source(self, name: str) -> Checkout | None:
        """Return the source tree with a name; None if the build has none."""
        return next((tree for tree in self.sources if tree.name == name), None)

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
            # rocm-jax compiles the jax that it pins; an additional jax folder is only
            # the source of jaxlib.
            if own := self.source("jax"):
                stamps_of["jaxlib"] = own.commit
        return stamps_of
