"""`set adopt`: wheels of any origin as a set, byte for byte; refusals list all reasons."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from ci_build.wheelset import adoption as adopt
from core.errors import BusyError, CiBuildError, InputError, RequestError, WheelSetError
from core.model import RocmVersion, WheelSet
from core.store import hold_lock
from core.wheelset import file_problems, read_set
from promotion.stage import read_staged, stage
from promotion.storage.directory_bucket import DirBucket
from tests.support.made_wheel import MadeWheel, zero_bytes
from tests.support.silent import Silent
from tests.support.wheel_sets import PJRT_LIBRARY, PLUGIN_LIBRARIES, pjrt, plain, plugin

ROCM = RocmVersion(text="7.2.0")


def jaxlib(version: str = "0.10.2", python: str = "312") -> MadeWheel:
    return plain("jaxlib", version, tag=f"cp{python}-cp{python}-manylinux_2_28_x86_64")


def written(folder: Path, *made: MadeWheel) -> list[str]:
    folder.mkdir(parents=True, exist_ok=True)
    return [str(wheel.write(folder)) for wheel in made]


def adopted(
    words: Sequence[str], out: Path, rocm: RocmVersion | None = ROCM
) -> WheelSet:
    return adopt.adopt(words, out=out, rocm=rocm, progress=Silent())


def refused(
    words: Sequence[str],
    out: Path,
    kind: type[CiBuildError] = RequestError,
    **more: Any,
) -> str:
    with pytest.raises(kind) as caught:
        adopted(words, out, **more)
    assert not out.exists(), "nothing half-made"
    return str(caught.value)


def test_adopt_creates_set_that_can_be_staged(tmp_path: Path) -> None:
    words = written(
        tmp_path / "w",
        pjrt(),
        plugin(),
        plugin(python="3.11"),
        jaxlib(),
        jaxlib(python="311"),
    )
    made = adopted(words, tmp_path / "set")
    assert made.request == {"adopted": True}
    assert made.index == "multi-arch"
    assert made.targets == ("gfx942", "gfx950")
    assert made.jax_version == "0.10.2"
    assert made.rocm_version == "7.2.0"
    assert made.pins == {"jax": "0.10.2"}
    assert made.python_versions == ("3.11", "3.12")
    assert all(wheel.as_published for wheel in made.wheels)
    for word in words:
        assert (tmp_path / "set" / Path(word).name).read_bytes() == Path(
            word
        ).read_bytes()
    members = {}
    for wheel in made.wheels:
        members[wheel.filename] = {m.path: m.targets for m in wheel.members}
    assert members[Path(words[0]).name] == {PJRT_LIBRARY: ("gfx942", "gfx950")}
    assert set(PLUGIN_LIBRARIES) <= members[Path(words[1]).name].keys()
    assert read_set(tmp_path / "set") == made
    assert file_problems(tmp_path / "set", made) == {}
    assert set(made.files) == {"constraints.txt"}, (
        "a lock would depend on what an index offers today"
    )
    bucket = DirBucket(tmp_path / "bucket")
    assert read_staged(bucket, stage(bucket, tmp_path / "set")) == made


def test_adopt_same_wheels_give_same_digest(tmp_path: Path) -> None:
    words = written(tmp_path / "w", pjrt(), plugin(), jaxlib())
    first = adopted(words, tmp_path / "a")
    assert adopted([str(tmp_path / "w")], tmp_path / "b").digest == first.digest
    assert (
        adopted(words, tmp_path / "c", RocmVersion(text="7.2.0rc1")).digest
        != first.digest
    )


def test_adopt_without_jaxlib_pins_it(tmp_path: Path) -> None:
    made = adopted(
        written(tmp_path / "w", pjrt("0.10.2.post3"), plugin("0.10.2.post3")),
        tmp_path / "set",
    )
    assert made.jax_version == "0.10.2.post3"
    assert made.pins == {"jax": "0.10.2", "jaxlib": "0.10.2"}


def test_adopt_refuses_zeroed_bytes(tmp_path: Path) -> None:
    """As `set stage` refuses them in a set; a wheel alone has only its RECORD and its CRCs."""
    member = "jax_rocm7_plugin/_prng.so"
    words = written(tmp_path / "w", pjrt(), plugin())
    zero_bytes(Path(words[1]), member)
    message = refused(words, tmp_path / "set", InputError)
    assert message.startswith(f"{words[1]} is damaged: {member}: ")


def test_adopt_refuses_changed_files_of_a_set(tmp_path: Path) -> None:
    words = written(tmp_path / "w", pjrt(), plugin())
    adopted(words, tmp_path / "set")
    other = plugin()
    other.metadata.append("Keywords: another build of the same version")
    other.write(tmp_path / "set")
    message = refused([str(tmp_path / "set")], tmp_path / "again", WheelSetError)
    assert message.startswith(
        f"Files in {tmp_path}/set differ from wheels.json: {other.filename}."
    )
    adopted([str(tmp_path / "set" / other.filename), words[0]], tmp_path / "by name")


@pytest.mark.parametrize(
    ("made", "reason"),
    [
        (
            [pjrt(), plugin(), plugin("0.10.2+rocm7.3.0", python="3.11")],
            "The wheels have 2 different versions: 0.10.2+rocm7.2.0",
        ),
        (
            [pjrt(), plugin(), jaxlib(), jaxlib("0.12.0", "311")],
            "2 different versions of jaxlib: 0.10.2, 0.12.0",
        ),
        ([jaxlib()], "There is no wheel of jax-rocm<N>-pjrt"),
        ([pjrt()], "No wheel has the tag of a Python version"),
    ],
)
def test_adopt_refuses_wheels_that_form_no_set(
    tmp_path: Path, made: list[MadeWheel], reason: str
) -> None:
    assert reason in refused(written(tmp_path / "w", *made), tmp_path / "set")


def test_adopt_refuses_other_files(tmp_path: Path) -> None:
    text = tmp_path / "notes.txt"
    text.write_text("no wheel")
    renamed = tmp_path / "jax_rocm7_pjrt-0.10.2-py3-none-manylinux_2_28_x86_64.whl"
    renamed.write_text("no archive")
    empty = tmp_path / "empty"
    empty.mkdir()
    (foreign,) = written(tmp_path / "w", plain("numpy", "2.4"))
    for word, reason in (
        (text, "Not a wheel: "),
        (renamed, "x86_64.whl: "),
        (tmp_path / "nowhere.whl", "is neither a file nor a folder"),
        (empty, "There is no wheel in"),
        (foreign, "is a wheel of numpy, which cannot be part of a set"),
    ):
        assert reason in refused([str(word)], tmp_path / "set", InputError)


def test_adopt_refuses_unknown_rocm(tmp_path: Path) -> None:
    made = (pjrt(), plugin())
    assert (
        adopted(written(tmp_path / "w", *made), tmp_path / "named", None).rocm_version
        == "7.2.0"
    ), "by Summary"
    for wheel in made:
        wheel.replace("Summary", "JAX (ROCm:unknown)")
    message = refused(written(tmp_path / "unknown", *made), tmp_path / "set", rocm=None)
    assert message.startswith(
        "Neither the compilers nor Summary of jax_rocm7_pjrt-0.10.2"
    )
    assert "Give --rocm-version=7.x.y." in message


def test_adopt_refuses_rocm_that_wheels_contradict(tmp_path: Path) -> None:
    message = refused(
        written(tmp_path / "w", pjrt(), plugin()),
        tmp_path / "set",
        rocm=RocmVersion(text="7.2.1"),
    )
    assert message.startswith(
        "The wheels are not proven to be for ROCm 7.2.1: Summary of jax_rocm7_pjrt-0.10.2"
    )


def test_adopt_refuses_used_folders(tmp_path: Path) -> None:
    words = written(tmp_path / "w", pjrt(), plugin())
    with pytest.raises(RequestError, match="do not belong to a wheel set"):
        adopted(words, tmp_path / "w")
    with hold_lock(tmp_path / ".set.lock"), pytest.raises(BusyError):
        adopted(words, tmp_path / "set")
