"""python -m jax_aiter: print `jax_aiter.info()` as JSON, or the choices for a model's shapes."""

import argparse
import json
import sys
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from jax_aiter import JaxAiterError, info
from jax_aiter.gemm import gemm
from jax_aiter.mha import flash_attn_func
from jax_aiter.rmsnorm import rms_norm_with_add


def _parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m jax_aiter",
        description="Print the kernels of this package, or what runs for a model.",
        epilog="Example: JAX_AITER_TARGET=gfx942 python -m jax_aiter info"
        " --heads=32 --key-heads=8 --depth=128 --length=4096",
    )
    parser.add_argument(
        "command", nargs="?", choices=["info"], help="print the report; the default"
    )
    model = parser.add_argument_group(
        "model", "with --heads, print what a layer and its gradient run, and why"
    )
    model.add_argument("--heads", type=int, help="heads of queries")
    model.add_argument("--key-heads", type=int, help="heads of keys; default: --heads")
    model.add_argument("--depth", type=int, default=128, help="head dimension")
    model.add_argument("--length", type=int, default=2048, help="tokens of a sequence")
    model.add_argument("--batch", type=int, default=1, help="sequences")
    model.add_argument("--dtype", default="bfloat16", help="dtype of activations")
    model.add_argument("--window", type=int, default=-1, help="keys before a query")
    return parser.parse_args()


def _layer(
    window: int,
    q: Any,
    k: Any,
    v: Any,
    x: Any,
    gamma: Any,
    weight: Any,
) -> Any:
    out = flash_attn_func(q, k, v, causal=True, window_size=(window, 0))
    branch = gemm(out.reshape(x.shape), weight)
    _, total = rms_norm_with_add(branch, x, gamma)
    return total.astype(jnp.float32).sum()


def _choices(given: argparse.Namespace) -> list[dict[str, Any]]:
    width = given.heads * given.depth
    front = (given.batch, given.length)
    keys = (*front, given.key_heads or given.heads, given.depth)
    shapes: list[tuple[int, ...]] = [(*front, given.heads, given.depth), keys, keys]
    shapes += [(given.batch * given.length, width), (width,), (width, width)]
    arguments = [jax.ShapeDtypeStruct(shape, given.dtype) for shape in shapes]
    layer = partial(_layer, given.window)
    gradient = jax.grad(layer, argnums=tuple(range(len(shapes))))
    choices: list[dict[str, Any]] = info(gradient, *arguments)["choices"]
    return choices


def main() -> None:
    """Print what the arguments ask for."""
    given = _parsed()
    if given.heads is None:
        json.dump(info(), sys.stdout, indent=2)
        sys.stdout.write("\n")
        return
    try:
        choices = _choices(given)
    except (JaxAiterError, TypeError, ValueError) as problem:
        sys.exit(f"python -m jax_aiter: {str(problem).splitlines()[0]}")
    for row in choices:
        used = row["call"] or "XLA"
        sys.stdout.write(f"{row['operation']}: {used}\n    {row['why']}\n")


if __name__ == "__main__":
    main()
