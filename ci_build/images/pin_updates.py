"""Updates and checks of pins against registries, servers and Dockerfiles.

Source: the OCI distribution specification (pulling manifests) and the token
authentication of the distribution project. As in container engines, registries on
loopback addresses are used without TLS.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from urllib.parse import urlencode

from ci_build.images.dockerfile import read_arguments
from ci_build.images.engine_images import is_loopback
from ci_build.images.image_builder import ImageBuilder
from ci_build.images.image_pins import ARCHES, DOCKER, Pin, save
from ci_build.images.mirrors import api_host, mirrored
from core.errors import InputError, RequestError
from core.http.client import Client
from core.http.download import RemoteFile

_MANIFESTS = (
    "application/vnd.oci.image.index.v1+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
    "application/vnd.oci.image.manifest.v1+json",
    "application/vnd.docker.distribution.manifest.v2+json",
)
_LARGEST = 4 << 20
"""Maximum size of a manifest (distribution specification)."""
_UNAUTHORISED = 401
_NO_MANIFEST = {_UNAUTHORISED: "rejected the request", 404: "has no such image"}


def select_pins(
    builder: ImageBuilder, names: Sequence[str], arch: str
) -> tuple[Pin, ...]:
    """Return the pins with the given names, or all pins, for one architecture or `all`.

    Raises:
        RequestError: a name or the architecture has no pin.
    """
    of_arch = [pin for pin in builder.pins.pins if arch in ("all", pin.arch)]
    known_names = {pin.name for pin in of_arch}
    where = "" if arch == "all" else f" for {arch}"
    if unknown := sorted(set(names) - known_names) or ([] if known_names else ["pins"]):
        raise RequestError(
            f"{builder.pins.path} has no {', '.join(unknown)}{where}.",
            hint=(
                f"Pinned names: {', '.join(sorted(known_names))}."
                if known_names
                else f"Known architectures: {', '.join(ARCHES)} and all."
            ),
        )
    return tuple(pin for pin in of_arch if pin.name in (names or known_names))


def update(
    builder: ImageBuilder, names: Sequence[str], arch: str, *, dry_run: bool = False
) -> Mapping[str, tuple[str, str]]:
    """Look up the current digests of pins, and write the digests that changed.

    Write nothing if a lookup fails.

    Without names, only tags of base images and files without a digest are looked up. A
    named file is always downloaded.

    Returns:
        Label of each changed pin -> (old digest, new digest).

    Raises:
        InputError: a registry or server does not answer.
    """
    changes = {}
    for pin in select_pins(builder, names, arch):
        if pin.kind == "download" and pin.digest and not names:
            continue
        builder.progress.step(f"looking up {pin.label} {pin.version}")
        now = (
            builder.digest_of(pin.origin)
            if pin.kind == "download"
            else _in_registry(pin, pin.version, builder)
        )
        if now != pin.digest:
            changes[pin.label] = (pin.digest, now)
    if changes and not dry_run:
        save(builder.pins.path, {label: now for label, (_, now) in changes.items()})
    return changes


def problems(builder: ImageBuilder, arch: str, *, online: bool) -> Iterator[str]:
    """Yield problems of pins and Dockerfiles that would affect the build of an image.

    Args:
        online: whether to also check that the registry has each base image and each
            server has its file.
    """
    pins = select_pins(builder, (), arch)
    for pin in pins:
        if not pin.digest:
            yield f"{pin.label} has no digest: run `ci_build images update {pin.name}`"
    for path in sorted(DOCKER.glob("*.Dockerfile")):
        declared, used = read_arguments(path.read_text(encoding="utf-8"))
        for name in sorted(declared - used):
            yield f"{path.name} declares {name} without using it"
    for pin in pins if online else ():
        try:
            if pin.digest and pin.kind == "base":
                _in_registry(pin, pin.digest, builder)
            elif pin.digest:
                RemoteFile(builder.connect(), pin.origin).probe()
        except InputError as error:
            yield f"{pin.label}: {error.message}"


def _in_registry(pin: Pin, reference: str, builder: ImageBuilder) -> str:
    return fetch_digest(
        mirrored(pin.origin, builder.mirrors), reference, builder.connect()
    )


def fetch_digest(repository: str, reference: str, client: Client) -> str:
    """Return the digest of an image in its registry, as `sha256:…`.

    Args:
        repository: registry and path.
        reference: tag or digest.

    Raises:
        InputError: the registry has no such image, or its manifest does not match its
            digest.
    """
    registry, _, path = repository.partition("/")
    host = api_host(registry)
    scheme = "http" if is_loopback(registry) else "https"
    url = f"{scheme}://{host}/v2/{path}/manifests/{reference}"
    headers = {"Accept": ", ".join(_MANIFESTS)}
    answer = client.fetch(url, headers=headers, accept=_NO_MANIFEST, limit=_LARGEST)
    if answer.status == _UNAUTHORISED:
        headers["Authorization"] = (
            f"Bearer {_token(client, answer.headers.get('www-authenticate', ''), host)}"
        )
        answer = client.fetch(url, headers=headers, accept=_NO_MANIFEST, limit=_LARGEST)
    if answer.status != 200:
        problem = _NO_MANIFEST.get(answer.status, f"returned {answer.status}")
        raise InputError(
            f"{repository}, {reference}: the registry {problem}.",
            hint="Check the name and the tag.",
        )
    digest = "sha256:" + hashlib.sha256(answer.body).hexdigest()
    expected = reference if reference.startswith("sha256:") else digest
    if {answer.headers.get("docker-content-digest", digest), expected} != {digest}:
        raise InputError(
            f"{repository}, {reference}: the received manifest has an unexpected"
            f" digest: {digest}.",
            hint="Check the proxies: the manifest was changed on its way.",
        )
    return digest


def _token(client: Client, challenge: str, host: str) -> str:
    """Return an anonymous token from the realm that the registry names."""
    fields = dict(re.findall(r'(\w+)="([^"]*)"', challenge))
    realm = fields.pop("realm", "")
    allowed = ("http://", "https://") if is_loopback(host) else ("https://",)
    if not challenge.lower().startswith("bearer ") or not realm.startswith(allowed):
        raise InputError(
            f"{host} rejected anonymous access.",
            hint="Use a registry that allows anonymous reads.",
        )
    query = urlencode(
        {name: fields[name] for name in ("service", "scope") if name in fields}
    )
    answer = client.fetch(f"{realm}?{query}", accept=_NO_MANIFEST, limit=_LARGEST)
    try:
        granted = json.loads(answer.body)
        return str(granted.get("token") or granted["access_token"])
    except (ValueError, KeyError, AttributeError) as error:
        raise InputError(
            f"{realm} returned {answer.status} without a token.",
            hint="Check the name of the registry.",
        ) from error
