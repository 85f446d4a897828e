"""AITER's host code of decoding, interpreted: `csrc/py_itfs_cu/asm_pa.cu` and `asm_mla.cu`.

Declarations, assignments, conditions and the names of kernels occur in it, which are evaluated as Python.
"""

from __future__ import annotations

import ast
import csv
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from tests.support.kernels_fake.aiter_host import Launch, Statement, pack, parse

_NAMES = {"f16": "Half", "bf16": "BFloat16", "s8": "Char", "f8e4m3fn": "Float8_e4m3fn"}
_NAMES["f8e4m3fnuz"] = "Float8_e4m3fnuz"
_SIZES = {"f16": 2, "bf16": 2, "f32": 4, "s32": 4}
_TYPES = SimpleNamespace(**{name: name for name in (*_NAMES.values(), "Byte")})
_DECLARED = re.compile(r"(?:const )?(std::string|int|float|bool|size_t|uint32_t) (\w+)(?:\s*=\s*(.*))?", re.DOTALL)
_KERNEL = re.compile(r'static AiterAsmKernel \w+\(\s*"(\w+)",\s*"([\w/.]+)"\)', re.DOTALL)


@dataclass(frozen=True)
class HostTensor:
    """A contiguous tensor of AITER's host code, or an optional one; its methods are those of torch."""

    kind: str
    shape: tuple[int, ...]
    address: int

    def size(self, at: int) -> int:
        """Return a size."""
        return self.shape[at]

    def stride(self, at: int) -> int:
        """Return a stride in elements."""
        return int(np.prod(self.shape[at + 1 :], dtype=np.int64))

    def itemsize(self) -> int:
        """Return the bytes of an element."""
        return _SIZES.get(self.kind, 1)

    def dtype(self) -> str:
        """Return the name of the dtype."""
        return _NAMES.get(self.kind, self.kind)

    def data_ptr(self) -> int:
        """Return the address."""
        return self.address

    def value(self) -> HostTensor:
        """Return the tensor itself."""
        return self

    def has_value(self) -> bool:
        """Return True."""
        return True


class NoTensor:
    """An optional tensor without a value."""

    def __bool__(self) -> bool:
        """Return False."""
        return False

    def has_value(self) -> bool:
        """Return False."""
        return False


@cache
def _source(path: Path) -> str:
    return re.sub(r"//.*|/\*.*?\*/", "", path.read_text(encoding="utf-8"))


@cache
def _body(path: Path, function: str, end: str) -> list[Statement]:
    """Return the statements of a function before a text."""
    match = re.search(rf"(?:void|torch::Tensor) {function}\(.*?\)\s*{{", _source(path), re.DOTALL)
    assert match is not None
    text, found, _ = _source(path)[match.end() :].partition(end)
    assert found, f"{end} is not in {path}"
    return parse(text + "}")


def _python(text: str) -> str:
    text = text.replace("(uint32_t)", "")
    text, casts = re.subn(r"\((?:float|double)\)", "", text)
    if not casts:
        text = text.replace("/", "//")
    text = re.sub(r"^(.+?)\s*\?(.+):(.+)$", r"(\2) if (\1) else (\3)", text.replace("::", "."), flags=re.DOTALL)
    for old, new in (("&&", " and "), ("||", " or "), ("nullptr", "0"), ("\n", " ")):
        text = text.replace(old, new)
    return re.sub(r"!(?!=)", " not ", text).strip()


def _run(statements: list[Statement], env: dict[str, Any], kinds: dict[str, str]) -> None:
    for statement in statements:
        if not isinstance(statement, str):
            for condition, body in statement:
                if not condition or eval(_python(condition), env):
                    _run(body, env, kinds)
                    break
        elif match := _KERNEL.fullmatch(statement):
            env["kernel"] = match.groups()
        elif match := _DECLARED.fullmatch(statement):
            kinds[match[2]] = match[1]
            if match[3]:
                _assign(match[2], match[3], env, kinds)
        elif match := re.fullmatch(r"args\.(\w+)\s*=\s*(.*)", statement, re.DOTALL):
            env["args"][match[1]] = eval(_python(match[2]), env)
        elif (match := re.fullmatch(r"(\w+)\s*=\s*(.*)", statement, re.DOTALL)) and match[1] in kinds:
            _assign(match[1], match[2], env, kinds)


def _assign(name: str, text: str, env: dict[str, Any], kinds: Mapping[str, str]) -> None:
    value = eval(_python(text), env)
    if kinds[name] == "float":
        value = float(np.float32(value))
    env[name] = int(value) if kinds[name] == "uint32_t" else value


def _values(path: Path, function: str, end: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return all variables at the end of a function; `args` are the fields that it set."""
    env: dict[str, Any] = {"at": SimpleNamespace(ScalarType=_TYPES), "args": {}}
    env |= {"sqrt": np.sqrt, "log2f": np.log2, "sizeof": len, "true": True, "false": False, **given}
    _run(_body(path, function, end), env, {})
    return env


def _grid(path: Path, function: str, env: dict[str, Any]) -> tuple[int, int, int]:
    text = _source(path)[_source(path).index(f" {function}(") :]
    match = re.search(r"launch_kernel\({&args,\s*&arg_size,(.*?)stream}", text, re.DOTALL)
    assert match is not None
    x, y, z, *block = (int(eval(_python(one), env)) for one in match[1].split(",") if one.strip())
    assert block == [256, 1, 1]
    return x, y, z


def paged(hsa: Path, gfx: str, given: Mapping[str, Any], precision: int) -> tuple[list[Launch], str]:
    """Return what AITER may launch for `pa_fwd`, of which the order of a hash table chooses, and the reason if nothing.

    Args:
        hsa: AITER's folder hsa.
        gfx: processor.
        given: parameters of the function.
        precision: high_precision.
    """
    path = hsa.parent / "csrc" / "py_itfs_cu" / "asm_pa.cu"
    fp8 = {"gfx942": "Float8_e4m3fnuz", "gfx950": "Float8_e4m3fn"}[gfx]
    log2e = float(np.float32(math.log2(np.float32(math.e))))  # log2f(expf(1)) of the C library
    env = _values(path, "pa_fwd", "CFG* config_map", {**given, "f_log2E": log2e, "torch_fp8": fp8})
    chosen = {name: env.get(name) for name in ("q_type", "kv_type", "mtp", "msk", "block_size")}
    rows = _candidates(path, hsa / gfx / "pa" / "pa_asm.csv", {**chosen, "gqa": env["gqa_ratio"], "hp": precision})
    arguments, grid = pack(_source(path), "KernelArgs", env["args"]), _grid(path, "pa_fwd", env)
    found = [Launch(file=row["knl_file"], symbol=row["knl_name"], arguments=arguments, grid=grid) for row in rows]
    return found, "" if found else f"no kernel for {chosen}"


def _candidates(path: Path, table: Path, wanted: dict[str, Any]) -> list[dict[str, str]]:
    """Return the rows of the table that get_heuristic_kernel's condition allows first."""
    text = _source(path)
    condition = re.search(r"if\((cfg\.q_type.*?block_size)\)", text, re.DOTALL)
    group = re.search(r"gqa_flags = {gqa, (.*?)};", text)
    several = "mtp_flags = (mtp > 0) ? std::vector<int>{mtp, 1} : std::vector<int>{0};"
    assert condition is not None
    assert group is not None
    assert several in text
    with table.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    for mtp in [wanted["mtp"], 1] if wanted["mtp"] > 0 else [0]:
        for gqa in (wanted["gqa"], eval(_python(group[1]), dict(wanted))):
            found = [row for row in rows if eval(_python(condition[1]), wanted | _config(row, mtp, gqa))]
            if found:
                return found
    return []


def _config(row: Mapping[str, str], mtp: int, gqa: int) -> dict[str, Any]:
    numbers = {"gqa": "Gqa", "mtp": "Mtp", "msk": "Msk", "hp": "Hp", "block_size": "blkSz"}
    cfg = SimpleNamespace(q_type=row["qType"], kv_type=row["kvType"], **{n: int(row[c]) for n, c in numbers.items()})
    return {"cfg": cfg, "mtp_": mtp, "gqa_": gqa}


def latent(hsa: Path, given: Mapping[str, Any]) -> Launch | None:
    """Return what AITER launches for `mla_decode_stage1_asm_fwd`; None if it has no kernel."""
    path, function = hsa.parent / "csrc" / "py_itfs_cu" / "asm_mla.cu", "mla_decode_stage1_asm_fwd"
    try:
        env = _values(path, function, "impl_ptr->launch_kernel", given)
    except NameError:  # sub_Q is not set
        return None
    symbol, file = env["kernel"]
    arguments = pack(_source(path), "KernelArgs", env["args"])
    return Launch(file=file, symbol=symbol, arguments=arguments, grid=_grid(path, function, env))


def splits_of(hsa: Path, units: int) -> Callable[..., tuple[int, int, Any]]:
    """Return get_meta_param of AITER's mla.py for a GPU with these compute units."""
    path = hsa.parent.parent / "aiter" / "mla.py"
    tree = ast.parse(path.read_text(encoding="utf-8"))
    (found,) = (one for one in tree.body if isinstance(one, ast.FunctionDef) and one.name == "get_meta_param")
    found.decorator_list = []
    torch = SimpleNamespace(arange=lambda *_, **__: None, int=int)
    env: dict[str, Any] = {"torch": torch, "dtypes": SimpleNamespace(fp8="fp8"), "get_cu_num": lambda: units}
    exec(compile(ast.Module([found], []), str(path), "exec"), env)
    function: Callable[..., tuple[int, int, Any]] = env["get_meta_param"]
    return function
