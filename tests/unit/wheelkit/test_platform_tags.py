"""Platform tags of repaired wheels."""

import pytest

from wheelkit.repair.platform_tags import excluded_line, promised_platform


@pytest.mark.parametrize(
    ("tags", "platform"),
    [
        (("py3-none-manylinux_2_31_x86_64",), "manylinux_2_31_x86_64"),
        (
            ("py3-none-manylinux_2_31_x86_64", "py3-none-manylinux_2_27_x86_64"),
            "manylinux_2_28_x86_64",
        ),
        (("py3-none-linux_x86_64",), "manylinux_2_28_x86_64"),
    ],
)
def test_promised_platform_is_oldest_tag_from_baseline(
    tags: tuple[str, ...], platform: str
) -> None:
    assert promised_platform(tags) == platform


@pytest.mark.parametrize(
    ("tag", "excluded"),
    [
        ("manylinux_2_28_x86_64", ""),
        ("manylinux_2_27_x86_64.manylinux_2_31_x86_64", ""),
        ("linux_x86_64", ""),
        ("manylinux_2_31_x86_64", "RHEL 8 and Debian 10 cannot"),
        ("manylinux_2_34_x86_64", "Ubuntu 20.04 and Debian 11 cannot"),
    ],
)
def test_excluded_line_names_distributions_of_older_glibc(
    tag: str, excluded: str
) -> None:
    line = excluded_line(f"a-1-py3-none-{tag}.whl")
    assert excluded in line
    assert bool(line) == bool(excluded)
