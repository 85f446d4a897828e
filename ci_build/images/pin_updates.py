"""Updates and checks of pins against registries, servers and Dockerfiles."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from ci_build.images.builder import ImageRequest
from ci_build.images.dockerfile import consumed, parse
from ci_build.images.fetch import digest_of
from ci_build.images.pins import ARCHES, DOCKER, Pin, empty, save
from ci_build.images.registry import fetch_digest
from core.errors import CiBuildError, InputError, RequestError
from core.http.download import RemoteFile
from core.model import Progress


def select_pins(request: ImageRequest, names: Sequence[str], arch: str) -> tuple[Pin, ...]:
    """Return the pins of these names, or all, for one architecture or for `all`.

    Raises:
        RequestError: no pin has such a name or architecture.
    """
    of_arch = [pin for pin in request.pins.pins if arch in ("all", pin.arch)]
    known, where = {pin.name for pin in of_arch}, "" if arch == "all" else f" for {arch}"
    if unknown := sorted(set(names) - known) or ([] if known else ["pins"]):
        raise RequestError(
            f"{request.pins.path} has no {', '.join(unknown)}{where}.",
            hint=f"It has {', '.join(sorted(known))}." if known else f"Known are {', '.join(ARCHES)} and all.",
        )
    return tuple(pin for pin in of_arch if pin.name in (names or known))


def update(
    request: ImageRequest, names: Sequence[str], arch: str, progress: Progress, *, dry_run: bool = False
) -> Mapping[str, tuple[str, str]]:
    """Look up present digests, and write those that changed.

    Without names, the tags of base images and files without a digest are looked up. A named file is downloaded.

    Returns:
        Label -> (digest before, digest now) of each change; nothing is written if a lookup fails.

    Raises:
        RequestError: a base image has to be looked up, but no registry is configured.
        InputError: a registry or server does not answer.
    """
    changes = {}
    for pin in select_pins(request, names, arch):
        if pin.kind == "download" and pin.digest and not names:
            continue
        progress.step(f"looking up {pin.label} {pin.version}")
        now = _now(pin, request, progress)
        if now != pin.digest:
            changes[pin.label] = (pin.digest, now)
    if changes and not dry_run:
        save(request.pins.path, {label: now for label, (_, now) in changes.items()})
    return changes


def _now(pin: Pin, request: ImageRequest, progress: Progress) -> str:
    if pin.kind == "download":
        folder = request.cache / "files"
        folder.mkdir(parents=True, exist_ok=True)
        return digest_of(pin.origin, request.connect, folder, progress)
    return _in_registry(pin, pin.version, request)


def _in_registry(pin: Pin, reference: str, request: ImageRequest) -> str:
    if not request.registry:
        raise RequestError(
            f"{pin.label} is an image, but no registry is configured.",
            hint="Give --image-registry HOST, set CI_BUILD_IMAGE_REGISTRY, or name only files.",
        )
    return fetch_digest(request.registry, pin.origin, reference, request.connect())


def problems(request: ImageRequest, arch: str, *, online: bool) -> Iterator[str]:
    """Yield the problems that would break the build of an image or change its content.

    Args:
        online: also check that the registry has each base image and that each server has its file.
    """
    pins = select_pins(request, (), arch)
    for pin in empty(pins):
        yield f"{pin.label} has no digest: run `ci_build images update {pin.name}`"
    for path in sorted(DOCKER.glob("*.Dockerfile")):
        text = path.read_text(encoding="utf-8")
        declared = {found.text.partition("=")[0].strip() for found in parse(text) if found.word == "ARG"}
        for name in sorted(declared - consumed(text)):
            yield f"{path.name} declares {name} without using it"
    for pin in pins if online else ():
        if pin.digest and (problem := _online(pin, request)):
            yield f"{pin.label}: {problem}"


def _online(pin: Pin, request: ImageRequest) -> str:
    try:
        if pin.kind == "base":
            _in_registry(pin, pin.digest, request)
            return ""
        RemoteFile(request.connect(), pin.origin).probe()
    except InputError as error:
        return error.message
    return ""


def raise_for_problems(found: Sequence[str], request: ImageRequest) -> None:
    """Raise CiBuildError with all problems, if there are any."""
    if found:
        lines = "".join(f"\n  {problem}" for problem in found)
        raise CiBuildError(f"{request.pins.path} has problems:{lines}")
