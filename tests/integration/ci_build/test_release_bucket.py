"""`ci_build release --bucket`.

A set of small wheels from its build to its users, and everything that stops it.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ci_build import cli
from ci_build.release import index_authority as authority
from core.errors import MachineError, PromotionBlockedError, RequestError
from core.number_ranges import NO_NUMBERS
from promotion.index.ledger import read_ledger
from promotion.index.publish import read_head
from promotion.storage.directory_bucket import DirBucket
from promotion.storage.object_keys import ReleasedIndex
from tests.support.nights import INDEX, Nights, nights, small_release

__all__ = ["nights", "small_release"]

NIGHTLY = ("--channel=nightly",)


def test_release_promotes_and_appends_its_summary(
    nights: Nights,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path / "s.md"))
    (tmp_path / "s.md").write_text("earlier step\n")
    assert nights.run("release", *NIGHTLY, "--json") == 0, capsys.readouterr().err
    said = json.loads(capsys.readouterr().out)
    (one,) = said["sets"]
    assert one["state"] == "promoted"
    assert one["entry"] == 1
    assert one["baseline"] == ""
    assert one["error"] == ""
    assert one["set"].startswith(f"{INDEX}/")
    assert [(row["target"], row["before"], row["now"]) for row in one["targets"]] == [
        ("gfx942", "none", "device"),
        ("gfx950", "none", "device"),
    ]
    assert one["checks"] == {"pip": "passed", "uv": "passed"}
    serve, install = one["install"]
    assert f" index serve 8000 --bucket {nights.bucket}" in serve
    assert " http://127.0.0.1:8000/v2/multi-arch/simple/ " in install
    text = (tmp_path / "s.md").read_text()
    assert text.startswith("earlier step\n## release multi-arch, channel nightly, ")
    assert "| gfx942 | none | device | - |" in text


def test_release_blocked_by_policy_ends_with_its_exit_code(
    nights: Nights, capsys: pytest.CaptureFixture[str]
) -> None:
    policy = nights.folder / "policy.toml"
    policy.write_text(
        policy.read_text().replace(
            'required_targets = ["gfx942", "gfx950"]', 'required_targets = ["gfx1100"]'
        )
    )
    assert nights.run("release", *NIGHTLY, "--json") == PromotionBlockedError.exit_code
    (one,) = json.loads(capsys.readouterr().out)["sets"]
    assert one["state"] == "blocked"
    assert any("gfx1100" in text for text in one["blocked_by"])
    assert not (nights.bucket / "v2").exists()


def test_release_from_changed_checkout_names_who_permits_it(
    nights: Nights, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(authority, "_git_status", lambda _: None)
    assert nights.run("release", *NIGHTLY, "--allow-unprotected", "me", "tests") == 0
    (entry,) = read_ledger(DirBucket(nights.bucket), ReleasedIndex(index=INDEX)).entries
    assert entry.source is not None
    assert (entry.source.owner, entry.channel) == ("me", "nightly")
    assert entry.key


def test_release_without_python_for_gates_builds_nothing(nights: Nights) -> None:
    nights.has_python = False
    assert nights.run("release", *NIGHTLY) == MachineError.exit_code
    assert not [*nights.bucket.iterdir()]


def test_release_requires_bucket_or_local(nights: Nights) -> None:
    assert nights.run("release", bucket=False) == RequestError.exit_code


def test_release_never_promotes_withdrawn_set_again(
    nights: Nights, capsys: pytest.CaptureFixture[str]
) -> None:
    assert nights.run("release", *NIGHTLY) == 0
    words = ["index", "rollback", INDEX, "0", "--reason=wrong"]
    assert cli.run([*words, f"--bucket={nights.bucket}"]) == 0
    capsys.readouterr()
    assert nights.run("release", *NIGHTLY, "--json") == 0
    (one,) = json.loads(capsys.readouterr().out)["sets"]
    assert one["state"] == "withdrawn"
    assert (
        read_head(DirBucket(nights.bucket), ReleasedIndex(index=INDEX))[0].state.visible
        == NO_NUMBERS
    )


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--bucket=s3://b/p",), "The public URL of s3://b/p is unknown"),
        (("--steps=gates,promote",), "--steps of a release must include build"),
        (("--steps=build,x",), "--steps is invalid: x"),
        (
            ("--steps=build", "--ledger-key=x"),
            "--ledger-key has no effect without the step promote",
        ),
        (
            ("--steps=promote", "--cluster=tls://head:1"),
            "--cluster has no effect without the steps",
        ),
        (("--device-gate=cluster",), "--device-gate=cluster needs --cluster"),
        (
            ("--allow-unprotected", "a", " "),
            "--allow-unprotected requires an owner and a reason.",
        ),
        (("--public-url=ftp://x/",), "--public-url is not an http or https URL"),
        (
            ("--local", "--jax-tests=x", "--steps=build"),
            "--steps, --jax-tests have no effect with --local.",
        ),
    ],
)
def test_release_refuses_bad_options_before_any_work(
    nights: Nights,
    words: tuple[str, ...],
    message: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert nights.run("release", *words) == RequestError.exit_code
    assert message in capsys.readouterr().err
    assert not [*nights.bucket.iterdir()]
