"""Requirements of JAX's suite, and helpers copied from its checkout."""

from __future__ import annotations

from pathlib import Path

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


def test_copy_test_helpers_copies_what_the_wheel_lacks(tmp_path: Path) -> None:
    files = (
        "jax/core.py",
        "jax/_src/deep_test_util.py",
        "jax/_src/late/rules.py",
        "jax/_src/package.py",
        "jax/_src/module/inside.py",
        "tests/a_test.py",
    )
    own = ("jax/core.py", "jax/_src/package/__init__.py", "jax/_src/module.py")
    checkout = write_files(tmp_path / "checkout", dict.fromkeys(files, "checkout"))
    site = write_files(tmp_path / "site", dict.fromkeys(own, "wheel"))
    assert copy_test_helpers(checkout, site) == (
        "jax/_src/deep_test_util.py",
        "jax/_src/late/rules.py",
    )
    assert (site / "jax/_src/deep_test_util.py").read_text() == "checkout"
    assert (site / "jax/core.py").read_text() == "wheel"
    assert copy_test_helpers(checkout, site) == ()
