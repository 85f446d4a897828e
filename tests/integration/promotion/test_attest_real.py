"""Attestations with the real libraries.

Signed through a private Sigstore on loopback, verified, and refused.

`ci_build set attest` signs with sigstore's own client; sigstore's own verifier verifies
with the private instance's trust, which it reads from a file in the real format. No
public service is used.
"""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from core.errors import BucketError, PromotionBlockedError
from promotion.evidence.attestations import provenance_name
from promotion.stage import read_staged
from promotion.storage.directory_bucket import DirBucket
from promotion.storage.object_keys import StagedSet
from tests.support.fake_sigstore import FakeSigstore, serving
from tests.support.machine import uv_environment
from tests.support.promoting import RELEASED, staged_in
from tests.support.wheel_sets import make_wheels

pytestmark = pytest.mark.network
ROOT = Path(__file__).resolve().parents[3]
UV = Path(sys.executable).with_name("uv")
SERVICES = (
    "GITHUB_",
    "ACTIONS_",
    "GITLAB_",
    "CIRCLE",
    "BUILDKITE",
    "SIGSTORE",
    "CLOUDSDK",
    "GOOGLE",
)
ME = (
    ".github/workflows/release.yml of https://github.com/owner/name at refs/heads/main"
    " (issuer https://token.actions.githubusercontent.com)"
)
Provenance = dict[str, Any]


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a Python with only the packages of the lock file for `set attest`."""
    folder = tmp_path_factory.mktemp("attest") / "venv"
    subprocess.run([UV, "venv", "-q", "--python", sys.executable, folder], check=True)
    lock = ROOT / "build" / "requirements-attest.lock"
    python = folder / "bin" / "python"
    done = subprocess.run(
        [
            UV,
            "pip",
            "install",
            "-q",
            "--python",
            python,
            "--require-hashes",
            "-r",
            lock,
        ],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **uv_environment()},
    )
    if "Failed to fetch" in done.stderr:
        pytest.skip(
            f"package index not reachable for uv: {done.stderr.splitlines()[-1]}"
        )
    assert done.returncode == 0, done.stderr
    return python


@dataclass(frozen=True)
class Cli:
    """Runner of `ci_build` from a checkout, with the packages and one identity."""

    python: Path
    checkout: Path = ROOT

    def __call__(
        self, *words: object, env: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        kept = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(SERVICES)
        }
        # Loopback only: any other address fails at once.
        nowhere = dict.fromkeys(
            ("HTTP_PROXY", "HTTPS_PROXY", "https_proxy", "http_proxy"),
            "http://127.0.0.1:9",
        )
        loopback = {"NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1"}
        argv = [*map(str, words)]
        environment = {
            **kept,
            **nowhere,
            **loopback,
            **(env or {}),
        }
        return subprocess.run(
            [self.python, "-m", "ci_build.cli", *argv],
            capture_output=True,
            text=True,
            check=False,
            cwd=self.checkout,
            env=environment,
        )


@pytest.fixture(scope="module")
def cli(python: Path) -> Cli:
    return Cli(python)


@dataclass(frozen=True)
class Attested:
    """A staged set with wheels attested in a job, and its Sigstore's trust."""

    bucket: DirBucket
    staged: StagedSet
    trust: Path

    @property
    def own(self) -> list[str]:
        """Return the names of the wheels that `set attest` signs."""
        wheels = read_staged(self.bucket, self.staged).wheels
        return sorted(wheel.filename for wheel in wheels if not wheel.as_published)

    def download(
        self, folder: Path, damages: Mapping[str, Callable[[Provenance], object]]
    ) -> None:
        """Write wheels and their provenance, with the damage of each, into a new folder."""
        folder.mkdir()
        for name, damage in damages.items():
            provenance = json.loads(
                self.bucket.get(self.staged.file(provenance_name(name)))
            )
            damage(provenance)
            (folder / provenance_name(name)).write_text(json.dumps(provenance))
            (folder / name).write_bytes(self.bucket.get(self.staged.file(name)))


@pytest.fixture(scope="module")
def attested(cli: Cli, tmp_path_factory: pytest.TempPathFactory) -> Attested:
    folder = tmp_path_factory.mktemp("attested")
    bucket = DirBucket(folder / "bucket")
    sigstore = FakeSigstore()
    staged = staged_in(bucket, folder, make_wheels(folder / "w", pythons=("3.12",)))
    made = Attested(bucket, staged, folder / "trust.json")
    with serving(sigstore) as env:
        made.trust.write_text(json.dumps(sigstore.trust_config()))
        words = (
            "set",
            "attest",
            staged,
            "--bucket",
            bucket.root,
            "--trust-config",
            made.trust,
        )
        done = cli(*words, "--json", env=env)
        assert done.returncode == 0, done.stderr
        said = json.loads(done.stdout)
        assert said["set"] == str(staged)
        assert sorted(said["attested"]) == made.own
        again = cli(*words, env=env)
        assert again.returncode == 0
        assert again.stderr.splitlines()[-1] == "  nothing to attest"
    return made


@pytest.fixture
def staged(tmp_path: Path) -> tuple[DirBucket, StagedSet]:
    """Stage a set without attestations."""
    bucket = DirBucket(tmp_path / "bucket")
    return bucket, staged_in(
        bucket, tmp_path, make_wheels(tmp_path / "w", pythons=("3.12",))
    )


@pytest.fixture(scope="module")
def strict(python: Path, tmp_path_factory: pytest.TempPathFactory) -> Cli:
    """Return the program of a checkout whose policy requires attestations of one workflow."""
    folder = tmp_path_factory.mktemp("checkout")
    for name in (
        "ci_build",
        "core",
        "kernels",
        "promotion",
        "pjrt",
        "plugin",
        "wheelkit",
    ):
        shutil.copytree(
            ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__")
        )
    policy = folder / "promotion" / "policy.toml"
    text = policy.read_text()
    old = 'attestations = { required = [], trust = "any", identities = "any" }'
    assert old in text
    projects = '["jax-rocm{major}-pjrt", "jax-rocm{major}-plugin"]'
    ours = (
        '{ issuer = "https://token.actions.githubusercontent.com", repository ='
        ' "https://github.com/owner/name", workflow = ".github/workflows/release.yml",'
        ' ref = "refs/heads/main" }'
    )
    new = (
        f'attestations = {{ required = {projects}, trust = "any", identities = {{'
        f" release = {ours} }} }}"
    )
    policy.write_text(text.replace(old, new))
    return Cli(python, folder)


def test_attested_set_is_promoted_and_verified(
    strict: Cli, attested: Attested, tmp_path: Path
) -> None:
    bucket = attested.bucket
    names = attested.own
    where = ("--bucket", bucket.root)
    trust = ("--trust-config", attested.trust)
    (tmp_path / "stranger.json").write_text(json.dumps(FakeSigstore().trust_config()))
    stranger = ("--trust-config", tmp_path / "stranger.json")
    doubted = strict("promote", attested.staged, *where, *stranger)
    assert doubted.returncode == PromotionBlockedError.exit_code
    assert (
        f"{names[0]}.provenance is invalid: failed to build timestamp" in doubted.stderr
    )
    looked = strict(
        "set", "attest", attested.staged, "--verify", *where, *trust, "--json"
    )
    assert (looked.returncode, json.loads(looked.stdout)["attested"]) == (
        0,
        {ME: names},
    ), looked.stderr
    asked = strict(
        "ci",
        "policy",
        attested.staged,
        *where,
        *trust,
        "--json",
    )
    assert (asked.returncode, json.loads(asked.stdout)["attested"]) == (
        0,
        {ME: names},
    ), asked.stderr
    done = strict("promote", attested.staged, *where, *trust, "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["attested"] == {ME: names}
    assert f"{ME}: {len(names)} wheels" in bucket.get(RELEASED.overview).decode()
    whole = strict(
        "index",
        "verify",
        "multi-arch",
        *where,
        *trust,
        "--json",
    )
    assert (whole.returncode, json.loads(whole.stdout)["problems"]) == (
        0,
        [],
    ), whole.stderr
    doubted = strict(
        "index",
        "verify",
        "multi-arch",
        *where,
        *stranger,
        "--json",
    )
    assert doubted.returncode == BucketError.exit_code
    assert len(json.loads(doubted.stdout)["problems"]) == len(names)


def attestation(body: Provenance) -> dict[str, Any]:
    found: dict[str, Any] = body["attestation_bundles"][0]["attestations"][0]
    return found


def unchanged(_: Provenance) -> None:
    """Damage nothing."""


def change_statement(body: Provenance) -> None:
    """Change the signed statement in a field that the wheel does not determine."""
    envelope = attestation(body)["envelope"]
    statement = json.loads(base64.b64decode(envelope["statement"]))
    envelope["statement"] = base64.b64encode(
        json.dumps({**statement, "predicate": {"at": 1}}).encode()
    ).decode()


def log_twice(body: Provenance) -> None:
    entries = attestation(body)["verification_material"]["transparency_entries"]
    entries.append(entries[0])


def claim_other_publisher(body: Provenance) -> None:
    body["attestation_bundles"][0]["publisher"]["repository"] = "owner/other"


def test_attest_verify_reports_damaged_attestations(
    cli: Cli, attested: Attested, tmp_path: Path
) -> None:
    damages = dict(
        zip(
            attested.own,
            (change_statement, log_twice, claim_other_publisher),
            strict=True,
        )
    )
    attested.download(tmp_path / "wheels", damages)
    done = cli(
        "set",
        "attest",
        tmp_path / "wheels",
        "--verify",
        "--trust-config",
        attested.trust,
        "--json",
    )
    assert done.returncode == PromotionBlockedError.exit_code, done.stderr
    reasons = (
        "DSSE: invalid signature",
        "an attestation must have exactly one entry",
        "Certificate's OIDCSourceRepositoryURI",
    )
    said = json.loads(done.stdout)
    assert said["attested"] == {}
    for name, reason, problem in zip(
        attested.own, reasons, said["problems"], strict=True
    ):
        assert problem.startswith(f"{name}.provenance is invalid: {reason}")


# Failures of the environment


def test_attest_with_unusable_sigstore_stores_nothing(
    cli: Cli, staged: tuple[DirBucket, StagedSet], tmp_path: Path
) -> None:
    """Its services do not exist, or the file names none."""
    bucket, one = staged
    sigstore = FakeSigstore()
    trust = tmp_path / "trust.json"
    with serving(FakeSigstore()) as env:
        for config, code, text in (
            (sigstore.trust_config(), 18, "error: Sigstore failed: "),
            (sigstore.trusted_root(), 2, "cannot be read"),
        ):
            trust.write_text(json.dumps(config))
            done = cli(
                "set",
                "attest",
                one,
                "--bucket",
                bucket.root,
                "--trust-config",
                trust,
                env=env,
            )
            assert done.returncode == code
            assert text in done.stderr.splitlines()[-1]
    assert not list(bucket.root.rglob("*.provenance"))


def test_attest_verify_refuses_invalid_trust_config(
    cli: Cli, attested: Attested, tmp_path: Path
) -> None:
    attested.download(tmp_path / "wheels", {attested.own[0]: unchanged})
    (tmp_path / "trust.json").write_text("{}")
    done = cli(
        "set",
        "attest",
        tmp_path / "wheels",
        "--verify",
        "--trust-config",
        tmp_path / "trust.json",
    )
    assert done.returncode == 2
    assert "trust.json cannot be read" in done.stderr


def test_attest_verify_offline_uses_cached_public_root(
    cli: Cli, attested: Attested, tmp_path: Path
) -> None:
    """The public root is part of the packages, and does not contain the private instance."""
    attested.download(tmp_path / "wheels", {attested.own[0]: unchanged})
    home = {
        "HOME": str(tmp_path),
        "XDG_CACHE_HOME": str(tmp_path / "c"),
        "XDG_DATA_HOME": str(tmp_path / "d"),
    }
    done = cli(
        "set",
        "attest",
        tmp_path / "wheels",
        "--verify",
        "--json",
        env=home,
    )
    assert done.returncode == PromotionBlockedError.exit_code, done.stderr
    said = json.loads(done.stdout)
    assert said["notes"] == [
        "Sigstore's trust root could not be updated; the cached one is used."
    ]
    assert (
        "is invalid: failed to build timestamp certificate chain" in said["problems"][0]
    )
    nowhere = dict.fromkeys(home, "/dev/null")
    done = cli("set", "attest", tmp_path / "wheels", "--verify", env=nowhere)
    assert done.returncode == 18
    assert done.stdout == ""
    assert "error: Sigstore's trust root cannot be read: " in done.stderr
