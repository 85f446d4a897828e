"""Images of a container engine: find, tag, pull and push them."""

from __future__ import annotations

import ipaddress
import json
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from ci_build.containers.engine import Engine
from core.errors import InputError, ProcessError, RequestError
from core.process import HostRunner

# Source: the grammar of references in the distribution project: path components and
# tags.
_REFERENCE = re.compile(
    r"(?P<name>(?:[A-Za-z0-9.-]+(?::\d+)?/)?[a-z0-9]+(?:(?:[._]|__|-+|/)[a-z0-9]+)*)"
    r"(?::(?P<tag>[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}))?(?:@(?P<digest>sha256:[0-9a-f]{64}))?"
)


@dataclass(frozen=True, kw_only=True, slots=True)
class ContainerImage:
    """An image of a container engine.

    Attributes:
        name: name in the engine.
        id: `sha256:…`, the digest of the image's configuration.
        digests: names in registries, as name@sha256:….
        labels: labels of the image.
        built: whether this run built the image.
    """

    name: str
    id: str
    digests: tuple[str, ...]
    labels: Mapping[str, str]
    built: bool = False

    @property
    def digest(self) -> str:
        """The digest in a registry if the image has one, else the id, for build records."""
        return self.digests[0].partition("@")[2] if self.digests else self.id


def sanitize(version: str) -> str:
    """Return a version in which dots replace characters that a tag cannot contain, such as `+`."""
    return re.sub(r"[^A-Za-z0-9_.-]", ".", version)


def check_name(name: str, origin: str) -> str:
    """Return the name of an image, with or without a tag.

    Raises:
        RequestError: the name is invalid; the hint proposes a valid one.
    """
    match = _REFERENCE.fullmatch(name)
    if match is None or match["digest"]:
        path, _, last = name.partition("@")[0].rpartition("/")
        last, colon, tag = last.partition(":")
        good = (
            f"{path}{'/' if path else ''}{sanitize(last).lower()}{colon}{sanitize(tag)}"
        )
        hint = (
            f"Use {good}."
            if _REFERENCE.fullmatch(good)
            else "Write the name like name:tag."
        )
        raise RequestError(f"{origin} {name!r} is not a valid image name.", hint=hint)
    return name


def find_argv(engine: Engine, name: str) -> tuple[str, ...]:
    """Return the command that looks for a local image by its name or id."""
    return (engine.program, "image", "inspect", "--format", "{{json .}}", name)


def list_argv(engine: Engine) -> tuple[str, ...]:
    """Return the command that lists the local images with their digests."""
    return (
        engine.program,
        "image",
        "ls",
        "--no-trunc",
        "--digests",
        "--format",
        "{{.ID}} {{.Digest}}",
    )


def tag_argv(engine: Engine, image: str, name: str) -> tuple[str, ...]:
    """Return the command that tags an image."""
    return (engine.program, "tag", image, name)


def pull_argv(engine: Engine, reference: str) -> tuple[str, ...]:
    """Return the command that pulls an image."""
    return (engine.program, "pull", *_insecure(engine, reference), reference)


def push_argv(engine: Engine, reference: str) -> tuple[str, ...]:
    """Return the command that pushes a tagged image."""
    return (engine.program, "push", *_insecure(engine, reference), reference)


def check_reference(text: str, origin: str) -> str:
    """Return the reference of an existing image: a name with or without tag or digest, or an id.

    Raises:
        RequestError: no image can have this reference.
    """
    if (
        re.fullmatch(r"(?:sha256:)?[0-9a-f]+", text) is None
        and _REFERENCE.fullmatch(text) is None
    ):
        raise RequestError(
            f"{origin} is not the name of an image: {text!r}.",
            hint="Write it like host/name:tag.",
        )
    return text


def find(engine: Engine, host: HostRunner, name: str) -> ContainerImage | None:
    """Return the local image of a name, id or digest, or None."""
    done = host.run(find_argv(engine, name), check=False, on_line=lambda _: None)
    if done.returncode:
        return None
    facts = json.loads(done.stdout)
    facts = facts[0] if isinstance(facts, list) else facts
    labels = (facts.get("Config") or {}).get("Labels") or facts.get("Labels") or {}
    return ContainerImage(
        name=name,
        id="sha256:" + str(facts["Id"]).removeprefix("sha256:"),
        # podman invents a digest for images that were never in a registry.
        digests=tuple(
            sorted(
                name
                for name in facts.get("RepoDigests") or ()
                if not name.startswith("localhost/")
            )
        ),
        labels=labels,
    )


def find_digest(engine: Engine, host: HostRunner, digest: str) -> ContainerImage | None:
    """Return the local image with this digest in any registry."""
    done = host.run(list_argv(engine), check=False, on_line=lambda _: None)
    rows = [line.split() for line in done.stdout.splitlines()]
    image = next((row[0] for row in rows if len(row) == 2 and row[1] == digest), "")
    return find(engine, host, image) if image else None


def tag(engine: Engine, host: HostRunner, image: str, name: str) -> None:
    """Tag an image."""
    host.run(tag_argv(engine, image, name))


def pull(engine: Engine, host: HostRunner, reference: str) -> ContainerImage:
    """Pull an image from its registry.

    Raises:
        InputError: the registry refuses the pull or lacks the image.
    """
    try:
        host.run(pull_argv(engine, reference))
    except ProcessError as error:
        raise InputError(
            f"Cannot pull {reference}: {error.message.splitlines()[-1].strip()}.",
            hint=(
                f"Check the name, log in with `{engine.name} login` if the registry"
                " needs that, or name a mirror with --image-mirror."
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
    tag(engine, host, image, reference)
    host.run(push_argv(engine, reference))
    pushed = find(engine, host, reference)
    for known in pushed.digests if pushed else ():
        if known.startswith(f"{name}@"):
            return known
    raise ProcessError(
        f"{reference} was pushed, but the engine does not report its digest.",
        hint="Pull it to check.",
    )


def is_loopback(registry: str) -> bool:
    """Return whether a registry is on a loopback address, which engines use without TLS."""
    host = registry.partition("/")[0].rpartition(":")[0] or registry.partition("/")[0]
    if host == "localhost":
        return True
    with suppress(ValueError):
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    return False


def _insecure(engine: Engine, reference: str) -> tuple[str, ...]:
    # docker detects loopback addresses itself.
    return (
        ("--tls-verify=false",)
        if engine.podman and is_loopback(reference.partition("/")[0])
        else ()
    )
