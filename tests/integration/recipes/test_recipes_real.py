"""The recipes on published wheels.

The members match the promises, and the planned repair succeeds.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.support import fake_site


def test_loader_runs_on_every_python(pythons: dict[str, Path], tmp_path: Path) -> None:
    fake_site.install(tmp_path, "pjrt", 7, fake_site.build_info())
    fake_site.install(tmp_path, "plugin", 7, fake_site.build_info())
    code = (
        "import jax_plugins.xla_rocm7 as loader, jax_rocm7_plugin as plugin,"
        " pathlib;from jax_plugins.xla_rocm7 import _gpus; _gpus.ROOT ="
        " pathlib.Path('none');print(loader.reasons()[0][:20],"
        " loader.reasons(need_gpu=False)[0][:26], plugin.__version__)"
    )
    for version in sorted({"3.11", "3.12", "3.13", "3.14"} & pythons.keys()):
        done = subprocess.run(
            [pythons[version], "-W", "error", "-c", code],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )
        assert (
            done.stdout
            == "no AMD GPU was found Not installed: jax, jaxlib 0.10.2+rocm7.2.0\n"
        ), done.stderr
