"""`ci_build completion`: scripts that complete commands and options in a shell."""

from __future__ import annotations

import click
import cloup
from click.shell_completion import get_completion_class

_SHELLS = ("bash", "zsh", "fish")


@cloup.command()
@click.argument("shell", type=click.Choice(_SHELLS))
@click.pass_context
def completion(context: click.Context, /, shell: str) -> None:
    """Print the script that completes `ci_build` in SHELL.

    `build/` must be on the PATH. bash: `eval "$(ci_build completion bash)"` in ~/.bashrc. zsh: the same in ~/.zshrc,
    after `compinit`. fish: `ci_build completion fish > ~/.config/fish/completions/ci_build.fish`.
    """
    root = context.find_root()
    kind = get_completion_class(shell)
    assert kind is not None
    click.echo(kind(root.command, {}, "ci_build", "_CI_BUILD_COMPLETE").source())
