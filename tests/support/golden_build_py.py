"""Golden files with the arguments of build.py for the releases that are built from source.

`python -m tests.support.golden_build_py` rewrites them. Each release has two: one for
the simplest request, and one for a build from source with every option.
"""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import product
from pathlib import Path

from packaging.version import Version

from ci_build.wheelset.source import pins
from ci_build.wheelset.source.build_py import IN_CONTAINER, build_commands
from core.model import BuildRequest, GfxTarget, Payload, RocmVersion, to_json
from core.source_request import (
    Checkout,
    Remote,
    SourceInputs,
    SourceRequest,
)
from core.versions import set_version

_RECORDED = [name for name, row in pins.load_pins().pins.items() if row.xla]
RELEASES = ("0.8.0", "0.10.2", max(_RECORDED, key=Version))
"""The oldest release, a published one, and the newest that `ci_build sources` has read."""
FOLDER = Path(__file__).parents[1] / "data" / "golden" / "build_py"
OWN = "0123456789abcdef0123456789abcdef01234567"


def inputs(jax_version: str, *, full: bool = False) -> SourceInputs:
    """Return the resolved inputs of `request`."""
    pinned = pins.pins_for(jax_version)
    interface = pins.interface_for(jax_version)
    assert pinned is not None
    name, commit = (
        ("rocm-jax", pinned.rocm_jax)
        if interface.kind is pins.BuildRepository.ROCM_JAX
        else ("jax", pinned.jax)
    )
    sources: tuple[Checkout, ...] = (
        Checkout(name=name, url=pins.repository_url(name), commit=commit),
    )
    if full:
        own_tree = Checkout(name="jax", folder="/home/me/jax", commit=pinned.jax)
        others = tuple(checkout for checkout in sources if checkout.name != "jax")
        xla = Checkout(
            name="xla",
            url=pins.repository_url(interface.xla_repository),
            commit="c" * 40,
        )
        sources = (*others, own_tree, xla)
    return SourceInputs(
        sources=sources,
        jax_commit=pinned.jax,
        xla_commit="c" * 40 if full else pinned.xla,
        epoch=pinned.epoch,
        own_commit=OWN,
        rocm="a" * 64,
        builder="sha256:" + "b" * 64,
    )


def inputs_of(asked: BuildRequest) -> SourceInputs:
    """Return the resolved inputs of a request from `request`, which may have been changed."""
    assert asked.source is not None
    return inputs(
        asked.jax_version, full=any(tree.folder for tree in asked.source.sources)
    )


def request(jax_version: str, *, full: bool = False) -> BuildRequest:
    """Return a request for a release with pinned sources.

    Args:
        full: add jaxlib, another XLA, remote execution and caches.
    """
    trees = tuple(
        replace(tree, commit="") if tree.folder else tree
        for tree in inputs(jax_version, full=full).sources
    )
    source = SourceRequest(sources=trees)
    if full:
        source = replace(
            source,
            xla="c" * 40,
            jaxlib=True,
            remote=Remote(endpoint="grpcs://executors.example:443"),
            bazelrc="/home/me/rbe/rbe.bazelrc",
            cache="grpcs://cache.example:443",
        )
    return BuildRequest(
        payload=Payload.SOURCE,
        jax_version=jax_version,
        rocm_version=RocmVersion(text="7.10.0a20251120"),
        python_versions=("3.12", "3.13"),
        targets=(
            GfxTarget.parse("gfx942"),
            GfxTarget.parse("gfx950"),
            GfxTarget.parse("gfx1100"),
        ),
        source=source,
    )


def text(jax_version: str, *, full: bool) -> str:
    """Return the expected content of a golden file."""
    asked = request(jax_version, full=full)
    commands = build_commands(asked, inputs_of(asked), set_version(asked), IN_CONTAINER)
    return json.dumps([to_json(command) for command in commands], indent=1) + "\n"


def files() -> dict[Path, str]:
    """Return the content of every golden file."""
    return {
        FOLDER / f"{release}{'-full' if full else ''}.json": text(release, full=full)
        for release, full in product(RELEASES, (False, True))
    }


if __name__ == "__main__":
    FOLDER.mkdir(parents=True, exist_ok=True)
    for path, content in files().items():
        path.write_text(content, encoding="utf-8")
