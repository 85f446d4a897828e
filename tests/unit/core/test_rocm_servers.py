"""Servers of AMD's ROCm builds."""

import pytest

from core.defaults import defaults
from core.errors import InputError
from core.rocm_servers import (
    load_servers,
    naming_successor,
    package_server,
    successor_line,
)

SEED = (
    "https://rocm.nightlies.amd.com/tarball/"
    "therock-dist-linux-gfx94X-dcgpu-7.10.0a20251120.tar.gz"
)


@pytest.mark.parametrize(
    ("url", "newer"),
    [
        (SEED, "https://nightly.repo.amd.com/rocm/core/tarball/"),
        (
            "https://rocm.nightlies.amd.com/v2/gfx1151/",
            "https://nightly.repo.amd.com/rocm/whl-next/",
        ),
        ("https://rocm.devreleases.amd.com/v2/", "https://dev.repo.amd.com/rocm/"),
    ],
)
def test_error_about_old_server_names_its_successor(url: str, newer: str) -> None:
    with (
        pytest.raises(InputError) as caught,
        naming_successor(url),
    ):
        raise InputError("404.", hint="Check the URL.")
    assert caught.value.hint.startswith("Check the URL. https://rocm.")
    assert newer in caught.value.hint


def test_current_and_unknown_servers_have_no_successor() -> None:
    assert successor_line("https://example.org/rocm.tar.gz") == ""
    for server in load_servers().values():
        if not server.successor:
            assert successor_line(f"{server.url}x") == ""


def test_successors_are_current_and_default_listing_is_one_of_them() -> None:
    servers = load_servers()
    for server in servers.values():
        if server.successor:
            assert servers[server.successor].successor == ""
    listing = defaults()["build"]["therock_listing"]
    assert listing == servers["nightly-tarballs"].url


@pytest.mark.parametrize(
    ("version", "name"),
    [
        ("7.2.0", None),
        ("7.10.0", "stable-packages-of-families"),
        ("7.13.0", "stable-packages-before-10"),
        ("7.14.1", "stable-packages-before-10"),
        ("10.1.0", "stable-packages"),
        ("10.1.0rc1", "prerelease-packages"),
        ("7.10.0a20251120", "old-nightly-packages-of-families"),
        ("10.1.0a20260822", "old-nightly-packages"),
        ("10.1.0a20260901", "nightly-packages"),
        ("10.2.0.dev0+4d76ea1a1", "dev-packages"),
        ("7.15.0.dev0+4d76ea1a1", None),
    ],
)
def test_form_of_version_gives_package_index(version: str, name: str | None) -> None:
    expected = load_servers()[name] if name else None
    assert package_server(version) == expected
