"""`ci_build attest` with the packages that it needs, where there is no identity: one clear line, nothing changed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from promotion.dirbucket import DirBucket
from tests.promoting import objects, staged_in
from tests.support import make_wheels

pytestmark = pytest.mark.network
ROOT = Path(__file__).resolve().parents[2]
UV = Path(sys.executable).with_name("uv")


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Python with what the lock of `attest` names, and nothing else."""
    folder = tmp_path_factory.mktemp("attest") / "venv"
    subprocess.run([UV, "venv", "-q", "--python", sys.executable, folder], check=True)
    lock = ROOT / "build" / "requirements-attest.lock"
    python = folder / "bin" / "python"
    done = subprocess.run(
        [UV, "pip", "install", "-q", "--python", python, "--require-hashes", "-r", lock],
        capture_output=True,
        text=True,
        check=False,
    )
    if "Failed to fetch" in done.stderr:
        pytest.skip(f"package index not reachable for uv: {done.stderr.splitlines()[-1]}")
    assert done.returncode == 0, done.stderr
    return python


def test_without_an_identity_one_line_says_what_to_do(python: Path, tmp_path: Path) -> None:
    bucket = DirBucket(tmp_path / "bucket")
    wheels = make_wheels(tmp_path / "w", pythons=("3.12",))
    staged = staged_in(bucket, tmp_path, wheels, python_versions=("3.12",))
    before = objects(bucket, "v2-staging/")
    services = ("GITHUB_", "ACTIONS_", "GITLAB_", "CIRCLE", "BUILDKITE", "SIGSTORE", "CLOUDSDK", "GOOGLE")
    env = {name: value for name, value in os.environ.items() if not name.startswith(services)}
    done = subprocess.run(
        [python, "-m", "ci_build.cli", "attest", str(staged), "--bucket", str(bucket.root)],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        env=env,
    )
    assert (done.returncode, done.stdout) == (18, "")
    assert done.stderr == (
        "error: There is no identity here that Sigstore knows. Run it in a CI job that has one;"
        " on GitHub Actions the job needs `permissions: id-token: write`.\n"
    )
    assert objects(bucket, "v2-staging/") == before


def test_everything_that_signing_uses_is_there(python: Path) -> None:
    """The names that `promotion.attest` takes from the packages, which no other test reaches."""
    code = (
        "import inspect\n"
        "from pypi_attestations import *\n"
        "from sigstore.models import ClientTrustConfig\n"
        "from sigstore.oidc import IdentityToken\n"
        "from sigstore.sign import SigningContext\n"
        "attestations = [Attestation.model_construct()]\n"
        "publisher = GitHubPublisher(repository='o/n', workflow='w.yml')\n"
        "GitLabPublisher(repository='o/n', workflow_filepath='ci.yml')\n"
        "Distribution(name='a-1-py3-none-any.whl', digest='0' * 64)\n"
        "assert list(inspect.signature(Attestation.sign).parameters) == ['signer', 'dist']\n"
        "assert list(inspect.signature(Attestation.verify).parameters)[1:3] == ['identity', 'dist']\n"
        "assert isinstance(Attestation.certificate_claims, property)\n"
        "assert {'version', 'attestation_bundles'} == set(Provenance.model_fields)\n"
        "assert {'publisher', 'attestations'} == set(AttestationBundle.model_fields)\n"
        "ClientTrustConfig.production, SigningContext.from_trust_config, SigningContext.signer, IdentityToken\n"
    )
    subprocess.run([python, "-c", code], check=True, capture_output=True, text=True)
