"""A small client of the WebDriver protocol (W3C), for headless Chromium through chromedriver."""

import base64
import json
import re
import subprocess
import tempfile
import time
import urllib.error
import urllib.request

ELEMENT = "element-6066-11e4-a52e-4f735466cecf"  # the protocol's key of an element
FLAGS = [
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-extensions",
    "--force-color-profile=srgb",
    "--hide-scrollbars",
    # No name resolves, so that a request to another host fails as well as being seen.
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
]


class WebDriverError(Exception):
    """What chromedriver refused, with its name of the error."""


class Browser:
    """A browser with one window. A context manager."""

    def __init__(self, driver, browser, width=1280, height=900):
        self.driver, self.browser, self.size = driver, browser, (width, height)

    def __enter__(self):
        self.folder = tempfile.TemporaryDirectory(prefix="quire-browser-")
        self.process = subprocess.Popen(
            [self.driver, "--port=0"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        port = None
        for line in self.process.stdout:
            found = re.search(r"on port (\d+)", line)
            if found and "successfully" in line:
                port = found.group(1)
                break
        if not port:
            raise RuntimeError("chromedriver did not start")
        self.root = f"http://127.0.0.1:{port}/session"
        options = {
            "binary": self.browser,
            "args": [*FLAGS, "--user-data-dir=" + self.folder.name],
            "perfLoggingPrefs": {"enableNetwork": True, "enablePage": False},
        }
        capabilities = {
            "browserName": "chrome",
            "goog:chromeOptions": options,
            "goog:loggingPrefs": {"browser": "ALL", "performance": "ALL"},
            "timeouts": {"script": 60000, "pageLoad": 60000, "implicit": 0},
        }
        made = self._send("POST", "", {"capabilities": {"alwaysMatch": capabilities}})
        self.root += "/" + made["sessionId"]
        self.resize(*self.size)
        return self

    def __exit__(self, *_):
        try:
            self._send("DELETE", "")
        except (OSError, WebDriverError):
            pass
        self.process.terminate()
        self.process.wait()
        self.process.stdout.close()
        self.folder.cleanup()

    def _send(self, method, path, body=None):
        data = None if method in ("GET", "DELETE") else json.dumps(body or {}).encode()
        request = urllib.request.Request(
            self.root + path, data, {"Content-Type": "application/json"}, method=method
        )
        try:
            with urllib.request.urlopen(request, timeout=120) as reply:
                return json.load(reply)["value"]
        except urllib.error.HTTPError as e:
            value = json.load(e)["value"]
            raise WebDriverError(f"{value['error']}: {value['message'].splitlines()[0]}") from None

    def command(self, name, parameters):
        """A command of the DevTools protocol."""
        return self._send("POST", "/goog/cdp/execute", {"cmd": name, "params": parameters})

    def resize(self, width, height):
        """Sets the size of the page itself, without the window's frame."""
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.command("Emulation.setDeviceMetricsOverride", metrics)

    def colours(self, scheme):
        """Makes the system prefer light or dark."""
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.command("Emulation.setEmulatedMedia", {"features": features})

    def open(self, url):
        self._send("POST", "/url", {"url": url})

    def run(self, script, *arguments):
        """Runs the body of a function; a promise that it returns is waited for."""
        script = f"return (async function() {{ {script} }}).apply(null, arguments)"
        return self._send("POST", "/execute/sync", {"script": script, "args": list(arguments)})

    def all(self, selector):
        found = self._send("POST", "/elements", {"using": "css selector", "value": selector})
        return [e[ELEMENT] for e in found]

    def find(self, selector, seconds=20):
        """The first element, once there is one that is shown."""
        return self.wait(
            lambda: next((e for e in self.all(selector) if self.shown(e)), None), selector, seconds
        )

    def shown(self, element):
        try:
            return self._send("GET", f"/element/{element}/displayed")
        except WebDriverError:
            return False  # it was replaced meanwhile

    def wait(self, condition, what, seconds=20):
        end = time.monotonic() + seconds
        while True:
            value = condition()
            if value:
                return value
            if time.monotonic() > end:
                raise AssertionError(f"waited {seconds} s in vain for {what}")
            time.sleep(0.05)

    def click(self, selector):
        self._send("POST", f"/element/{self.find(selector)}/click")

    def type(self, selector, text):
        self._send("POST", f"/element/{self.find(selector)}/value", {"text": text})

    def keys(self, *keys):
        """Presses keys one after another, wherever the focus is."""
        presses = [{"type": t, "value": k} for k in keys for t in ("keyDown", "keyUp")]
        actions = [{"type": "key", "id": "keyboard", "actions": presses}]
        self._send("POST", "/actions", {"actions": actions})

    def text(self, selector="main"):
        return self._send("GET", f"/element/{self.find(selector)}/text")

    def label(self, element):
        """The name that a screen reader says."""
        return self._send("GET", f"/element/{element}/computedlabel")

    def screenshot(self, path):
        with open(path, "wb") as file:
            file.write(base64.b64decode(self._send("GET", "/screenshot")))

    def look(self, across=24, down=16):
        """The window from afar: lines of grey values, a digit from 0 to f for each."""
        return self.run(
            """const [png, across, down] = arguments;
            const bytes = Uint8Array.from(atob(png), (c) => c.charCodeAt(0));
            const image = await createImageBitmap(new Blob([bytes]),
              {resizeWidth: across, resizeHeight: down, resizeQuality: 'high'});
            const context = new OffscreenCanvas(across, down).getContext('2d');
            context.drawImage(image, 0, 0);
            const {data} = context.getImageData(0, 0, across, down);
            const grey = (i) => Math.round((data[i] + data[i + 1] + data[i + 2]) / 48);
            return Array.from({length: down}, (_, y) => Array.from({length: across},
              (_, x) => Math.min(15, grey(4 * (y * across + x))).toString(16)).join(''))""",
            self._send("GET", "/screenshot"),
            across,
            down,
        )

    def log(self, kind):
        """Takes the entries of the log since the last call."""
        return self._send("POST", "/se/log", {"type": kind})

    def addresses(self):
        """Every address that was asked for since the last call."""
        out = []
        for entry in self.log("performance"):
            message = json.loads(entry["message"])["message"]
            if message["method"] == "Network.requestWillBeSent":
                out.append(message["params"]["request"]["url"])
        return out
