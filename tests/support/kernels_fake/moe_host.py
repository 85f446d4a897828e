"""AITER's host code for a mixture of experts, interpreted: kernels, their arguments and their grid.

The functions are C++ in `csrc/py_itfs_cu/asm_topksoftmax.cu` and `asm_fmoe.cu`. Only conditions, assignments and
constructions of kernels occur in them, which are evaluated as Python.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tests.support.kernels_fake.aiter_host import Launch, Statement, pack, parse
from tests.support.kernels_fake.calls import SIZES, Tensor


@dataclass(frozen=True)
class TorchTensor:
    """A contiguous tensor as AITER's host code sees it."""

    tensor: Tensor

    def size(self, at: int) -> int:
        """Return a dimension."""
        return self.tensor.shape[at]

    def numel(self) -> int:
        """Return the number of elements."""
        count = 1
        for size in self.tensor.shape:
            count *= size
        return count

    def stride(self, at: int) -> int:
        """Return the elements from one entry of a dimension to the next."""
        count = 1
        for size in self.tensor.shape[at + 1 :]:
            count *= size
        return count

    def element_size(self) -> int:
        """Return the bytes of an element."""
        return SIZES[self.tensor.dtype]

    def data_ptr(self) -> int:
        """Return the address."""
        return self.tensor.address

    def has_value(self) -> bool:
        """Return true: the argument is given."""
        return True

    def value(self) -> TorchTensor:
        """Return the tensor of an optional argument."""
        return self


ABSENT = SimpleNamespace(has_value=lambda: False)
"""An optional argument that is not given."""


@cache
def _source(hsa: Path, file: str) -> str:
    text = (hsa.parent / "csrc" / "py_itfs_cu" / file).read_text(encoding="utf-8")
    return re.sub(r"//.*|/\*.*?\*/", "", text).replace("if constexpr(", "if(")


def _body(hsa: Path, file: str, function: str) -> list[Statement]:
    text = _source(hsa, file)
    match = re.search(rf"void {function}\([^{{]*\)\s*{{", text)
    assert match is not None, f"{function} is not there"
    return parse(text[match.end() :])


def _python(text: str) -> str:
    text = re.sub(r"\(void\*\)|static_cast<int>", "", " ".join(text.split()))
    text = re.sub(r"std::is_same<T, (\w+)>::value", r'T == "\1"', text)
    text = re.sub(r"sizeof\((\w+)\)", r'sizeof["\1"]', text)
    for old, new in (("this->", "this."), ("&&", " and "), ("nullptr", "0"), (" / ", " // ")):
        text = text.replace(old, new)
    if " ? " in text:
        condition, _, rest = text.partition(" ? ")
        first, _, second = rest.partition(" : ")
        text = f"({first}) if ({condition}) else ({second})"
    return text


def _run(statements: Sequence[Statement], env: dict[str, Any]) -> None:
    for statement in statements:
        if not isinstance(statement, str):
            for condition, body in statement:
                if not condition or eval(_python(condition), env):
                    _run(body, env)
                    break
        elif match := re.match(r'static AiterAsmKernel \w+\("(\w+)",\s*"/?([^"]+)"\)', statement):
            env["kernel"] = match.groups()
        elif match := re.match(r"args\.(\w+)\s*=\s*([^=].*)", statement, re.DOTALL):
            env["args"].__dict__[match[1]] = eval(_python(match[2]), env)
        elif match := re.match(r"(\w+) \*= (\w+)$", statement):
            env[match[1]] *= int(match[2])
        elif match := re.match(r"(?:const )?(?:uint32_t|uint|int)?\s*(\w+)\s*=\s*(?![=&\s])(.*)", statement, re.DOTALL):
            env[match[1]] = eval(_python(match[2]), env)


def _launch(env: dict[str, Any], kernel: tuple[str, str], source: str, grid: tuple[int, int, int]) -> Launch:
    arguments = pack(source, "KernelArgs", vars(env["args"]))
    return Launch(file=kernel[1], symbol=kernel[0], arguments=arguments, grid=grid)


def topk_softmax(hsa: Path, gating: Tensor, weights: Tensor, ids: Tensor, *, renormalize: bool) -> Launch | None:
    """Return what topk_softmax_asm launches; None if it has no kernel. The file is relative to hsa/gfx942."""
    file = "asm_topksoftmax.cu"
    env: dict[str, Any] = {"args": SimpleNamespace(), "kernel": None, "need_renorm": renormalize}
    env |= {
        "gating_output": TorchTensor(gating),
        "topk_weights": TorchTensor(weights),
        "topk_indices": TorchTensor(ids),
    }
    _run(_body(hsa, file, "topk_softmax_asm"), env)
    return _launch(env, env["kernel"], _source(hsa, file), (env["gdx"], 1, 1)) if env["kernel"] else None


@dataclass(frozen=True, kw_only=True)
class FmoeKernel:
    """A kernel of fmoe, as the constructor of AITER's FMoeKernel gets it.

    Attributes:
        symbol, file: its name, and its file relative to hsa/<gfx>.
        tile: inner numbers of a block.
        stay: blocks that stay on the GPU, 0 for none.
    """

    symbol: str
    file: str
    tile: int = 512
    stay: int = 0


def fmoe_kernels(
    hsa: Path, gfx: str, table: str, inner: int, blocks: int, units: int, *, vskip: bool = True
) -> list[FmoeKernel]:
    """Return the kernels that get_heuristic_kernel (asm_fmoe.cu) may choose for its defaults, without smooth scales.

    It takes the fewest rounds, then the fewest idle units, then a kernel that stays; AITER chooses among equal ones by
    the order of a hash table.

    Args:
        table: path of the CSV below hsa/<gfx>/fmoe.
        inner: inner dimension.
        blocks: blocks of sorted rows.
        units: compute units.
        vskip: value of AITER_ENABLE_VSKIP.
    """
    path = hsa / gfx / "fmoe" / table
    found: dict[tuple[int, int, int], list[FmoeKernel]] = {}
    with path.open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            tile, stays = int(row["subGU_n"]), int(row["ps"])
            if (row["vskip"], row["smf"]) != (str(int(vskip)), "0") or inner % tile:
                continue
            groups = inner // tile * blocks
            rounds = -(-groups // units)
            name = f"fmoe/{Path(table).parent}/{row['knl_file']}"
            stay = int(row["tg_num_perCU"]) * units * stays
            one = FmoeKernel(symbol=row["knl_name"], file=name, tile=tile, stay=stay)
            found.setdefault((rounds, rounds * units - groups, -stays), []).append(one)
    return found[min(found)] if found else []


def fmoe(hsa: Path, kernel: FmoeKernel, tensors: Mapping[str, Tensor], topk: int) -> Launch:
    """Return what FMoeKernel::launch_kernel (asm_fmoe.cu) launches.

    Args:
        tensors: arguments by name; absent ones are not given.
    """
    file = "asm_fmoe.cu"
    quantised = "input_dqn" in tensors
    env: dict[str, Any] = {name: TorchTensor(one) for name, one in tensors.items()}
    env |= {name: ABSENT for name in ("input_dqn", "w1_dqn", "w2_dqn", "w2_smooth_qnt") if name not in tensors}
    this = SimpleNamespace(sub_GU=kernel.tile, num_persistent_tgs=kernel.stay)
    env |= {"args": SimpleNamespace(), "this": this, "topk": topk, "is_int4": False, "switchGxy": False}
    sizes = {"uint8_t": 1, "uint16_t": 2, "float": 4}
    env["T"] = "uint8_t" if quantised else "uint16_t"
    env["sizeof"] = sizes | {"T": sizes[env["T"]], "T_O": 2, "args": 0}
    _run(_body(hsa, file, "launch_kernel"), env)
    grid = (env["gdx"], env["gdy"], env["gdz"])
    return _launch(env, (kernel.symbol, kernel.file), _source(hsa, file), grid)
