"""Attacks on a release, by the role of the attacker. Each one is refused with the reason.

Every attack changes a sound set, or its bucket, in one way. Without the attack the set is
promoted.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from core.errors import PromotionBlockedError
from promotion.policy.content_rules import slots
from promotion.storage.directory_bucket import DirBucket
from tests.support.promoting import RELEASED, go, objects, staged_in
from tests.support.wheel_sets import SetWheel, make_wheels, plain, set_wheel

JAXLIB = "jaxlib-0.10.2-cp312-cp312-manylinux_2_28_x86_64.whl"


@dataclass(frozen=True, kw_only=True)
class Scene:
    """A set before it is staged: its wheels, and the names of its other files."""

    folder: Path
    wheels: list[SetWheel]
    files: list[str] = field(default_factory=list)

    def at(self, filename: str) -> int:
        names = [wheel.wheel.filename for wheel in self.wheels]
        return names.index(filename)

    def other_jaxlib(self, name: str) -> None:
        """Replace the jaxlib for Python 3.12 by one with other bytes and this file name."""
        made = plain("jaxlib", "0.10.2", tag="cp312-cp312-manylinux_2_28_x86_64")
        made.files["jaxlib/evil.py"] = b"evil = True\n"
        wheel = set_wheel(made, self.folder)
        disguised = replace(wheel.wheel, filename=name)
        self.wheels[self.at(JAXLIB)] = SetWheel(data=wheel.data, wheel=disguised)


@dataclass(frozen=True, kw_only=True)
class Attack:
    """An attack of somebody who builds sets.

    Attributes:
        says: words of the refusal.
        promoted: whether a sound set was promoted before.
    """

    name: str
    change: Callable[[Scene], None]
    says: str
    promoted: bool = True


def jaxlib(name: str) -> Callable[[Scene], None]:
    return lambda scene: scene.other_jaxlib(name)


def file(name: str) -> Callable[[Scene], None]:
    return lambda scene: scene.files.append(name)


PLATFORM = "cp312-cp312-manylinux_2_28_x86_64.whl"
BUILDER = (
    Attack(
        name="build tag",
        change=jaxlib(f"jaxlib-0.10.2-9-{PLATFORM}"),
        says="has the build tag 9",
    ),
    Attack(
        name="build tag with letters",
        change=jaxlib(f"jaxlib-0.10.2-1a-{PLATFORM}"),
        says="has the build tag 1a",
        promoted=False,
    ),
    Attack(
        name="capital letters",
        change=jaxlib(f"JaxLib-0.10.2-{PLATFORM}"),
        says="not spelled in its normal form, jaxlib-",
    ),
    Attack(
        name="another project's spelling",
        change=jaxlib(f"jax.lib-0.10.2-{PLATFORM}"),
        says="is recorded as jaxlib",
    ),
    Attack(
        name="further platform tag",
        change=jaxlib(
            "jaxlib-0.10.2-cp312-cp312-manylinux_2_28_x86_64.manylinux2014_x86_64.whl"
        ),
        says="has 2 platform tags",
        promoted=False,
    ),
    Attack(
        name="other bytes under the same name",
        change=jaxlib(JAXLIB),
        says="is not the file that the index released for jaxlib 0.10.2",
    ),
    Attack(
        name="other bytes with another manylinux tag",
        change=jaxlib("jaxlib-0.10.2-cp312-cp312-manylinux_2_27_x86_64.whl"),
        says=f"jaxlib 0.10.2, cp312-cp312-x86_64: {JAXLIB}",
    ),
    Attack(
        name="other bytes for every Linux",
        change=jaxlib("jaxlib-0.10.2-cp312-cp312-linux_x86_64.whl"),
        says=f"jaxlib 0.10.2, cp312-cp312-x86_64: {JAXLIB}",
    ),
    Attack(
        name="other bytes with a longer version",
        change=jaxlib(f"jaxlib-0.10.2.0-{PLATFORM}"),
        says="is recorded as jaxlib 0.10.2",
    ),
    Attack(
        name="two files for one Python in one set",
        change=lambda scene: scene.wheels.append(_twin(scene)),
        says="is not the file that the index released for jaxlib 0.10.2",
        promoted=False,
    ),
    Attack(
        name="forged report",
        change=file("report-0000.html"),
        says="a name for files that the index writes",
        promoted=False,
    ),
    Attack(
        name="forged summary",
        change=file("summary-0000.json"),
        says="summary-0000.json, a name for files",
        promoted=False,
    ),
    Attack(
        name="forged requirements with a foreign index",
        change=file("requirements-3.99.txt"),
        says="requirements-3.99.txt, a name for files",
        promoted=False,
    ),
)


def _twin(scene: Scene) -> SetWheel:
    """Return the jaxlib for Python 3.12 again, with another manylinux tag."""
    wheel = scene.wheels[scene.at(JAXLIB)]
    name = JAXLIB.replace("2_28", "2_31")
    return SetWheel(data=wheel.data, wheel=replace(wheel.wheel, filename=name))


@pytest.mark.parametrize("attack", [pytest.param(a, id=a.name) for a in BUILDER])
def test_attack_of_builder_is_refused(
    bucket: DirBucket, tmp_path: Path, attack: Attack
) -> None:
    sound = make_wheels(tmp_path / "sound", pythons=("3.12",))
    if attack.promoted:
        go(bucket, staged_in(bucket, tmp_path / "first", sound))
    scene = Scene(folder=tmp_path / "evil", wheels=[*sound])
    scene.folder.mkdir()
    attack.change(scene)
    more = dict.fromkeys(scene.files, b"evil")
    staged = staged_in(bucket, tmp_path / "second", scene.wheels, more=more)
    before = objects(bucket)
    with pytest.raises(PromotionBlockedError) as refused:
        go(bucket, staged)
    assert attack.says in str(refused.value)
    assert objects(bucket) == before


def test_removed_name_stays_taken_without_any_object(
    bucket: DirBucket, tmp_path: Path
) -> None:
    """The ledger remembers names; whoever empties the bucket frees none."""
    sound = make_wheels(tmp_path / "sound", pythons=("3.12",))
    go(bucket, staged_in(bucket, tmp_path / "first", sound))
    for key in [*bucket.list(f"{RELEASED.root}packages/")]:
        stored = bucket.head(key)
        assert stored is not None
        bucket.delete(key, sha256=stored.sha256)
    scene = Scene(folder=tmp_path / "evil", wheels=[*sound])
    scene.folder.mkdir()
    scene.other_jaxlib(JAXLIB)
    staged = staged_in(bucket, tmp_path / "second", scene.wheels)
    with pytest.raises(PromotionBlockedError, match="is not the file that the index"):
        go(bucket, staged)


def test_slots_expand_tags() -> None:
    found = slots("a_b-1.0.0-py2.py3-none-any.whl")
    assert sorted(map(str, found)) == [
        "a-b 1, py2-none-any",
        "a-b 1, py3-none-any",
    ]
    assert slots(JAXLIB) == slots(JAXLIB.replace("manylinux_2_28", "linux"))
