"""The published payload: pip's arguments, and checks of its report."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ci_build.wheelset import published
from core import pip
from core.errors import InputError
from core.model import RocmVersion
from tests.support.sets import published_request

SHA = "0" * 64


def report(url: str, **archive: Any) -> str:
    item = {
        "metadata": {"name": "Jax_Lib", "version": "1"},
        "download_info": {"url": url, "archive_info": archive},
    }
    return json.dumps({"version": "1", "install": [item]})


@pytest.mark.parametrize(
    ("jax", "rocm", "expected"),
    [
        (
            "0.10.2",
            "99.0.0",
            "jax==0.10.2 jaxlib==0.10.2 jax-rocm99-plugin==0.10.2 jax-rocm99-pjrt==0.10.2",
        ),
        # jax and jaxlib have no post-releases of the plugin.
        (
            "0.9.1.post6",
            "10.0.0",
            "jax==0.9.1 jaxlib==0.9.1 jax-rocm10-plugin==0.9.1.post6 jax-rocm10-pjrt==0.9.1.post6",
        ),
    ],
)
def test_requirements_are_exact(jax: str, rocm: str, expected: str) -> None:
    assert published.requirements(
        published_request(jax_version=jax, rocm_version=RocmVersion(text=rocm))
    ) == tuple(expected.split())


def test_parse_report_drops_credentials() -> None:
    text = report(
        "https://user:secret@index.invalid/x/jax_lib-1%2Blocal-py3-none-any.whl#frag",
        hashes={"sha256": SHA},
    )
    (item,) = pip.parse_report(text)
    assert item.name == "jax-lib"
    assert item.filename == "jax_lib-1+local-py3-none-any.whl"
    assert item.url == "https://index.invalid/x/jax_lib-1%2Blocal-py3-none-any.whl"
    assert item.sha256 == SHA


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("pip broke", "not JSON"),
        ('{"version": "2", "install": []}', "format '2'"),
        (
            report("https://index.invalid/jax-1-py3-none-any.whl"),
            "not a wheel with a sha256",
        ),
        (
            report("https://index.invalid/jax-1.tar.gz", hashes={"sha256": SHA}),
            "not a wheel with a sha256",
        ),
    ],
)
def test_parse_report_refuses_other_reports(text: str, says: str) -> None:
    with pytest.raises(InputError, match=says):
        pip.parse_report(text)


def test_fetch_is_hash_locked() -> None:
    argv = pip.fetch_argv("3.12", Path("r.txt"), Path("d"))
    assert "--require-hashes" in argv
    assert "--no-deps" in argv
    assert "--python-version=3.12" in argv
