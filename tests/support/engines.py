"""Operations of tests on a container engine, docker or podman."""

from __future__ import annotations

import subprocess
from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path

from core.store import hold_lock
from tests.support import forky

_SECONDS = 900


@dataclass(frozen=True, kw_only=True)
class Engine(ABC):
    """An engine with a separate image store.

    Attributes:
        program: path of its client.
    """

    program: str

    @property
    @abstractmethod
    def environment(self) -> dict[str, str]:
        """Environment of this process, with the settings that select this engine's store."""

    @abstractmethod
    def builder(self) -> str:
        """Return the name of the image that stands in for manylinux_2_28."""

    def run(self, *words: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run one command of the client."""
        done = subprocess.run(
            [self.program, *words],
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=_SECONDS,
        )
        assert done.returncode == 0 or not check, (
            f"{words[0]}: {done.stdout[-2000:]}{done.stderr[-4000:]}"
        )
        return done

    def ask(self, *words: str) -> str:
        """Return the output of a client command."""
        return self.run(*words).stdout.strip()

    def image(
        self,
        name: str,
        script: Path,
        *words: str,
        based: bool = True,
    ) -> str:
        """Return the name of an image of the folder that a script fills; see `tests.support.forky`.

        The image is imported if it does not exist; its tag is a digest of the script.
        """
        tag = f"jax-rocm-test-{name}:{forky.digest(script, *words)}"
        kept = f"{Path(self.program).name}-{name}"
        with hold_lock(forky.CACHE / f"{kept}.lock"):
            if self.run("image", "inspect", tag, check=False).returncode:
                tree = forky.CACHE / f"{kept}.new"
                forky.remove(tree)
                try:
                    forky.fill(tree, script, *words, based=based)
                    self.import_folder(tree, tag)
                finally:
                    forky.remove(tree)
        return tag

    def import_folder(self, tree: Path, tag: str) -> None:
        """Make an image of one layer from a folder."""
        with subprocess.Popen(
            ["tar", "-C", tree, "-c", "."], stdout=subprocess.PIPE
        ) as tar:
            argv = [self.program, "import", "-", tag]
            done = subprocess.run(
                argv,
                env=self.environment,
                stdin=tar.stdout,
                capture_output=True,
                text=True,
                check=False,
            )
        assert (tar.returncode, done.returncode) == (0, 0), done.stderr
