"""The documentation site replaces only an earlier one."""

from __future__ import annotations

from pathlib import Path

import pytest

from ci_build.docs.site import check_out
from core.errors import RequestError


def test_out_is_no_folder_with_other_files(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    check_out(tmp_path / "new")
    with pytest.raises(RequestError, match="has files that do not belong to a site"):
        check_out(tmp_path)
    with pytest.raises(RequestError, match="is not a folder"):
        check_out(tmp_path / "file")
