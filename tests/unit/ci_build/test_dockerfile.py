"""Build arguments that a Dockerfile uses, and arguments that it would ignore."""

from __future__ import annotations

import pytest

from ci_build.images.dockerfile import check_arguments, parse, read_arguments
from ci_build.images.image_pins import DOCKER
from core.errors import RequestError

FILE = """
# syntax is not set
ARG BASE
ARG TAG=latest
FROM ${BASE}:$TAG AS first
ARG ONE
ARG TWO=${ONE}/x
# a comment that uses $THREE
ARG THREE
RUN echo \\
    # between
    ${TWO:-none}
FROM scratch
ARG LATE
COPY --from=first /x /$LATE
RUN echo $ONE
ARG UNUSED
"""


@pytest.mark.parametrize(
    ("text", "used"),
    [
        (FILE, {"BASE", "TAG", "ONE", "TWO", "LATE"}),
        ("ARG A\nFROM x\nRUN echo $A", set()),
        ("FROM x\nRUN echo $A\nARG A", set()),
        ('FROM x\nARG A\nENV "B=${A}"', {"A"}),
    ],
)
def test_read_arguments_needs_use_in_scope_of_declaration(
    text: str, used: set[str]
) -> None:
    assert read_arguments(text)[1] == used


@pytest.mark.parametrize("name", ["THREE", "UNUSED", "ABSENT", "one"])
def test_check_arguments_refuses_unused_argument(name: str) -> None:
    with pytest.raises(
        RequestError, match=rf"it does not use the build argument {name}\."
    ):
        check_arguments(FILE, ["BASE", name], "it")


def test_check_arguments_accepts_proxies() -> None:
    check_arguments(FILE, ["BASE", "HTTP_PROXY", "no_proxy"], "it")


@pytest.mark.parametrize(
    "text",
    ["# escape=`\nFROM x", "FROM x\nRUN <<EOF\necho\nEOF", "FROM x\nCOPY <<-'E' /a\nE"],
)
def test_parse_refuses_syntax_of_newer_engines(text: str) -> None:
    with pytest.raises(RequestError, match="The Dockerfile"):
        list(parse(text))


def test_own_dockerfiles_use_their_arguments() -> None:
    files = sorted(DOCKER.glob("*.Dockerfile"))
    assert files
    for path in files:
        declared, used = read_arguments(path.read_text())
        assert declared == used, path
