"""Platform tags of repaired wheels."""

import pytest

from wheelkit.repair.platform_tags import excluded_line


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
