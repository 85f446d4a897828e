"""Attestations with the real libraries: signed through a private Sigstore on loopback, verified, and refused by name.

`ci_build attest` signs with sigstore's own client; sigstore's own verifier verifies with the private instance's trust,
which it reads from a file in the real format. No public service is used.
"""

from __future__ import annotations

import base64
import copy
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from core.errors import BucketError, PromotionBlockedError
from promotion.evidence.provenance import provenance_name
from promotion.stage import read_staged
from promotion.storage.directory_bucket import DirBucket
from promotion.storage.keys import StagedSet
from tests.support.fake_sigstore import FakeSigstore, of_github, serving
from tests.support.machine import uv_environment
from tests.support.promoting import RELEASED, objects, offered, staged_in
from tests.support.wheel_sets import SetWheel, make_wheels

pytestmark = pytest.mark.network
ROOT = Path(__file__).resolve().parents[3]
UV = Path(sys.executable).with_name("uv")
SERVICES = ("GITHUB_", "ACTIONS_", "GITLAB_", "CIRCLE", "BUILDKITE", "SIGSTORE", "CLOUDSDK", "GOOGLE")
ME = ".github/workflows/release.yml of https://github.com/owner/name at refs/heads/main (issuer https://token.actions.githubusercontent.com)"
Provenance = dict[str, Any]


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a Python with only the packages of the lock file for `attest`."""
    folder = tmp_path_factory.mktemp("attest") / "venv"
    subprocess.run([UV, "venv", "-q", "--python", sys.executable, folder], check=True)
    lock = ROOT / "build" / "requirements-attest.lock"
    python = folder / "bin" / "python"
    done = subprocess.run(
        [UV, "pip", "install", "-q", "--python", python, "--require-hashes", "-r", lock],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **uv_environment()},
    )
    if "Failed to fetch" in done.stderr:
        pytest.skip(f"package index not reachable for uv: {done.stderr.splitlines()[-1]}")
    assert done.returncode == 0, done.stderr
    return python


@dataclass(frozen=True)
class Cli:
    """Runner of `ci_build` with the packages, from a checkout, with no identity except the given one."""

    python: Path
    checkout: Path = ROOT

    def __call__(self, *words: object, env: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(SERVICES)}
        # Loopback only: any other address fails at once.
        nowhere = dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY", "https_proxy", "http_proxy"), "http://127.0.0.1:9")
        loopback = {"NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1"}
        argv, environment = [*map(str, words)], {**kept, **nowhere, **loopback, **(env or {})}
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


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> list[SetWheel]:
    return make_wheels(tmp_path_factory.mktemp("wheels"), pythons=("3.12",))


@pytest.fixture(scope="module")
def sigstore() -> FakeSigstore:
    return FakeSigstore()


@pytest.fixture(scope="module")
def trust(sigstore: FakeSigstore, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the private instance's trusted root."""
    path = tmp_path_factory.mktemp("trust") / "trusted_root.json"
    path.write_text(json.dumps(sigstore.trusted_root()))
    return path


@pytest.fixture
def bucket(tmp_path: Path) -> DirBucket:
    return DirBucket(tmp_path / "bucket")


@pytest.fixture
def staged(bucket: DirBucket, tmp_path: Path, wheels: list[SetWheel]) -> StagedSet:
    return staged_in(bucket, tmp_path, wheels)


def own_wheels(bucket: DirBucket, staged: StagedSet) -> dict[str, str]:
    """Return the sha256 of the wheels that `attest` signs, by file name."""
    wheels = read_staged(bucket, staged).wheels
    return {wheel.filename: wheel.sha256 for wheel in wheels if not wheel.as_published}


def test_attest_without_identity_reports_remedy(cli: Cli, bucket: DirBucket, staged: StagedSet) -> None:
    before = objects(bucket, "v2-staging/")
    done = cli("attest", staged, "--bucket", bucket.root)
    assert (done.returncode, done.stdout) == (18, "")
    assert done.stderr == (
        "error: No identity for Sigstore was found. Run it in a CI job with an identity."
        " On GitHub Actions, set `permissions: id-token: write`.\n"
    )
    assert objects(bucket, "v2-staging/") == before


# From signing to a reader


@pytest.fixture(scope="module")
def strict_checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a checkout with a policy that requires attestations of one workflow."""
    folder = tmp_path_factory.mktemp("checkout")
    for name in ("ci_build", "core", "kernels", "promotion", "pjrt", "plugin", "wheelkit"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    policy = folder / "promotion" / "policy.toml"
    text = policy.read_text()
    old = 'attestations = { required = [], trust = "any", identities = "any" }'
    assert old in text
    projects = '["jax-rocm{major}-pjrt", "jax-rocm{major}-plugin"]'
    ours = (
        '{ issuer = "https://token.actions.githubusercontent.com", repository = "https://github.com/owner/name",'
        ' workflow = ".github/workflows/release.yml", ref = "refs/heads/main" }'
    )
    new = f'attestations = {{ required = {projects}, trust = "any", identities = {{ release = {ours} }} }}'
    policy.write_text(text.replace(old, new))
    return folder


def trust_file(bucket: DirBucket, config: Mapping[str, Any]) -> Path:
    path = bucket.root.parent / "trust.json"
    path.write_text(json.dumps(config))
    return path


def attested(cli: Cli, sigstore: FakeSigstore, bucket: DirBucket, staged: StagedSet) -> Path:
    """Attest a set in a job; return the trust configuration."""
    with serving(sigstore, of_github()) as env:
        config = trust_file(bucket, sigstore.trust_config())
        done = cli("attest", staged, "--bucket", bucket.root, "--trust-config", config, "--json", env=env)
        assert done.returncode == 0, done.stderr
        said = json.loads(done.stdout)
        assert (said["set"], sorted(said["attested"])) == (str(staged), sorted(own_wheels(bucket, staged)))
        again = cli("attest", staged, "--bucket", bucket.root, "--trust-config", config, env=env)
        assert (again.returncode, again.stderr.splitlines()[-1]) == (0, "  nothing to attest")
    return config


def test_attest_signed_set_is_promoted_and_verifies(
    cli: Cli, strict_checkout: Path, sigstore: FakeSigstore, bucket: DirBucket, staged: StagedSet, tmp_path: Path
) -> None:
    strict = Cli(cli.python, strict_checkout)
    where = ("--bucket", bucket.root)
    missing = strict("promote", staged, *where)
    assert missing.returncode == PromotionBlockedError.exit_code
    for name in own_wheels(bucket, staged):
        assert (f"{name} has no attestation, which the policy" in missing.stderr) is name.startswith("jax_rocm")
    config = attested(cli, sigstore, bucket, staged)
    names = sorted(own_wheels(bucket, staged))
    looked = strict("attest", staged, "--verify", *where, "--trust-config", config, "--json")
    assert (looked.returncode, json.loads(looked.stdout)["attested"]) == (0, {ME: names}), looked.stderr
    asked = strict("policy", "check", staged, *where, "--trust-config", config, "--json")
    assert (asked.returncode, json.loads(asked.stdout)["attested"]) == (0, {ME: names}), asked.stderr
    done = strict("promote", staged, *where, "--trust-config", config, "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["attested"] == {ME: names}
    assert f"attested by {ME}: {len(names)} wheels" in done.stderr
    assert f"{ME}: {len(names)} wheels" in bucket.get(RELEASED.overview).decode()
    whole = strict("verify", "multi-arch", *where, "--trust-config", config, "--json")
    assert (whole.returncode, json.loads(whole.stdout)["problems"]) == (0, []), whole.stderr
    stranger = bucket.root.parent / "stranger.json"
    stranger.write_text(json.dumps(FakeSigstore().trusted_root()))
    doubted = strict("verify", "multi-arch", *where, "--trust-config", stranger, "--json")
    assert doubted.returncode == BucketError.exit_code
    problems = json.loads(doubted.stdout)["problems"]
    assert len(problems) == len(names)
    assert all(".provenance is invalid: failed to build timestamp" in text for text in problems)
    # A reader who downloaded a wheel and what lies beside it.
    (seen,) = [file for name, file in offered(bucket).items() if name == names[0]]
    (key,) = [key for key in objects(bucket) if key.endswith(f"/{names[0]}")]
    assert seen["provenance"].endswith(".whl.provenance")
    (tmp_path / names[0]).write_bytes(bucket.get(key))
    (tmp_path / provenance_name(names[0])).write_bytes(bucket.get(provenance_name(key)))
    read = strict("attest", tmp_path / names[0], "--verify", "--trust-config", config)
    assert (read.returncode, read.stderr) == (0, f"  {names[0]}: {ME}\n")


def test_invalid_attestation_blocks_without_requirement(
    cli: Cli, sigstore: FakeSigstore, trust: Path, bucket: DirBucket, staged: StagedSet
) -> None:
    name, digest = min(own_wheels(bucket, staged).items())
    side = bucket.root / staged.file(provenance_name(name))
    side.write_text(json.dumps(FakeSigstore().provenance(name, digest)))
    done = cli("promote", staged, "--bucket", bucket.root, "--trust-config", trust)
    assert done.returncode == PromotionBlockedError.exit_code
    assert f"{name}.provenance is invalid:" in done.stderr
    side.write_text(json.dumps(sigstore.provenance(name, digest)))
    done = cli("promote", staged, "--bucket", bucket.root, "--trust-config", trust)
    assert done.returncode == 0, done.stderr


def test_attest_with_unreachable_sigstore_reports_one_line(cli: Cli, bucket: DirBucket, staged: StagedSet) -> None:
    sigstore = FakeSigstore()
    with serving(sigstore, of_github()) as env:
        # Its log does not exist.
        broken = copy.deepcopy(sigstore.trust_config())
        broken["signingConfig"]["rekorTlogUrls"][0]["url"] = "http://127.0.0.1:9"
        config = trust_file(bucket, broken)
        done = cli("attest", staged, "--bucket", bucket.root, "--trust-config", config, env=env)
    assert done.returncode == 18
    assert done.stderr.splitlines()[-1].startswith("error: Sigstore failed: ")
    assert not list(bucket.root.rglob("*.provenance"))


def test_attest_refuses_trusted_root_without_signing_service(
    cli: Cli, trust: Path, sigstore: FakeSigstore, bucket: DirBucket, staged: StagedSet
) -> None:
    with serving(sigstore, of_github()) as env:
        done = cli("attest", staged, "--bucket", bucket.root, "--trust-config", trust, env=env)
    assert done.returncode == 2
    assert "contains no signing service" in done.stderr


# Refused provenance files, by name

WHEEL = "jax_rocm7_pjrt-0.10.2-py3-none-any.whl"
BYTES = b"a wheel"
DIGEST = sha256(BYTES).hexdigest()
OLD = datetime.now(UTC) - timedelta(days=30)


def attestation(body: Provenance) -> dict[str, Any]:
    found: dict[str, Any] = body["attestation_bundles"][0]["attestations"][0]
    return found


def entry(body: Provenance) -> dict[str, Any]:
    found: dict[str, Any] = attestation(body)["verification_material"]["transparency_entries"][0]
    return found


Make = Callable[[FakeSigstore], Provenance | bytes]
"""Creates a provenance file with a private Sigstore."""


def damaged(damage: Callable[[Provenance], object]) -> Make:
    def make(sigstore: FakeSigstore) -> Provenance:
        body = sigstore.provenance(WHEEL, DIGEST)
        damage(body)
        return body

    return make


def made(filename: str = WHEEL, digest: str = DIGEST, claims: Mapping[str, str] | None = None, **how: Any) -> Make:
    return lambda sigstore: sigstore.provenance(filename, digest, claims, **how)


def of_github_repository(repository: str, workflow: str) -> Make:
    """Return provenance that is valid for this repository and workflow."""
    publisher = {"kind": "GitHub", "repository": repository, "workflow": workflow}
    return made(claims=of_github(repository=repository, workflow=workflow), publisher=publisher)


def changed_statement(body: Provenance) -> None:
    """Return a signed statement for this wheel with another time."""
    envelope = attestation(body)["envelope"]
    statement = json.loads(base64.b64decode(envelope["statement"]))
    envelope["statement"] = base64.b64encode(json.dumps({**statement, "predicate": {"at": 1}}).encode()).decode()


def twice_logged(body: Provenance) -> None:
    entries = attestation(body)["verification_material"]["transparency_entries"]
    entries.append(copy.deepcopy(entries[0]))


OTHER_REPOSITORY = {"kind": "GitHub", "repository": "owner/other", "workflow": "release.yml"}
OTHER_ISSUER = {**of_github(), "iss": "https://token.actions.githubusercontent.com.invalid"}
CASES: dict[str, tuple[Make, str]] = {
    "other bytes": (made(digest="0" * 64), "is not the provenance of its wheel"),
    "changed statement": (damaged(changed_statement), "is invalid: DSSE: invalid signature"),
    "foreign certificate": (
        lambda s: FakeSigstore(rekor=s.rekor).provenance(WHEEL, DIGEST),
        "is invalid: failed to build timestamp certificate chain",
    ),
    "expired certificate": (made(start=OLD), "cert is not valid at validation"),
    "foreign log": (
        lambda s: FakeSigstore(fulcio=s.fulcio).provenance(WHEEL, DIGEST),
        "is invalid: invalid log entry: checkpoint",
    ),
    "several log entries": (damaged(twice_logged), "is invalid: an attestation must have exactly one entry"),
    "claims another publisher": (made(publisher=OTHER_REPOSITORY), "is invalid: it names the publisher"),
    "another repository": (of_github_repository("owner/name2", "release.yml"), "was signed by"),
    "another ref": (made(claims=of_github(ref="refs/heads/feature")), "at refs/heads/feature (issuer"),
    "another issuer": (made(claims=OTHER_ISSUER), "is invalid: it names the publisher"),
}


@pytest.fixture(scope="module")
def refusals(
    python: Path,
    strict_checkout: Path,
    sigstore: FakeSigstore,
    trust: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Mapping[str, dict[str, Any]]:
    """Return the output of `attest --verify` for each case, in a separate folder."""
    code = (
        "import json, sys\n"
        "from pathlib import Path\n"
        "from promotion.attest import verify_files\n"
        "from core.model import to_json\n"
        "root, trust = Path(sys.argv[1]), Path(sys.argv[2])\n"
        "said = {path.name: to_json(verify_files(path, 'local', trust)) for path in sorted(root.iterdir())}\n"
        "print(json.dumps(said))\n"
    )
    root = tmp_path_factory.mktemp("cases")
    for name, (make, _) in {**CASES, "good": (made(), "")}.items():
        folder = root / name
        folder.mkdir()
        (folder / WHEEL).write_bytes(BYTES)
        body = make(sigstore)
        text = body if isinstance(body, bytes) else json.dumps(body).encode()
        (folder / provenance_name(WHEEL)).write_bytes(text)
    done = subprocess.run(
        [python, "-c", code, root, trust], capture_output=True, text=True, check=False, cwd=strict_checkout
    )
    assert done.returncode == 0, done.stderr
    said: dict[str, dict[str, Any]] = json.loads(done.stdout)
    return said


def test_attest_verify_accepts_valid_attestation(refusals: Mapping[str, dict[str, Any]]) -> None:
    assert refusals["good"] == {"attested": {ME: [WHEEL]}, "problems": [], "notes": []}


@pytest.mark.parametrize("case", CASES)
def test_attest_verify_refuses_invalid_attestation(refusals: Mapping[str, dict[str, Any]], case: str) -> None:
    problems = refusals[case]["problems"]
    assert len(problems) == 1, problems
    assert problems[0].startswith(f"{WHEEL}.provenance ")
    assert CASES[case][1] in problems[0]


@pytest.mark.parametrize("text", ["{}", "not JSON"])
def test_attest_verify_refuses_invalid_trust_config(cli: Cli, tmp_path: Path, text: str) -> None:
    (tmp_path / "trust.json").write_text(text)
    (tmp_path / WHEEL).write_bytes(BYTES)
    done = cli("attest", tmp_path, "--verify", "--trust-config", tmp_path / "trust.json")
    assert done.returncode == 2
    assert "is not a trust configuration of Sigstore" in done.stderr


def test_attest_verify_offline_uses_cached_public_root(cli: Cli, sigstore: FakeSigstore, tmp_path: Path) -> None:
    """The public root is part of the packages, and does not contain the private instance."""
    (tmp_path / WHEEL).write_bytes(BYTES)
    (tmp_path / provenance_name(WHEEL)).write_text(json.dumps(sigstore.provenance(WHEEL, DIGEST)))
    home = {"HOME": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path / "c"), "XDG_DATA_HOME": str(tmp_path / "d")}
    done = cli("attest", tmp_path / WHEEL, "--verify", "--json", env=home)
    assert done.returncode == PromotionBlockedError.exit_code, done.stderr
    said = json.loads(done.stdout)
    assert said["attested"] == {}
    assert said["notes"] == ["Sigstore's trust root could not be updated; the cached one is used."]
    assert said["problems"][0].startswith(f"{WHEEL}.provenance is invalid: failed to build timestamp certificate chain")


def test_attest_verify_with_unwritable_cache_reports_one_line(cli: Cli, sigstore: FakeSigstore, tmp_path: Path) -> None:
    (tmp_path / WHEEL).write_bytes(BYTES)
    (tmp_path / provenance_name(WHEEL)).write_text(json.dumps(sigstore.provenance(WHEEL, DIGEST)))
    nowhere = dict.fromkeys(("HOME", "XDG_CACHE_HOME", "XDG_DATA_HOME"), "/dev/null")
    done = cli("attest", tmp_path / WHEEL, "--verify", env=nowhere)
    assert (done.returncode, done.stdout) == (18, "")
    assert "error: Sigstore's trust root cannot be read: " in done.stderr
    assert "Give --trust-config." in done.stderr
    assert "Traceback" not in done.stderr
