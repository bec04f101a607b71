"""A page in headless Chromium, driven over the DevTools protocol: no driver, no package beyond websockets."""

from __future__ import annotations

import json
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
from websockets.sync.client import ClientConnection, connect

from tests.helpers.patience import STUCK_S

BINARY = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))),
    None,
)
FLAGS = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--disable-dev-shm-usage", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--no-proxy-server",
    "--remote-debugging-port=0", "--use-fake-device-for-media-stream", "--use-fake-ui-for-media-stream",
)  # fmt: skip


class Page:
    """One tab. `problems` collects what the console and the network complained about since `open`."""

    def __init__(self, socket: ClientConnection, folder: Path) -> None:
        self.socket, self.folder = socket, folder
        self.count = 0
        self.problems: list[str] = []
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        self.count += 1
        self.socket.send(json.dumps({"id": self.count, "method": method, "params": params}))
        while (message := json.loads(self.socket.recv(STUCK_S))).get("id") != self.count:
            self._note(message)
        assert "error" not in message, (method, message["error"])
        result: dict[str, Any] = message["result"]
        return result

    def _note(self, event: dict[str, Any]) -> None:
        params = event["params"]
        if event["method"] == "Runtime.exceptionThrown":
            self.problems.append(params["exceptionDetails"]["exception"]["description"])
        elif event["method"] == "Runtime.consoleAPICalled" and params["type"] in (
            "error",
            "warning",
            "assert",
        ):
            self.problems.append(str([a.get("value") for a in params["args"]]))
        elif event["method"] == "Log.entryAdded" and params["entry"]["level"] in (
            "error",
            "warning",
        ):
            self.problems.append(params["entry"]["text"] + " " + params["entry"].get("url", ""))

    def eval(self, expression: str) -> Any:
        """The value of a JavaScript expression, awaited if it is a promise. No user's gesture stands behind it."""
        answer = self.call(
            "Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True
        )
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def open(self, url: str, ready: str) -> None:
        """Load `url`; wait until the expression `ready` is true."""
        self.call(
            "Page.navigate", url="about:blank"
        )  # the last page may ask a server that is gone until it is left
        self.until(
            "location.href == 'about:blank'"
        )  # what an injected script says of this one comes before the answer
        self.problems.clear()
        self.call("Page.navigate", url=url)
        self.until(ready)

    def until(self, expression: str, seconds: float = STUCK_S) -> None:
        end = time.monotonic() + seconds
        while not self.eval(expression):
            assert time.monotonic() < end, (
                expression,
                self.problems,
                self.eval("document.body.innerText"),
            )
            time.sleep(0.05)

    @contextmanager
    def injected(self, source: str) -> Iterator[None]:
        """A script that runs in each page opened meanwhile, before the page's own and whatever its CSP says."""
        self.call("Page.setBypassCSP", enabled=True)
        script = self.call("Page.addScriptToEvaluateOnNewDocument", source=source)["identifier"]
        try:
            yield
        finally:
            self.call("Page.removeScriptToEvaluateOnNewDocument", identifier=script)
            self.call("Page.setBypassCSP", enabled=False)

    def resize(self, width: int, height: int) -> None:
        mobile = width < 600
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": mobile}
        self.call("Emulation.setDeviceMetricsOverride", **size)

    def text(self, id: str) -> str:
        found: str = self.eval(f"document.getElementById({id!r}).textContent")
        return found

    def fill(self, **values: str | int) -> None:
        """Set form fields by their names, as a hand would."""
        for name, value in values.items():
            self.eval(
                f"(e => {{ e.value = {json.dumps(str(value))}; for (const kind of ['input', 'change'])"
                f" e.dispatchEvent(new Event(kind, {{ bubbles: true }})); }})(document.querySelector('[name={name}]'))"
            )

    def click(self, selector: str) -> None:
        """A real click of the mouse in the middle of an element, once it stands still and nothing covers it."""
        place = (
            f"(() => {{ const e = document.querySelector({selector!r}); e.scrollIntoView({{block: 'center'}});"
            "const r = e.getBoundingClientRect(), x = r.x + r.width / 2, y = r.y + r.height / 2;"
            "return [x, y, e.contains(document.elementFromPoint(x, y))]; })()"
        )
        end, last, now = time.monotonic() + STUCK_S, None, self.eval(place)
        while now != last or not now[2]:
            assert time.monotonic() < end, (selector, now, self.eval("document.body.innerText"))
            time.sleep(0.05)
            last, now = now, self.eval(place)
        where = {"x": now[0], "y": now[1], "button": "left", "clickCount": 1}
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, **where)

    def press(self, key: str, ctrl: bool = False) -> None:
        code = {"Enter": 13, "Escape": 27, "Tab": 9, "ArrowLeft": 37, "ArrowRight": 39}[key]
        down = (
            {"type": "keyDown", "text": "\r"}
            if key == "Enter" and not ctrl
            else {"type": "rawKeyDown"}
        )
        for event in (down, {"type": "keyUp"}):
            self.call(
                "Input.dispatchKeyEvent",
                **event,
                key=key,
                code=key,
                windowsVirtualKeyCode=code,
                modifiers=2 if ctrl else 0,
            )


@contextmanager
def opened(folder: Path, width: int = 1280, height: int = 800) -> Iterator[Page]:
    """A browser with its profile in `folder`."""
    assert BINARY is not None
    flags = (*FLAGS, f"--user-data-dir={folder}", f"--window-size={width},{height}", "about:blank")
    process = subprocess.Popen(
        (BINARY, *flags), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        port = _port(folder / "DevToolsActivePort", process)
        # Events that nobody reads any more stand before its answer to our goodbye.
        how = {
            "max_size": None,
            "proxy": None,
            "open_timeout": STUCK_S,
            "ping_interval": None,
            "close_timeout": 0.1,
        }
        with connect(_tab(port), **how) as socket:
            page = Page(socket, folder)
            page.resize(width, height)
            yield page
    finally:
        process.terminate()
        process.wait(STUCK_S)


def _tab(port: int) -> str:
    """The address of the first tab. The browser answers before it has opened one."""
    end = time.monotonic() + STUCK_S
    with httpx.Client(timeout=STUCK_S, trust_env=False) as http:
        while True:
            for tab in http.get(f"http://127.0.0.1:{port}/json/list").json():
                if tab["type"] == "page":
                    return str(tab["webSocketDebuggerUrl"])
            assert time.monotonic() < end, "Chromium has opened no tab in time"
            time.sleep(0.05)


def _port(file: Path, process: subprocess.Popen[bytes], seconds: float = STUCK_S) -> int:
    end = time.monotonic() + seconds
    while not (file.is_file() and len(lines := file.read_text().split("\n")) > 1):
        assert process.poll() is None, "Chromium ended"
        assert time.monotonic() < end, "Chromium has not started in time"
        time.sleep(0.05)
    return int(lines[0])
