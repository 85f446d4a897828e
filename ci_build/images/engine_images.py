"""Images of a container engine: find, pull and push them."""

from __future__ import annotations

import json
from pathlib import Path
from tempfile import TemporaryDirectory

from ci_build.containers.engine import Engine
from core.errors import InputError, ProcessError
from core.frozen import frozen
from core.process import HostRunner


@frozen
class ContainerImage:
    """An image of a container engine.

    Attributes:
        name: name in the engine.
        id: `sha256:…`, the digest of the image's configuration.
        digests: names in registries, as name@sha256:….
    """

    name: str
    id: str
    digests: tuple[str, ...]

    @property
    def digest(self) -> str:
        """The digest in a registry if the image has one, else the id, for build records."""
        return self.digests[0].partition("@")[2] if self.digests else self.id


def find_argv(engine: Engine, name: str) -> tuple[str, ...]:
    """Return the command that looks for a local image by its name or id."""
    return (engine.program, "image", "inspect", "--format", "{{json .}}", name)


def pull_argv(engine: Engine, reference: str) -> tuple[str, ...]:
    """Return the command that pulls an image."""
    return (engine.program, "pull", *_insecure(engine, reference), reference)


def _insecure(engine: Engine, reference: str) -> tuple[str, ...]:
    # docker itself uses a registry on this machine without TLS.
    local = reference.startswith(("localhost:", "127.0.0.1:"))
    return ("--tls-verify=false",) if engine.podman and local else ()


def find(engine: Engine, host: HostRunner, name: str) -> ContainerImage | None:
    """Return the local image of a name, id or digest, or None."""
    done = host.run(find_argv(engine, name), check=False, on_line=lambda _: None)
    if done.returncode:
        return None
    facts = json.loads(done.stdout)
    facts = facts[0] if isinstance(facts, list) else facts
    # podman invents a digest for images that were never in a registry.
    digests = [
        name
        for name in facts.get("RepoDigests") or ()
        if not name.startswith("localhost/")
    ]
    return ContainerImage(
        name=name,
        id="sha256:" + str(facts["Id"]).removeprefix("sha256:"),
        digests=tuple(sorted(digests)),
    )


def pull(
    engine: Engine, host: HostRunner, reference: str, *, platform: str = ""
) -> ContainerImage:
    """Pull an image from its registry.

    Args:
        platform: platform such as linux/arm64; empty for that of this machine.

    Raises:
        InputError: the registry refuses the pull or lacks the image.
    """
    argv = pull_argv(engine, reference)
    if platform:
        argv = (*argv[:-1], "--platform", platform, reference)
    try:
        host.run(argv)
    except ProcessError as error:
        raise InputError(
            f"Cannot pull {reference}: {error.message.splitlines()[-1].strip()}.",
            hint=(
                f"Check the name, or log in with `{engine.name} login` if the registry"
                " needs that."
            ),
        ) from error
    image = find(engine, host, reference)
    assert image is not None
    return image


def push(engine: Engine, host: HostRunner, image: str, reference: str) -> str:
    """Push an image under a name with a tag, and return `name@sha256:…`.

    Raises:
        ProcessError: the registry refuses the push.
    """
    name = reference.rpartition(":")[0]
    if engine.podman:
        # The digest that podman reports locally is that of uncompressed layers.
        with TemporaryDirectory(prefix="ci_build-") as folder:
            file = Path(folder, "digest")
            options = (*_insecure(engine, reference), "--digestfile", str(file))
            host.run([engine.program, "push", *options, image, reference])
            return f"{name}@{file.read_text(encoding='ascii').strip()}"
    host.run([engine.program, "tag", image, reference])
    host.run([engine.program, "push", reference])
    pushed = find(engine, host, reference)
    for known in pushed.digests if pushed else ():
        if known.startswith(f"{name}@"):
            return known
    raise ProcessError(
        f"{reference} was pushed, but the engine does not report its digest.",
        hint="Pull it to check.",
    )
