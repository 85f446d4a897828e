"""`ci_build index check`."""

from __future__ import annotations

import click

from ci_build.cli.common import State, host_runner, print_json


@click.command("check")
@click.argument("url", metavar="URL")
@click.option("--set", "digest", metavar="DIGEST", help="Set to check, or its first digits; else the newest.")
@click.option("--python", "python", metavar="X.Y,…", help="Pythons to install for; else all that are here.")
@click.option("--json", "as_json", is_flag=True, help="Print the checks as JSON.")
@click.pass_obj
def check(state: State, url: str, digest: str | None, python: str | None, *, as_json: bool) -> None:
    """Install a released set from URL as users do, with pip and with uv, and compare every byte with its ledger.

    URL is that of the simple index, such as https://example.org/v2/multi-arch/simple/.
    """
    from core.errors import GateError
    from promotion.index.published_check import check_published, read_published

    reporter = state.reporter()
    published = read_published(url, digest)
    pythons = None if python is None else [word.strip() for word in python.split(",") if word.strip()]
    checks = tuple(check_published(published, host_runner(reporter), reporter, pythons=pythons))
    if as_json:
        print_json({"url": published.url, "set": published.wheel_set.digest, "checks": checks})
    else:
        for item in checks:
            click.echo(f"{item.outcome}  {item.name}{': ' + item.skipped if item.skipped else ''}")
            for finding in item.findings:
                click.echo(f"  {finding.severity} {finding.code}: {finding.message} {finding.remedy}")
    failed = sum(item.failed for item in checks)
    if failed:
        raise GateError(f"{failed} of {len(checks)} checks of {published.url} failed.", hint="Each says its remedy.")
