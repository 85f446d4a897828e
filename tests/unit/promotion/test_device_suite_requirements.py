"""Requirements of JAX's suite, and helpers copied from its checkout."""

from __future__ import annotations

from pathlib import Path

import pytest

from promotion.gates.device.suite_requirements import (
    copy_test_helpers,
    release_mismatch,
)
from tests.support.files import write_files


def test_release_mismatch_notes_other_release(tmp_path: Path) -> None:
    assert release_mismatch(tmp_path, "0.10.2") == ""
    write_files(tmp_path, {"jax/version.py": 'import os\n\n_version = "0.10.2"\n'})
    assert release_mismatch(tmp_path, "0.10.2") == ""
    assert "belongs to jax 0.10.2 but tests jax 0.9.1" in release_mismatch(
        tmp_path, "0.9.1"
    )


@pytest.fixture
def trees(tmp_path: Path) -> tuple[Path, Path]:
    """Return a checkout of JAX, and site-packages with a jax that lacks test helpers."""
    files = {
        "jax/__init__.py": "checkout",
        "jax/_src/__init__.py": "",
        "jax/_src/core.py": "checkout",
        "jax/_src/deep_test_util.py": (
            "from jax._src import core\nfrom jax._src.late import schedule\n"
        ),
        "jax/_src/late/__init__.py": "",
        "jax/_src/late/schedule.py": "from . import rules\nfrom .odd import nothing\n",
        "jax/_src/late/rules.py": "import jax._src.core\nimport numpy\n",
        "jax/_src/never_asked_for.py": "",
        "tests/a_test.py": (
            "import jax\n\ndef test():\n    from jax._src import deep_test_util as"
            " util\n"
        ),
        "tests/deep/b_test.py": "from jax._src.core import Jaxpr\n",
        "tests/odd_test.py": "def (:\n",
    }
    own = dict.fromkeys(
        ("jax/__init__.py", "jax/_src/__init__.py", "jax/_src/core.py"), "wheel"
    )
    return write_files(tmp_path / "checkout", files), write_files(
        tmp_path / "site", own
    )


def test_copy_test_helpers_copies_only_missing_imports(
    trees: tuple[Path, Path],
) -> None:
    checkout, site = trees
    assert copy_test_helpers(checkout, site) == (
        "jax/_src/deep_test_util.py",
        "jax/_src/late/__init__.py",
        "jax/_src/late/rules.py",
        "jax/_src/late/schedule.py",
    )
    assert (site / "jax/_src/deep_test_util.py").read_text() == (
        checkout / "jax/_src/deep_test_util.py"
    ).read_text()
    assert [
        (site / "jax" / name).read_text() for name in ("__init__.py", "_src/core.py")
    ] == ["wheel", "wheel"]
    assert not (site / "jax/_src/never_asked_for.py").exists()
    assert copy_test_helpers(checkout, site) == ()
