"""AITER's host code of attention backward, interpreted: the kernel it chooses, its arguments and its grid.

The functions are C++ in `hsa/<gfx>/fmha_v3_bwd/codegen.py`; the structures are there and in `csrc/include/mha_bwd.h`.
Only conditions, assignments and returns occur in them, which are evaluated as Python.
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

_SIZES = {"p1": 4, "p2": 8, "p3": 12, "float": 4, "unsigned int": 4, "int": 4}
_MASKS = SimpleNamespace(no_mask=0, mask_top_left=1, mask_bottom_right=2, window_generic=3)
Statement = str | list[tuple[str, list[Any]]]
"""A simple statement, or the branches of an if: condition (empty for else) and statements."""


@dataclass(frozen=True, kw_only=True)
class Launch:
    """A kernel that AITER launches.

    Attributes:
        file: name of the code object.
        symbol: name of the kernel in it.
        arguments: packed arguments.
        grid: number of blocks.
    """

    file: str
    symbol: str
    arguments: bytes
    grid: tuple[int, int, int]


class _Parser:
    """Parser of the body of a C++ function."""

    def __init__(self, text: str) -> None:
        self.text, self.at = text, 0

    def block(self) -> list[Statement]:
        """Return the statements up to the closing brace."""
        found: list[Statement] = []
        while not self._take("}"):
            found.append(self._statement())
        return found

    def _take(self, word: str) -> bool:
        self.at += len(self.text[self.at :]) - len(self.text[self.at :].lstrip())
        if not self.text.startswith(word, self.at):
            return False
        self.at += len(word)
        return True

    def _statement(self) -> Statement:
        if not re.match(r"\s*if\s*\(", self.text[self.at :]):
            end = self._simple_end()
            statement, self.at = self.text[self.at : end].strip(), end + 1
            return statement
        branches = []
        while self._take("if"):
            branches.append((self._condition(), self._body()))
            if not self._take("else"):
                return branches
        branches.append(("", self._body()))
        return branches

    def _simple_end(self) -> int:
        depth, at = 0, self.at
        while depth or self.text[at] != ";":
            depth += {"{": 1, "(": 1, "}": -1, ")": -1}.get(self.text[at], 0)
            at += 1
        return at

    def _condition(self) -> str:
        assert self._take("(")
        depth, start = 1, self.at
        while depth:
            depth += {"(": 1, ")": -1}.get(self.text[self.at], 0)
            self.at += 1
        return self.text[start : self.at - 1]

    def _body(self) -> list[Statement]:
        return self.block() if self._take("{") else [self._statement()]


def parse(text: str) -> list[Statement]:
    """Return the statements of a C++ function, from the text behind its opening brace."""
    return _Parser(text).block()


@cache
def _source(hsa: Path, gfx: str) -> str:
    text = (hsa.parent / "csrc" / "include" / "mha_bwd.h").read_text(encoding="utf-8")
    text += (hsa / gfx / "fmha_v3_bwd" / "codegen.py").read_text(encoding="utf-8")
    return re.sub(r"//.*|/\*.*?\*/", "", text)


@cache
def _function(hsa: Path, gfx: str, name: str, templates: int) -> list[Statement]:
    """Return the last function of that name with a number of template parameters; 0 for none."""
    found = None
    for match in re.finditer(rf"(template <([^>]*)>\s*)?float {name}\(([^)]*)\)\s*{{", _source(hsa, gfx)):
        if len((match[2] or "").split(",")) * bool(match[1]) == templates:
            found = match
    assert found is not None, f"{name} is not there"
    return parse(_source(hsa, gfx)[found.end() :])


def _python(text: str) -> str:
    text = re.sub(r't\.data_type\.compare\("(\w+)"\) == 0', r't.data_type == "\1"', text)
    for old, new in (("&&", " and "), ("||", " or "), ("::", "."), (" / ", " // "), ("\n", " ")):
        text = text.replace(old, new)
    return re.sub(r"\btrue\b", "True", re.sub(r"\bfalse\b", "False", text)).strip()


def _run(statements: list[Statement], env: dict[str, Any]) -> str:
    """Execute statements; return the call of the function that a `return` reaches, or an empty text."""
    for statement in statements:
        if not isinstance(statement, str):
            for condition, body in statement:
                if not condition or eval(_python(condition), env):
                    if done := _run(body, env):
                        return done
                    break
        elif match := re.match(r"(?:r =|return) (fmha_bwd_v3\w+<.*)", statement, re.DOTALL):
            return match[1]
        elif match := re.match(r"using (\w+)\s*= (.*)", statement, re.DOTALL):
            env["types"][match[1]] = match[2]
        elif match := re.match(r"args\.(\w+)\s*=\s*(.*)", statement, re.DOTALL):
            env["args"][match[1]] = eval(_python(match[2]), env)
    return ""


@cache
def _table(hsa: Path, gfx: str, kind: str) -> dict[tuple[str, ...], str]:
    """Return the specialisations of FmhaBwdV3Name, FmhaBwdV3Buf or FmhaBwdV3Ts by their template arguments."""
    pattern = rf"struct FmhaBwdV3{kind}<fmha_bwd_dq_dk_dv_v3_traits_<([^>]*)>> {{(.*?)}}"
    rows = re.findall(pattern, _source(hsa, gfx))
    value = r"ts_kv = (\d+)" if kind == "Ts" else r'"([^"]+)"'
    return {_key(parameters): re.findall(value, body)[0] for parameters, body in rows}


def _key(parameters: str) -> tuple[str, ...]:
    words = {"true": "1", "false": "0"}
    return tuple(words.get(part.strip(), part.strip()) for part in parameters.split(","))[:-1]


def pack(source: str, name: str, values: Mapping[str, int | float]) -> bytes:
    """Return the bytes of a packed structure of a C++ source with these fields; the others are 0."""
    match = re.search(rf"struct __attribute__\(\(packed\)\) {name}\s*{{(.*?)}};", source, re.DOTALL)
    assert match is not None
    data, left = bytearray(), dict(values)
    for kind, field in re.findall(r"([\w ]+?\s*\*?)\s*(\w+);", match[1]):
        size = 8 if kind.endswith("*") else _SIZES[kind.strip()]
        value = left.pop(field, 0)
        if isinstance(value, float):
            data += struct.pack("<f", value)
        else:
            data += (value % (1 << 8 * size)).to_bytes(size, "little")
    assert not left, f"{name} has no fields {', '.join(left)}"
    return bytes(data)


def launch(hsa: Path, gfx: str, traits: Mapping[str, Any], values: Mapping[str, Any]) -> Launch | None:
    """Return what AITER launches for `mha_bwd_traits` and `fmha_bwd_args`; None if it has no kernel.

    Args:
        hsa: AITER's folder hsa.
        gfx: processor.
        traits, values: fields of the structures; pointers are numbers, and total_keys is the end of the last sequence.
    """
    a = SimpleNamespace(**values)
    env: dict[str, Any] = {"a": a, "t": SimpleNamespace(**traits), "types": {}, "args": {}, "is_v3_api_check": False}
    env |= {"mask_enum": _MASKS, "bias_enum": SimpleNamespace(no_bias=0)}
    env["s"] = SimpleNamespace(log_level_=0)
    call = _run(_function(hsa, gfx, "fmha_bwd_v3", 0), env)
    if not call:
        return None
    (function, names) = re.findall(r"^(\w+)<([^>]*)>", call)[0]
    types = [part.strip() for part in names.split(",")]
    key = _key(re.findall(r"<(.*)>", env["types"]["dq_dk_dv_v3_traits_"])[0])
    tile = int(_table(hsa, gfx, "Ts")[key])
    body = _function(hsa, gfx, function, len(types))
    structure = next(one.split()[0] for one in body if isinstance(one, str) and one.endswith(" args"))
    # make_generic_attention_mask_coordinates_from_lr_window, for a mask that ends at the last query and key.
    left = a.seqlen_k - 1 if a.window_size_left < 0 else a.window_size_left
    right = a.seqlen_q - 1 if a.window_size_right < 0 else a.window_size_right
    corner = (1 + left + a.seqlen_q - a.seqlen_k, 1 + right + a.seqlen_k - a.seqlen_q)
    text = [_replace(one, tile) for one in body]
    env |= {"log2e": math.log2(math.e), "seqstart_k": {a.batch: values["total_keys"]}, "corner": corner}
    _run(text, env)
    blocks = -(-a.max_seqlen_k // tile)
    halved = a.mask_type > 0 and "swa" not in structure
    grid = (-(-blocks // 2) if halved else blocks, a.nhead_q, a.batch)
    name = _table(hsa, gfx, "Name")[key]
    return Launch(
        file=_table(hsa, gfx, "Buf")[key],
        symbol=f"_ZN5aiter{len(name)}{name}E",
        arguments=pack(_source(hsa, gfx), structure, env["args"]),
        grid=grid,
    )


def _replace(statement: Statement, tile: int) -> Statement:
    if not isinstance(statement, str):
        return statement
    text = statement.replace("FmhaBwdV3Ts<dq_dk_dv_v3_traits_>::ts_kv", str(tile))
    text = text.replace("ck_tile::log2e_v<float>", "log2e")
    return re.sub(r"generic_mask\.at\(ck_tile::number<(\d)>{}\)", r"corner[\1]", text)
