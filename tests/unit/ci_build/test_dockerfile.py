"""Build arguments that a Dockerfile consumes, and those that it would swallow."""

from __future__ import annotations

import pytest

from ci_build.images.dockerfile import check_arguments, consumed, parse
from ci_build.images.pins import DOCKER
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


def test_consumed_needs_declaration_before_use() -> None:
    assert consumed(FILE) == {"BASE", "TAG", "ONE", "TWO", "LATE"}


@pytest.mark.parametrize("name", ["THREE", "UNUSED", "ABSENT", "one"])
def test_check_arguments_refuses_unused_argument(name: str) -> None:
    with pytest.raises(RequestError, match=rf"it does not use the build argument {name}\."):
        check_arguments(FILE, ["BASE", name], "it")


def test_check_arguments_lists_all_but_proxies() -> None:
    check_arguments(FILE, ["BASE", "HTTP_PROXY", "no_proxy"], "it")
    with pytest.raises(RequestError, match="arguments A, B"):
        check_arguments(FILE, ["B", "A"], "it")


def test_consumed_ignores_arguments_of_other_stages() -> None:
    assert consumed("ARG A\nFROM x\nRUN echo $A") == set()
    assert consumed("FROM x\nARG A\nFROM y\nRUN echo $A") == set()
    assert consumed("FROM x\nRUN echo $A\nARG A") == set()
    assert consumed("FROM x\nARG A\nRUN echo $AB ${A_}") == set()
    assert consumed('FROM x\nARG A\nENV "B=${A}"') == {"A"}


@pytest.mark.parametrize("text", ["# escape=`\nFROM x", "FROM x\nRUN <<EOF\necho\nEOF", "FROM x\nCOPY <<-'E' /a\nE"])
def test_parse_refuses_syntax_of_newer_engines(text: str) -> None:
    with pytest.raises(RequestError, match="The Dockerfile"):
        parse(text)


def test_own_dockerfiles_use_their_arguments() -> None:
    files = sorted(DOCKER.glob("*.Dockerfile"))
    assert files
    for path in files:
        text = path.read_text()
        declared = {i.text.partition("=")[0] for i in parse(text) if i.word == "ARG"}
        assert declared == consumed(text), path
