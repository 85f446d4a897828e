"""The device gate in a container: the image by its digest, the mounts, and the command.

The container has the GPUs, and a read-only root, checkout and staged set. It can write
to the bucket, and to a folder of the cache with the packages for the image's Python.
The gate's secrets are a file or variables of the container, never words of a command.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from ci_build.containers.container import (
    GPU_SHM_SIZE,
    ContainerRunner,
    ContainerSpec,
    Mount,
    find_gpus,
    make_spec,
)
from ci_build.containers.engine import Engine, find_engine
from ci_build.images import engine_images as local
from ci_build.release.release_request import DeviceRun
from core.errors import InputError, MachineError, RequestError
from core.model import Evidence
from core.process import HostRunner, LineSink
from core.report import Reporter
from core.store import lock_in_use
from promotion.evidence.evidence import SCHEMA_VERSION, load_evidence
from promotion.gates.common.installers import pip_config
from promotion.gates.device.device_request import DeviceRequest, option_words
from promotion.gates.device.lease import JaxPlatform
from promotion.gates.device.suite import parse_source
from promotion.storage.directory_bucket import DirBucket

REPOSITORY = "/ci_build"
"""This checkout in the container."""
_ROOT = Path(__file__).parents[2]
_CACHE = "/cache"
_NOT_STARTED = (1, 125, 126, 127)
"""Exit codes of `docker run` and `podman run`.

The container was not started, or its program cannot be started.

Podman's init program ends with 1 if it cannot start the program.
"""


def run_in_image(
    run: DeviceRun, reporter: Reporter, host: HostRunner, on_error_line: LineSink
) -> tuple[int, tuple[Evidence, ...]]:
    """Run the gate in a container, and return its exit code and its evidence.

    An early failure has no evidence.

    Args:
        on_error_line: callback for each line that the gate prints on standard error.

    Raises:
        RequestError: the container cannot reach the bucket.
        InputError: the image cannot be pulled, or has another digest.
        NoContainerEngineError: no container engine answers.
        MachineError: the machine has no AMD GPU, or the image cannot run the gate.
    """
    settings = run.step.container
    image_name = run.request.image
    if "--network=none" in settings.args and not isinstance(run.bucket, DirBucket):
        raise RequestError(
            f"--container-args=--network=none contradicts the bucket {run.bucket_name}.",
            hint="Give a folder as --bucket.",
        )
    devices, groups = (
        find_gpus() if run.request.platform == JaxPlatform.ROCM else ((), ())
    )
    engine = find_engine(settings.engine or None, host)
    image = find_image(engine, host, image_name, reporter)
    folder = (
        settings.cache / "images" / "gates" / image_name.partition("@sha256:")[2][:16]
    )
    with (
        lock_in_use(folder),
        tempfile.TemporaryDirectory(prefix="run-", dir=folder) as scratch,
    ):
        pip = pip_config(host)
        secrets = {**settings.variables}
        for name, value in pip.items():  # index-url is PIP_INDEX_URL
            secrets[f"PIP_{name.upper().replace('-', '_')}"] = value
        if run.key.file is None:
            secrets[run.key.origin] = run.key.text
        spec = make_spec(engine, image.id, mounts=[*mounts(run, folder, pip)])
        spec = replace(
            spec,
            env={
                **spec.env,
                "JAX_ROCM_RELEASE_VENV": _CACHE,
                "TMPDIR": f"{_CACHE}/{Path(scratch).name}",
                "XDG_CACHE_HOME": f"{_CACHE}/xdg",
                "PIP_CONFIG_FILE": os.devnull,
            },
            secrets=secrets,
            devices=devices,
            groups=groups,
            shm_size=GPU_SHM_SIZE,
            args=settings.args,
        )
        reporter.step(f"gate in {image_name} with {engine.name} {engine.version}")
        return _run(run, spec, engine, reporter, host, on_error_line)


def _run(
    run: DeviceRun,
    spec: ContainerSpec,
    engine: Engine,
    reporter: Reporter,
    host: HostRunner,
    on_error_line: LineSink,
) -> tuple[int, tuple[Evidence, ...]]:
    runner = ContainerRunner(host, spec, say=reporter.line)
    argv = gate_argv(run, f"{engine.name} {engine.version}")
    done = runner.run(
        argv, check=False, on_line=lambda _: None, on_error_line=on_error_line
    )
    if done.returncode in _NOT_STARTED:
        lines = done.stderr.strip().splitlines() or ["no reason was given"]
        raise MachineError(
            f"The gate cannot start in {run.request.image}: {lines[-1].rstrip('.')}.",
            hint="The image needs Python 3.11 or newer as `python3`.",
        )
    evidences = []
    for item in json.loads(done.stdout) if done.stdout.strip() else []:
        body = json.dumps({"schema": SCHEMA_VERSION, **item}).encode()
        evidences.append(load_evidence(body, "The output of the gate"))
    return done.returncode, tuple(evidences)


def require_container(request: DeviceRequest, checkout: Path = _ROOT) -> None:
    """Refuse a gate with --inside that does not run in a container.

    Its checkout is the mount of the container.

    Docker and Podman have no common mark of containers: Podman creates none in
    containers with a read-only root.

    Raises:
        RequestError: the gate runs in no container of this module, or its image was not
            given.
    """
    if request.inside and not (
        request.image and checkout == Path(REPOSITORY) and checkout.is_mount()
    ):
        raise RequestError(
            "--inside needs --image and a container.",
            hint="Give --image alone; it starts a container.",
        )


def find_image(
    engine: Engine, host: HostRunner, name: str, reporter: Reporter
) -> local.ContainerImage:
    """Return the image NAME@sha256:…, pulled if this machine lacks it.

    Containers are started by the id of the image.

    Raises:
        InputError: the image cannot be pulled, or the engine reports another digest.
    """
    digest = name.partition("@")[2]
    image = local.find(engine, host, name)
    # Podman also finds an image that only has this digest under a name of this machine.
    if image is None or digest not in _digests(image):
        reporter.step(f"pulling {name}")
        image = local.pull(engine, host, name)
    if digest not in _digests(image):
        raise InputError(
            f"The image {name} has another digest:"
            f" {', '.join(sorted(_digests(image))) or 'none of a registry'}.",
            hint="Remove the image, and run the gate again.",
        )
    return image


def _digests(image: local.ContainerImage) -> set[str]:
    """Return the digests of an image in registries."""
    return {known.partition("@")[2] for known in image.digests}


def gate_argv(run: DeviceRun, inside: str) -> tuple[str, ...]:
    """Return the command that runs the gate in the container.

    Args:
        inside: engine and its version.
    """
    bucket = run.bucket_name
    if isinstance(run.bucket, DirBucket):
        bucket = str(run.bucket.root.absolute())
    words = ["python3", f"{REPOSITORY}/build/ci_build", "gate", "device"]
    words += [str(run.staged), f"--bucket={bucket}"]
    words += [f"--channel={run.channel}", "--json"]
    if run.key.file is not None:
        words.append(f"--signing-key={run.key.file.absolute()}")
    # The ROCm of the set is a mount.
    request = replace(run.request, inside=inside, rocm_of_set=False)
    if request.jax_tests:
        source = parse_source(request.jax_tests)
        request = replace(request, jax_tests=source.absolute)
    words += option_words(request)
    if run.redo:
        words.append("--redo")
    return tuple(words)


def mounts(run: DeviceRun, folder: Path, pip: Mapping[str, str]) -> Iterator[Mount]:
    """Yield the mounts of the container; paths of the user have the same place in it.

    Args:
        folder: folder of the cache for this image.
        pip: pip's configuration, whose certificates and local indexes are mounted too.
    """
    request = run.request
    yield Mount(_ROOT, REPOSITORY)
    yield Mount(folder, _CACHE, writable=True)
    if isinstance(run.bucket, DirBucket):
        root = run.bucket.root.absolute()
        staged = root / run.staged.root
        evidence = root / run.staged.evidence
        evidence.mkdir(exist_ok=True)
        for path in (root, staged, evidence):
            yield Mount(path, str(path), writable=path != staged)
    own = (request.rocm, request.also, request.wheelhouse, run.key.file)
    given = [path.absolute() for path in own if path is not None]
    source = parse_source(request.jax_tests) if request.jax_tests else None
    if source is not None and (
        not source.remote or source.location.startswith("file://")
    ):
        given.append(Path(source.location.removeprefix("file://")).absolute())
    for word in " ".join(pip.values()).split():
        place = Path(word)
        if word.startswith("file:///"):
            # The pages of an index may refer to files beside its folder.
            place = Path(word.removeprefix("file://")).parent
        if place.is_absolute() and word != os.devnull and place.exists():
            given.append(place)
    for path in dict.fromkeys(given):
        yield Mount(path, str(path))
