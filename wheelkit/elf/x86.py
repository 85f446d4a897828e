"""Machine code of x86-64 libraries: instruction sets that functions use, and functions that were damaged.

Source: System V ABI, x86-64 supplement (micro-architecture levels).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from wheelkit.elf import constants
from wheelkit.elf.functions import Functions, constructors, function_problems
from wheelkit.elf.reader import ElfImage
from wheelkit.elf.release_build import build_problems

try:
    from iced_x86 import CpuidFeature, Decoder, EncodingKind, Instruction, Mnemonic
except ImportError:  # it has wheels for x86-64 machines only
    CAN_DECODE = False
else:
    CAN_DECODE = True
    _LEVEL_3 = frozenset({CpuidFeature.AVX2, CpuidFeature.FMA, CpuidFeature.BMI1, CpuidFeature.BMI2})
    _LEVEL_4 = frozenset(value for name, value in vars(CpuidFeature).items() if name.startswith("AVX512"))
    _FLOAT_MODE = frozenset({Mnemonic.LDMXCSR, Mnemonic.VLDMXCSR})

_WHOLE = 8 << 20
"""Size of .text in bytes up to which all functions are decoded; of larger libraries, evenly distributed ones."""
_SAMPLE = 1 << 19
_PADDING = 16
"""Number of bytes at the end of a function that may be padding, such as an odd zero byte."""
_DISPATCH = (b"\x0f\x01\xd0", ("__cpu_model", "__cpu_indicator_init"))
"""The instruction xgetbv, and symbols of libgcc, with which programs find out whether AVX can be used."""


@dataclass(frozen=True, kw_only=True, slots=True)
class MachineCode:
    """Decoded functions of a library.

    Attributes:
        functions: number of decoded functions.
        avx2: addresses of instructions of AVX2, FMA or BMI; at most one for each function.
        avx512: addresses of instructions of AVX-512; at most one for each function.
        unknown: addresses at which functions cannot be decoded.
        whole: whether all functions were decoded.
        dispatches: whether code asks the processor which instructions it has.
        defects: code of a finding and clause for each defect of the functions.
    """

    functions: int
    avx2: tuple[int, ...]
    avx512: tuple[int, ...]
    unknown: tuple[int, ...]
    whole: bool
    dispatches: bool
    defects: tuple[tuple[str, str], ...] = ()


def read_code(image: ElfImage) -> MachineCode | None:
    """Decode the functions of an x86-64 library; None without a table of its functions (.eh_frame_hdr).

    No function is decoded on machines that are not x86-64.

    Raises:
        ElfError: the file is damaged.
    """
    functions = Functions.read(image) if image.machine == constants.EM_X86_64 else None
    if functions is None:
        return None
    text, (xgetbv, symbols) = functions.text, _DISPATCH
    whole = text.size <= _WHOLE
    chosen = list(functions.ranges(1 if whole else text.size // _SAMPLE)) if CAN_DECODE else []
    found: dict[str, list[int]] = {"avx2": [], "avx512": [], "unknown": []}
    for start, stop in chosen:
        for kind, address in _first(image, functions, start, stop).items():
            found[kind].append(address)
    dispatches = image.data.find(xgetbv, text.offset, text.offset + text.size) >= 0 or any(
        name in symbols for _, name in image.dynamic_symbols()
    )
    defects = [
        *function_problems(image, functions, assembly=dispatches), *_float_mode(image, functions),
        *build_problems(image),
    ]  # fmt: skip
    return MachineCode(
        functions=len(chosen), avx2=tuple(found["avx2"]), avx512=tuple(found["avx512"]),
        unknown=tuple(found["unknown"]), whole=whole, dispatches=dispatches, defects=tuple(defects),
    )  # fmt: skip


def _first(image: ElfImage, functions: Functions, start: int, stop: int) -> dict[str, int]:
    """Return the addresses of the first AVX2 instruction, the first AVX-512 instruction and the first invalid bytes."""
    found: dict[str, int] = {}
    for instruction in _instructions(image, functions, start, stop):
        if instruction.is_invalid:
            if stop - instruction.ip > _PADDING:
                found["unknown"] = instruction.ip
            break
        if instruction.encoding != EncodingKind.LEGACY:
            features = set(instruction.cpuid_features())
            if features & _LEVEL_4:
                found.setdefault("avx512", instruction.ip)
            elif features & _LEVEL_3:
                found.setdefault("avx2", instruction.ip)
    return found


def _float_mode(image: ElfImage, functions: Functions) -> Iterator[tuple[str, str]]:
    """Yield a clause about the first constructor that sets the float mode, as with -ffast-math."""
    for start, stop in map(functions.range_of, constructors(image) if CAN_DECODE else ()):
        if any(one.mnemonic in _FLOAT_MODE for one in _instructions(image, functions, start, stop)):
            yield "load-flags-wrong", f"has a constructor at {start:#x} that sets the float mode of the process"
            return


def _instructions(image: ElfImage, functions: Functions, start: int, stop: int) -> Iterator[Instruction]:
    """Decode the instructions between two addresses."""
    shift = functions.text.offset - functions.text.address
    return iter(Decoder(64, image.data[start + shift : stop + shift], ip=start))
