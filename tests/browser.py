"""A headless Chromium for tests, driven through chromedriver's HTTP interface; nothing but the standard library.

What the page logs and what it asks the network for is kept: `console` and `requests`.
"""

import base64
import json
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

_CHROMIUM = ("chromium", "chromium-browser", "google-chrome")
_FLAGS = (
    *("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--hide-scrollbars"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage"),
    "--force-prefers-reduced-motion",  # a click does not wait for smooth scrolling
)
_START_SECONDS = 30.0


def program(*names: str) -> str:
    """Where one of these programs is installed."""
    found = next(filter(None, map(shutil.which, names)), None)
    assert found is not None, f"{names[0]} is not installed (Debian: apt-get install chromium chromium-driver)"
    return found


class Browser:
    """One window.

    Args:
        address: Of chromedriver.
        profile: An empty folder.
    """

    def __init__(self, address: str, profile: Path):
        self._address = address
        options = {"binary": program(*_CHROMIUM), "args": [*_FLAGS, f"--user-data-dir={profile}"]}
        wanted = {
            "browserName": "chrome",
            "goog:chromeOptions": options,
            "goog:loggingPrefs": {"browser": "ALL", "performance": "ALL"},
        }
        session = self._ask("POST", "/session", {"capabilities": {"alwaysMatch": wanted}})
        self._address += f"/session/{session['sessionId']}"

    def open(self, page: Path, width: int, height: int, *, phone: bool = False) -> None:
        """Show a file in a window of this size, and forget what came before."""
        self._ask("POST", "/url", {"url": "about:blank"})
        self.requests(), self.console()
        metrics = {"width": width, "height": height, "deviceScaleFactor": 2 if phone else 1, "mobile": phone}
        self.devtools("Emulation.setDeviceMetricsOverride", **metrics)
        self._ask("POST", "/url", {"url": page.resolve().as_uri()})

    def run(self, script: str, *arguments: Any) -> Any:
        """The value that a script returns."""
        return self._ask("POST", "/execute/sync", {"script": script, "args": list(arguments)})

    def click(self, selector: str) -> None:
        """Click on the first such element, as a person would: it has to be there and nothing may lie over it."""
        found = self._ask("POST", "/element", {"using": "css selector", "value": selector})
        self._ask("POST", f"/element/{next(iter(found.values()))}/click", {})

    def devtools(self, command: str, **parameters: Any) -> Any:
        """A command of Chrome's own protocol."""
        return self._ask("POST", "/goog/cdp/execute", {"cmd": command, "params": parameters})

    def drag(self, start: tuple[float, float], end: tuple[float, float]) -> None:
        """Press the mouse at one place of the window, let go at another."""
        for kind, (x, y), buttons in (("mousePressed", start, 1), ("mouseMoved", end, 1), ("mouseReleased", end, 0)):
            self.devtools("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", buttons=buttons, clickCount=1)

    def picture(self, path: Path) -> Path:
        """A PNG of the window."""
        path.write_bytes(base64.b64decode(self._ask("GET", "/screenshot")))
        return path

    def console(self) -> list[str]:
        """What was logged since the last call: errors, warnings, refused loads."""
        return [entry["message"] for entry in self._ask("POST", "/se/log", {"type": "browser"})]

    def requests(self) -> list[str]:
        """Addresses that were asked for since the last call."""
        events = [
            json.loads(entry["message"])["message"] for entry in self._ask("POST", "/se/log", {"type": "performance"})
        ]
        return [one["params"]["request"]["url"] for one in events if one["method"] == "Network.requestWillBeSent"]

    def close(self) -> None:
        """End the browser."""
        self._ask("DELETE", "")

    def _ask(self, method: str, path: str, body: Any = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(
            self._address + path, data, {"Content-Type": "application/json"}, method=method
        )
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return json.load(answer)["value"]
        except urllib.error.HTTPError as error:
            raise AssertionError(json.load(error)["value"]["message"]) from error


@contextmanager
def chromium(profile: Path) -> Iterator[Browser]:
    """A browser for as long as the `with` block lasts."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    driver = subprocess.Popen([program("chromedriver"), f"--port={port}"], stdout=subprocess.DEVNULL)
    try:
        browser = _started(f"http://127.0.0.1:{port}", profile)
        try:
            yield browser
        finally:
            browser.close()
    finally:
        driver.terminate()
        driver.wait()


def _started(address: str, profile: Path) -> Browser:
    end = time.monotonic() + _START_SECONDS
    while True:
        try:
            return Browser(address, profile)
        except urllib.error.URLError:
            if time.monotonic() > end:
                raise
            time.sleep(0.1)
