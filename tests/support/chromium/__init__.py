"""Headless Chromium, driven by the DevTools protocol over a pipe.

It is this machine's Chromium, or that of a newer Debian in a folder. It has no network.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import pytest

from tests.support import forky

_SWITCHES = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--proxy-server=127.0.0.1:9",
    "--hide-scrollbars",
    "--remote-debugging-pipe",
)
# Debian's own script of Chromium reads settings of a desktop.
_INSIDE = (
    'mount -t proc proc "$0/proc" && mount --bind /dev "$0/dev" && exec chroot "$0"'
    ' /usr/lib/chromium/chromium "$@"'
)


@dataclass
class Tab:
    """One page; messages are JSON that ends with a zero byte.

    Attributes:
        root: folder that Chromium sees as `/`.
        folder: folder for pages.
        logged: messages of the console, such as violations of a policy.
    """

    root: Path
    folder: Path
    requests: IO[bytes]
    answers: IO[bytes]
    session: str
    logged: list[str]
    number: int = 0

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Call a method and return its result."""
        self.number += 1
        body: dict[str, Any] = {
            "id": self.number,
            "method": method,
            "params": parameters,
        }
        if self.session:
            body["sessionId"] = self.session
        self.requests.write(json.dumps(body).encode() + b"\0")
        while (answer := self.message()).get("id") != self.number:
            pass
        assert "error" not in answer, f"{method}: {answer}"
        result: dict[str, Any] = answer["result"]
        return result

    def message(self) -> dict[str, Any]:
        """Return the next message."""
        data = bytearray()
        while (byte := self.answers.read(1)) != b"\0":
            assert byte, "Chromium ended"
            data += byte
        body: dict[str, Any] = json.loads(data)
        if body.get("method") == "Log.entryAdded":
            self.logged.append(body["params"]["entry"]["text"])
        return body

    def show(
        self,
        page: bytes,
        *,
        width: int,
        dark: bool,
    ) -> None:
        """Show a page in a window of some width, in light or dark colours."""
        file = self.folder / "page.html"
        file.write_bytes(page)
        self.visit(f"file:///{file.relative_to(self.root)}", width=width, dark=dark)

    def visit(
        self,
        url: str,
        *,
        width: int,
        dark: bool = False,
    ) -> None:
        """Load a page in a window of some width, in light or dark colours."""
        self.logged.clear()
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=800,
            deviceScaleFactor=1,
            mobile=width < 500,
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self.call("Page.navigate", url=url)
        while self.message().get("method") != "Page.loadEventFired":
            pass

    def value(self, expression: str) -> Any:
        """Return the value of a JavaScript expression as JSON; promises are awaited."""
        found = self.call(
            "Runtime.evaluate",
            expression=expression,
            awaitPromise=True,
            returnByValue=True,
        )
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def press(self, key: str, code: int) -> None:
        """Press and release a key."""
        for kind in ("rawKeyDown", "char", "keyUp"):
            text = {"text": "\r"} if key == "Enter" and kind == "char" else {}
            if kind != "char" or text:
                self.call(
                    "Input.dispatchKeyEvent",
                    type=kind,
                    key=key,
                    code=key,
                    windowsVirtualKeyCode=code,
                    **text,
                )

    def picture(self, height: int = 0) -> bytes:
        """Return the page as PNG: the whole page, or its top of some height."""
        width = self.value("document.documentElement.clientWidth")
        clip = (
            {
                "clip": {
                    "x": 0,
                    "y": 0,
                    "width": width,
                    "height": height,
                    "scale": 1,
                }
            }
            if height
            else {}
        )
        data: str = self.call(
            "Page.captureScreenshot", captureBeyondViewport=True, **clip
        )["data"]
        return base64.b64decode(data)


@contextlib.contextmanager
def chromium() -> Iterator[Tab]:
    """Start Chromium with one empty page.

    Skip the test on machines that can neither start nor install it.
    """
    own = shutil.which("chromium")
    if own is None and (reason := forky.obstacle()):
        pytest.skip(f"{reason}; or Chromium on PATH")
    root = (
        Path("/")
        if own
        else forky.made("chromium", Path(__file__).with_name("prepare.sh"))
    )
    start = [own] if own else ["unshare", "--mount", "sh", "-c", _INSIDE, str(root)]
    with tempfile.TemporaryDirectory(prefix="pages-", dir=root / "tmp") as name:
        folder = Path(name)
        inside = f"/{folder.relative_to(root)}"
        ours, theirs = os.pipe(), os.pipe()  # requests, answers
        shell = ["bash", "-c", f'exec "$@" 3<&{ours[0]} 4>&{theirs[1]}', "bash"]
        env = {
            "HOME": inside,
            "PATH": os.environ["PATH"],
            "TMPDIR": inside,
            "LANG": "C.UTF-8",
        }
        process = subprocess.Popen(
            [
                *shell,
                *start,
                *_SWITCHES,
                f"--user-data-dir={inside}/profile",
                "about:blank",
            ],
            env=env,
            pass_fds=(ours[0], theirs[1]),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(ours[0])
        os.close(theirs[1])
        with (
            os.fdopen(ours[1], "wb", buffering=0) as requests,
            os.fdopen(theirs[0], "rb") as answers,
        ):
            try:
                tab = Tab(
                    root=root,
                    folder=folder,
                    requests=requests,
                    answers=answers,
                    session="",
                    logged=[],
                )
                target = tab.call("Target.createTarget", url="about:blank")["targetId"]
                tab.session = tab.call(
                    "Target.attachToTarget", targetId=target, flatten=True
                )["sessionId"]
                for domain in ("Page", "Log", "Runtime"):
                    tab.call(f"{domain}.enable")
                yield tab
                tab.session = ""
                tab.call("Browser.close")
            finally:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(10)
                process.kill()
                process.wait()
