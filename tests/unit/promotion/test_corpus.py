"""The corpus in its parent process.

Declarations, expectations, specs, and the code inside an executable.
"""

from __future__ import annotations

import re
import shutil
import struct
from pathlib import Path
from typing import Any

import pytest

from core.errors import FormatError, GateError
from core.targets import lists
from promotion.corpus import executable
from promotion.corpus import program_catalog as catalog
from promotion.corpus.program_catalog import (
    COMPILES,
    CompileCorpus,
    ExpectationKind,
    load_corpus,
    load_expectations,
)
from promotion.corpus.programs.declaration import Argument, DeclarationError, declare

CORPUS = load_corpus("2026-11-20")
PROGRAMS = ("linalg.svd", "linalg.qr", "nn.attention")
ENTRY = """
[[expectation]]
programs = ["linalg.*"]
targets = ["gfx10*"]
jax = "==0.10.*"
kind = "fails"
error = "GEMM is not supported"
reason = "There is no GEMM."
owner = "XLA"
expires = 2027-01-31
"""


# Programs


def test_argument_parses_xla_notation() -> None:
    assert Argument.parse("bf16[8,128]") == Argument("bfloat16", (8, 128))
    assert Argument.parse("u32[]") == Argument("uint32", ())
    assert Argument.parse("f32[8,16]@data|model,-") == Argument(
        "float32", (8, 16), (("data", "model"), ())
    )


@pytest.mark.parametrize(
    ("arguments", "options", "text"),
    [
        (("f31[8]",), {}, r"x\.y: 'f31\[8\]' is not an argument such as"),
        (
            ("f32[8,8]@data",),
            {"devices": 8},
            "must name one of data, model or - for each dimension",
        ),
        (("f32[8]@data",), {}, "mesh axes need 8 devices"),
        ((), {"devices": 4}, "devices must be 1 or 8"),
        ((), {"corpus": "tiny"}, "corpus must be 'small' or 'full'"),
        ((), {"colour": "red"}, "unexpected keyword argument 'colour'"),
    ],
)
def test_invalid_declaration_is_refused(
    arguments: tuple[str, ...], options: dict[str, Any], text: str
) -> None:
    assert declare("x.y", "f32[8]").arguments == (Argument("float32", (8,)),)
    with pytest.raises(DeclarationError, match=text):
        declare("x.y", *arguments, **options)


@pytest.mark.parametrize(
    ("source", "text"),
    [
        (
            'SHAPE = "f32[8]"\n@program(SHAPE)\ndef f(x):\n    """It."""\n',
            r"group\.f: its declaration must consist of lit",
        ),
        ("def f(:\n", "invalid syntax"),
    ],
)
def test_unreadable_program_is_refused(tmp_path: Path, source: str, text: str) -> None:
    (tmp_path / "group.py").write_text(source)
    with pytest.raises(GateError, match=text):
        catalog.read_programs(tmp_path)


# Expectations


def load(
    tmp_path: Path,
    text: str,
    *,
    schema: str = "schema = 1\n",
    today: str = "2027-01-31",
) -> CompileCorpus:
    file = tmp_path / "expectations.toml"
    file.write_text(schema + text)
    entries = load_expectations(file, programs=PROGRAMS, today=today)
    return CompileCorpus(programs=(), specs={}, expectations=entries, digest="")


def test_expectation_applies_to_programs_targets_and_versions(tmp_path: Path) -> None:
    known = load(tmp_path, ENTRY)
    found = known.expectation("linalg.svd", "gfx1030", "0.10.2")
    assert found.kind == ExpectationKind.FAILS
    assert found.error == "GEMM is not supported"
    assert not found.expired
    assert (
        known.expectation(
            "linalg.svd", "gfx1030:xnack-", "0.10.3.dev20270101+rocm7.2.0"
        )
        == found
    )
    for program, target, jax in (
        ("nn.attention", "gfx1030", "0.10.2"),
        ("linalg.svd", "gfx1030", "0.12.0"),
        ("linalg.svd", "gfx942", "0.10.2"),
    ):
        assert known.expectation(program, target, jax) is COMPILES


def test_expectation_expires_after_its_last_day(tmp_path: Path) -> None:
    assert (
        load(tmp_path, ENTRY, today="2027-02-01")
        .expectation("linalg.svd", "gfx1030", "0.10.2")
        .expired
    )


WRONG = [
    ("programs", 'programs = ["linalg.lu"]', "matches none of the programs"),
    ("programs", 'programs = "linalg.svd"', r"\[0\]\.programs: expected array"),
    ("targets", 'targets = ["gfx906"]', "matches none of the targets"),
    ("jax", 'jax = "0.10"', r"\[0\]\.jax: invalid specifier"),
    ("kind", 'kind = "ignored"', r"\[0\]\.kind: "),
    ("kind", "", "kind must be"),
    ("error", "", "entry 1: error is required"),
    ("expires", 'expires = "soon"', r"\[0\]\.expires: "),
    ("expires", "", "entry 1: expires is missing"),
    ("owner", 'owner = "XLA"\nsince = 2026', r"unknown keys: .*\[0\]\.since"),
]


@pytest.mark.parametrize(("key", "line", "text"), WRONG)
def test_invalid_expectation_is_refused(
    tmp_path: Path, key: str, line: str, text: str
) -> None:
    with pytest.raises(FormatError, match=rf"expectations\.toml: .*{text}"):
        load(tmp_path, re.sub(rf"^{key} = .*$", line, ENTRY, flags=re.MULTILINE))


# Specs and digest


def fields(text: str) -> list[str]:
    return re.findall(r"^\s*(\w+)", re.sub(r"#.*", "", text), re.MULTILINE)


def test_each_xla_target_has_a_complete_spec() -> None:
    assert set(CORPUS.specs) == set(lists()["compiler-supported"])
    complete = fields(CORPUS.specs["gfx942"])
    assert len(complete) > 20
    for target, text in CORPUS.specs.items():
        assert fields(text) == complete, target
        assert re.search(r'gcn_arch_name: "(\w+)', text)[1] == target  # type: ignore[index]


@pytest.mark.parametrize(
    "name", ["child.py", "expectations.toml", "programs/lax.py", "specs/new.txtpb"]
)
def test_digest_changes_with_every_file(tmp_path: Path, name: str) -> None:
    folder = shutil.copytree(
        catalog.FOLDER,
        tmp_path / "corpus",
        ignore=shutil.ignore_patterns("__pycache__"),
    )
    assert catalog.digest(folder) == catalog.digest()
    with (folder / name).open("a") as file:
        file.write("\n")
    assert catalog.digest(folder) != catalog.digest()


# Code inside an executable


def code(payload: bytes = b"kernel", machine: int = executable.EM_AMDGPU) -> bytes:
    """Return an ELF file with one section with content and one without.

    Its section headers are in the middle.
    """
    headers = struct.pack(
        "<IIQQQQ24x",
        0,
        1,
        0,
        0,
        64 + 128,
        len(payload),
    )
    headers += struct.pack(
        "<IIQQQQ24x",
        0,
        executable.SHT_NOBITS,
        0,
        0,
        64,
        1 << 40,
    )
    head = struct.pack(
        "<16sHHIQQQIHHHHHH",
        executable.ELF_MAGIC,
        3,
        machine,
        1,
        0,
        0,
        64,
        0,
        64,
        0,
        0,
        64,
        2,
        0,
    )
    return head + headers + payload


def riegeli(*chunks: bytes, kind: bytes = b"r") -> bytes:
    """Return a Riegeli/records file with a chunk for each argument."""
    stream = executable.SIGNATURE[24:]
    for data in chunks:
        stream += (
            bytes(8)
            + struct.pack("<QQQQ", len(data), 0, kind[0] | 1 << 8, len(data))
            + data
        )
    size = executable.BLOCK - executable.BLOCK_HEADER
    blocks = [stream[at : at + size] for at in range(0, len(stream), size)]
    return (
        executable.SIGNATURE[:24]
        + blocks[0]
        + b"".join(b"block header is 24 bytes" + block for block in blocks[1:])
    )


def plain(data: bytes) -> bytes:
    return b"\0\x01\x07" + data


def varint(value: int) -> bytes:
    return (
        bytes([value])
        if value < 128
        else bytes([value & 127 | 128]) + varint(value >> 7)
    )


def literal(data: bytes) -> bytes:
    """Return data in Snappy format without any compression."""
    return varint(len(data)) + b"\xf8" + (len(data) - 1).to_bytes(3, "little") + data


def test_code_objects_finds_code_in_every_container() -> None:
    first = code(b"one")
    second = code(b"twice" * 99)
    data = b"noise" + first + code(machine=62) + b"\x7fELF" + second + b"noise"
    packed = b"s\x01\x07" + varint(len(data)) + literal(data)
    for wrapped in (
        data,
        b"header" + riegeli(plain(data)) + b"what follows" * 9,
        riegeli(packed),
        riegeli(plain(b""), plain(riegeli(packed))),
        riegeli(plain(data[:50]), plain(data[50:])),
    ):
        assert executable.code_objects(wrapped) == [first, second]


def test_code_objects_joins_blocks() -> None:
    long = code(bytes(range(256)) * 1000)
    assert executable.code_objects(riegeli(plain(long))) == [long]


def test_snappy_decompresses_copies() -> None:
    # A literal, then copies with one, two and four bytes of distance, of which the last
    # overlaps itself.
    data = (
        b"\x16"  # noqa: ISC003
        + b"\x0cabcd"
        + bytes([(4 - 4) << 2 | 1, 4])
        + b"\x0e\x04\x00"
        + bytes([9 << 2 | 3, 1, 0, 0, 0])
    )
    assert executable.snappy(data, 22) == b"abcd" + b"abcd" + b"abcd" + b"dddddddddd"


@pytest.mark.parametrize(
    ("wrapped", "text"),
    [
        (code()[:-1], "a code object in the serialised executable is truncated"),
        (code()[:70], "the serialised executable is truncated"),
        (riegeli(b"z\x01\x07" + b"zstd"), "the unknown compression 'z'"),
        (riegeli(b"any", kind=b"t"), "a chunk of unknown type 't'"),
        (
            riegeli(b"s\x01\x07" + varint(9) + literal(b"short")),
            "has 5 bytes unpacked, not 9",
        ),
        (
            riegeli(b"s\x01\x07\x04\x04" + bytes([1, 9])),
            "a Snappy buffer in the serialised executable is damaged",
        ),
    ],
)
def test_damaged_executable_is_refused(wrapped: bytes, text: str) -> None:
    with pytest.raises(executable.ExecutableError, match=text):
        executable.code_objects(wrapped)
