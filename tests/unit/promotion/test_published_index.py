"""Files of a released index that are read through its URL."""

from __future__ import annotations

import urllib.error
import urllib.request
from http.client import HTTPMessage
from io import BytesIO
from pathlib import Path

import pytest

from core.errors import InputError
from promotion.index import index_reader as reader
from promotion.index.index_reader import PublishedIndex


def test_larger_file_is_refused_instead_of_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader, "_MAX_BYTES", 1 << 20)
    index = PublishedIndex(f"{tmp_path.as_uri()}/")
    (tmp_path / "status.json").write_bytes(bytes(1 << 20))
    assert len(index.read("status.json")) == 1 << 20
    (tmp_path / "status.json").write_bytes(bytes((1 << 20) + 1))
    with pytest.raises(InputError, match=r"status\.json has more than 1 MiB\."):
        index.read("status.json")


@pytest.mark.parametrize(
    ("old", "new", "refused"), [("https", "http", True), ("https", "https", False)]
)
def test_redirect_from_https_to_http_is_refused(
    old: str, new: str, refused: bool
) -> None:
    request = urllib.request.Request(f"{old}://host.invalid/status.json")
    rest = (
        BytesIO(),
        302,
        "Found",
        HTTPMessage(),
        f"{new}://other.invalid/status.json",
    )
    if refused:
        with pytest.raises(
            urllib.error.HTTPError, match="is not https"
        ):  # an answer, so the network works
            reader._SafeRedirects().redirect_request(request, *rest)
    else:
        assert reader._SafeRedirects().redirect_request(request, *rest) is not None
