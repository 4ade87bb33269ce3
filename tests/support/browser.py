"""Chromium without a window or a network, driven by its chromedriver over the WebDriver protocol."""
import base64
import json
import shutil
import subprocess
import time
import urllib.error
import urllib.request

DRIVER, PROGRAM = "chromedriver", "chromium"


class BrowserError(Exception):
    pass


class Browser:
    """downloads: the folder where the browser saves files."""

    def __init__(self, downloads):
        for program in (DRIVER, PROGRAM):
            if not shutil.which(program):
                raise BrowserError(f"{program} is missing (Debian's packages chromium and chromium-driver)")
        self.driver = subprocess.Popen([DRIVER, "--port=0"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        try:
            self.address = f"http://127.0.0.1:{self.port()}"
            arguments = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--host-resolver-rules=MAP * ~NOTFOUND"]
            settings = {"download.default_directory": str(downloads), "profile.default_content_setting_values.automatic_downloads": 1}
            options = {"args": arguments, "prefs": settings}
            wanted = {"browserName": "chrome", "goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL"}}
            self.session = "/session/" + self.call("/session", {"capabilities": {"alwaysMatch": wanted}})["sessionId"]
        except BaseException:
            self.driver.kill()
            raise

    def port(self):
        for line in self.driver.stdout:
            if "started successfully on port" in line:
                return int(line.strip().rstrip(".").rsplit(" ", 1)[1])
        raise BrowserError(f"{DRIVER} did not start")

    def call(self, path, body=None, method=None):
        request = urllib.request.Request(self.address + path, json.dumps(body).encode() if body is not None else None,
                                         {"Content-Type": "application/json"}, method=method)
        try:
            with urllib.request.urlopen(request, timeout=120) as answer:
                return json.load(answer)["value"]
        except urllib.error.HTTPError as error:
            raise BrowserError(json.load(error)["value"]["message"]) from error

    def close(self):
        try:
            self.call(self.session, method="DELETE")
        finally:
            self.driver.terminate()
            self.driver.wait()
            self.driver.stdout.close()

    def open(self, path, view=""):
        """Opens a file; returns how many seconds that took."""
        self.call(self.session + "/url", {"url": "about:blank"})
        begin = time.monotonic()
        self.call(self.session + "/url", {"url": path.as_uri() + view})
        return time.monotonic() - begin

    def run(self, script, *arguments):
        """What a script returns that runs in the page; its arguments are in `arguments`."""
        return self.call(self.session + "/execute/sync", {"script": script, "args": list(arguments)})

    def tools(self, command, **parameters):
        """A command of the Chrome DevTools Protocol."""
        return self.call(self.session + "/goog/cdp/execute", {"cmd": command, "params": parameters})

    def look(self, width=1100, height=900, scheme="light", media="screen"):
        """The size and the colours that the page has from now on."""
        self.tools("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        self.tools("Emulation.setEmulatedMedia", media=media, features=[{"name": "prefers-color-scheme", "value": scheme}])

    def press(self, key):
        """Presses a key, by its code in the WebDriver standard."""
        actions = [{"type": "keyDown", "value": key}, {"type": "keyUp", "value": key}]
        self.call(self.session + "/actions", {"actions": [{"type": "key", "id": "keyboard", "actions": actions}]})

    def picture(self):
        """A picture of the whole page, as PNG."""
        return base64.b64decode(self.tools("Page.captureScreenshot", captureBeyondViewport=True)["data"])

    def messages(self):
        """What the page wrote to the console since the last call."""
        return [entry["message"] for entry in self.call(self.session + "/se/log", {"type": "browser"})]
