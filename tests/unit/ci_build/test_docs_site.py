"""The documentation site replaces only an earlier one, and only as a whole."""

from __future__ import annotations

from pathlib import Path
from unittest.mock import Mock

import pytest

from ci_build.docs import site as site_module
from ci_build.docs.site import build_site, check_out
from core.errors import ProcessError, RequestError
from core.process import ProcessResult
from tests.support.silent import Silent


def test_out_is_no_folder_with_other_files(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    check_out(tmp_path / "new")
    with pytest.raises(RequestError, match="has files that do not belong to a site"):
        check_out(tmp_path)
    with pytest.raises(RequestError, match="is not a folder"):
        check_out(tmp_path / "file")


def test_refused_pages_write_no_site(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("configured_uv", "locked_environment", "write_pages"):
        monkeypatch.setattr(site_module, name, Mock(return_value=tmp_path))
    refused = ProcessResult(returncode=1, stderr="WARNING - a broken link")
    runner = Mock(run=lambda *_, **__: refused)
    with pytest.raises(ProcessError, match="a broken link"):
        build_site(
            Mock(), tmp_path / "out", cache=tmp_path, runner=runner, progress=Silent()
        )
    assert not (tmp_path / "out").exists()
