#!/usr/bin/env python3
"""Opens the documentation site in a browser without a window: searches for a function, opens its
page, and sees that nothing is asked of another machine.

    browser.py build/site [BROWSER]

The browser is Chromium, driven over a pipe (--remote-debugging-pipe). Prints one line; the status
is 0 if all holds.
"""
from __future__ import annotations

import functools
import http.server
import json
import os
import pathlib
import re
import select
import shutil
import subprocess
import sys
import tempfile
import threading
import time

FUNCTION = "accrt_stream_synchronize"


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_args) -> None:
        pass


class Browser:
    """Speaks the DevTools protocol: one JSON text after the other, each ended by a zero byte."""

    def __init__(self, program: str, profile: str) -> None:
        to_browser, self.write_end = os.pipe()
        self.read_end, from_browser = os.pipe()

        def pipes() -> None:
            # The browser reads from descriptor 3 and writes to 4. Copies first: the pipe's own
            # numbers may be 3 and 4.
            first, second = os.dup(to_browser), os.dup(from_browser)
            first, second = os.dup2(first, 60), os.dup2(second, 61)
            os.dup2(first, 3)
            os.dup2(second, 4)

        self.process = subprocess.Popen(
            [program, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
             "--disable-background-networking", "--disable-component-update", "--disable-sync", f"--user-data-dir={profile}",
             "--remote-debugging-pipe", "about:blank"],
            preexec_fn=pipes, close_fds=False, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        os.close(to_browser)
        os.close(from_browser)
        self.number, self.session, self.rest, self.requests = 0, None, b"", []

    def receive(self, deadline: float) -> dict:
        while b"\0" not in self.rest:
            if not select.select([self.read_end], [], [], max(0.0, deadline - time.monotonic()))[0]:
                raise TimeoutError("the browser does not answer")
            piece = os.read(self.read_end, 1 << 16)
            if not piece:
                raise ConnectionError("the browser ended")
            self.rest += piece
        message, _, self.rest = self.rest.partition(b"\0")
        event = json.loads(message)
        if event.get("method") == "Network.requestWillBeSent":
            self.requests.append(event["params"]["request"]["url"])
        return event

    def call(self, method: str, **parameters) -> dict:
        self.number += 1
        message = {"id": self.number, "method": method, "params": parameters}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.write_end, json.dumps(message).encode() + b"\0")
        deadline = time.monotonic() + 120
        while True:
            answer = self.receive(deadline)
            if answer.get("id") == self.number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return answer["result"]

    def value(self, expression: str):
        return self.call("Runtime.evaluate", expression=expression, returnByValue=True)["result"].get("value")

    def until(self, expression: str, seconds: float = 120):
        """The first value of the expression that is not empty."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            try:
                found = self.value(expression)
            except RuntimeError as error:  # asked while one page took the place of another
                if not re.search("navigated|context", str(error)):
                    raise
                found = None
            if found:
                return found
            time.sleep(0.1)
        raise TimeoutError(f"never true: {expression}")

    def end(self) -> None:
        self.process.kill()
        self.process.wait()


def look(browser: Browser, address: str) -> str:
    target = browser.call("Target.createTarget", url="about:blank")["targetId"]
    browser.session = browser.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
    browser.call("Network.enable")
    browser.call("Page.enable")
    browser.call("Page.navigate", url=address + "/index.html")
    browser.until("document.readyState === 'complete' && !!document.querySelector('input.md-search__input')")
    browser.value("document.querySelector('input.md-search__input').focus()")
    browser.call("Input.insertText", text=FUNCTION)
    link = browser.until(f"""(() => {{ const a = [...document.querySelectorAll('a.md-search-result__link')]
        .find(a => a.href.includes('#{FUNCTION}')); return a ? a.href : ''; }})()""")
    browser.call("Page.navigate", url=link)
    heading = browser.until(f"document.readyState === 'complete' && location.hash.startsWith('#{FUNCTION}') && "
                            f"document.getElementById('{FUNCTION}')?.textContent")
    if FUNCTION not in heading:
        raise AssertionError(f"the page's heading is {heading!r}")
    text = browser.value("document.querySelector('article').innerText")
    if "ACCRT_ERROR_TIMEOUT" not in text:
        raise AssertionError("the page does not have the function's statuses")
    foreign = [url for url in browser.requests if not url.startswith((address, "data:", "blob:", "about:"))]
    if foreign:
        raise AssertionError(f"asked of other machines: {foreign}")
    return f"found {link.removeprefix(address)} by search; {len(browser.requests)} requests, all to the site itself"


def main() -> int:
    site = pathlib.Path(sys.argv[1]).resolve()
    program = sys.argv[2] if len(sys.argv) > 2 else shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if not program:
        print("browser.py: no Chromium here", file=sys.stderr)
        return 77
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(site)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        browser = Browser(program, profile)
        try:
            print(look(browser, f"http://127.0.0.1:{server.server_port}"))
        finally:
            browser.end()
            server.shutdown()
    return 0


if __name__ == "__main__":
    sys.exit(main())
