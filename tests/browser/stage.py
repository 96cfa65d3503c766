"""`Stage`: the web on a real port. `Window`: a headless Chromium that looks at it, by Selenium."""

import base64
import json
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

from selenium import webdriver
from selenium.common.exceptions import StaleElementReferenceException
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.ui import WebDriverWait

from catchment.foundation.clock import SystemClock
from catchment.queue.dead_letter_actions import Retried
from catchment.status.model import Status, StatusPart
from catchment.web.dead_letter_pages import ShownDeadLetter
from catchment.web.live import LISTENERS_MAX, Live
from catchment.web.site import application
from catchment.web.web_server import WebServer
from tests.status.rich_status import rich_letters
from tests.web.text_browser import House

T = TypeVar("T")
NARROW, WIDE = 400, 1600
INTERVAL_S = 0.2
RETRY_MS = 200
OUT = Path(__file__).with_name("out")
_WAIT_S_MAX = 20.0
_HEIGHT = 900
CONTRAST_MIN = 4.5
_IS_FOCUS_SEEN = """
const style = getComputedStyle(document.activeElement);
const box = document.activeElement.getBoundingClientRect();
const isInside = box.bottom > 0 && box.top < innerHeight && box.right > 0 && box.left < innerWidth;
return isInside && style.outlineStyle === "solid" && parseFloat(style.outlineWidth) >= 2;
"""
# Colours may be see-through: what a text stands on is what lies below it, from the bottom up.
_FAINT = """
const least = arguments[0];
const canvas = Object.assign(document.createElement("canvas"), {width: 1, height: 1});
const context = canvas.getContext("2d", {willReadFrequently: true});
const painted = (colours) => {
  context.clearRect(0, 0, 1, 1);
  for (const colour of colours) { context.fillStyle = colour; context.fillRect(0, 0, 1, 1); }
  return context.getImageData(0, 0, 1, 1).data;
};
const light = (data) => {
  const linear = (part) => (part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4);
  const [r, g, b] = [...data].slice(0, 3).map((part) => linear(part / 255));
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
};
const found = new Set();
const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
while (walker.nextNode()) {
  const text = walker.currentNode.data.trim();
  const element = walker.currentNode.parentElement;
  if (!text || !element.checkVisibility() || element.closest("svg, .skip, .unseen")) continue;
  const below = [];
  for (let each = element; each; each = each.parentElement) below.unshift(getComputedStyle(each).backgroundColor);
  const ground = ["white", ...below];
  const [one, other] = [light(painted(ground)), light(painted([...ground, getComputedStyle(element).color]))];
  const contrast = (Math.max(one, other) + 0.05) / (Math.min(one, other) + 0.05);
  if (contrast < least) found.add(`${contrast.toFixed(2)}: ${text.slice(0, 40)}`);
}
return [...found];
"""


def find_chromium() -> tuple[str, str] | None:
    """Browser and driver of this machine; None where either is missing."""
    browser, driver = shutil.which("chromium") or shutil.which("chromium-browser"), shutil.which("chromedriver")
    return (browser, driver) if browser and driver else None


class Window:
    """One window of one browser; every test begins with an empty page and without cookies."""

    def __init__(self, browser: str, driver: str, profile: Path) -> None:
        options = webdriver.ChromeOptions()
        options.binary_location = browser
        for argument in (
            *("--headless=new", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"),
            *("--disable-background-networking", "--disable-component-update", "--hide-scrollbars"),
            # Without features for people who browse: they are a fifth of its CPU.
            *("--disable-extensions", "--disable-default-apps", "--disable-sync", "--disable-breakpad"),
            *("--in-process-gpu", "--renderer-process-limit=1", "--disable-site-isolation-trials"),
            "--disable-features=Translate,MediaRouter,OptimizationHints,AutofillServerCommunication",
            f"--user-data-dir={profile}",
        ):
            options.add_argument(argument)
        if os.geteuid() == 0:
            # Chromium's sandbox does not work for root.
            options.add_argument("--no-sandbox")
        options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
        self.driver = webdriver.Chrome(options, webdriver.ChromeService(driver))

    def close(self) -> None:
        """End the browser."""
        self.driver.quit()

    def clear(self) -> None:
        """As if it had just been opened."""
        self.driver.get("about:blank")
        self.driver.execute_cdp_cmd("Network.clearBrowserCookies", {})
        self.look(WIDE)
        self.complaints()
        self.hosts()

    def look(self, width: int, *, dark: bool = False) -> None:
        """Be that wide, and light or dark."""
        metrics = {"width": width, "height": _HEIGHT, "deviceScaleFactor": 1, "mobile": False}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
        features = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})

    def open(self, address: str) -> None:
        """Load a page."""
        self.driver.get(address)

    def run(self, script: str, *arguments: Any) -> Any:
        """What a script in the page returns."""
        return self.driver.execute_script(script, *arguments)

    def find(self, selector: str) -> WebElement:
        """The first element that a CSS selector fits."""
        return self.driver.find_element(By.CSS_SELECTOR, selector)

    def click(self, selector: str) -> None:
        """Click on it; once more where the page was renewed in between."""
        self._tried(lambda: self.find(selector).click(), selector)

    def hold(self, selector: str) -> None:
        """Put the pointer there, and press."""
        self._tried(
            lambda: ActionChains(self.driver, duration=0).click_and_hold(self.find(selector)).perform(), selector
        )

    def let_go(self) -> None:
        """Release the pointer."""
        ActionChains(self.driver, duration=0).release().perform()

    def count(self, selector: str) -> int:
        """How many elements a CSS selector fits."""
        return len(self.driver.find_elements(By.CSS_SELECTOR, selector))

    def text(self, selector: str = "body") -> str:
        """What is to be read there now; the page may renew itself meanwhile."""
        return str(self.run("return document.querySelector(arguments[0])?.innerText ?? ''", selector))

    def until(self, condition: Callable[[], T], said: str) -> T:
        """Wait for something to be so."""
        return WebDriverWait(self.driver, _WAIT_S_MAX, poll_frequency=0.05).until(lambda _: condition(), said)

    def press(self, *keys: str) -> None:
        """Press keys, one after the other, wherever the focus is."""
        ActionChains(self.driver, duration=0).send_keys(*keys).perform()

    def tab_to(self, selector: str, *, tabs_max: int = 60) -> int:
        """Press Tab until the focus is there; how often that was."""
        for tabs in range(1, tabs_max + 1):
            self.press(Keys.TAB)
            if self.run("return document.activeElement.matches(arguments[0])", selector):
                return tabs
        raise AssertionError(f"{selector} is not reached by {tabs_max} tabs")

    def type_into(self, id_: str, text: str) -> None:
        """Type, and press Enter, once the field of that id has the focus."""
        self.until(lambda: self.run("return document.activeElement.id") == id_, f"{id_} does not get the focus")
        self.press(text, Keys.ENTER)

    def log_in(self, name: str, password: str) -> None:
        """Fill in the form that is open."""
        self.type_into("name", f"{name}{Keys.TAB}{password}")

    def shot(self, name: str) -> Path:
        """Keep a picture of the whole page."""
        OUT.mkdir(exist_ok=True)
        asked = {"captureBeyondViewport": True, "format": "png"}
        found = self.driver.execute_cdp_cmd("Page.captureScreenshot", asked)
        path = OUT / f"{name}.png"
        path.write_bytes(base64.b64decode(found["data"]))
        return path

    def complaints(self) -> list[str]:
        """What the browser has complained of since the last call."""
        return [each["message"] for each in self._log("browser") if each["level"] in ("SEVERE", "WARNING")]

    def overflow(self) -> int:
        """By how much the page is wider than the window."""
        return int(self.run("return document.scrollingElement.scrollWidth - window.innerWidth"))

    def is_focus_seen(self) -> bool:
        """Whether what has the focus shows it, within the window."""
        return bool(self.run(_IS_FOCUS_SEEN))

    def faint(self) -> list[str]:
        """Texts whose contrast is below what WCAG AA asks for."""
        return [str(each) for each in self.run(_FAINT, CONTRAST_MIN)]

    def hosts(self) -> set[str]:
        """The hosts that pages have asked since the last call."""
        asked = set()
        for line in self._log("performance"):
            message = json.loads(line["message"])["message"]
            if message["method"] == "Network.requestWillBeSent":
                asked.add(urlsplit(message["params"]["request"]["url"]).netloc)
        return asked - {""}

    def _log(self, kind: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.driver.execute("getLog", {"type": kind})["value"]
        return found

    def _tried(self, act: Callable[[], object], selector: str) -> None:
        def tried() -> bool:
            try:
                act()
            except StaleElementReferenceException:
                return False
            return True

        self.until(tried, f"{selector} is never there for long enough")


@dataclass
class Desk:
    """Dead letters of a house, as of now."""

    retried: list[Sequence[str] | None] = field(default_factory=list)

    def letters(self) -> StatusPart[tuple[ShownDeadLetter, ...]]:
        now = SystemClock().now()
        return StatusPart(now, rich_letters(now))

    def retry(self, ids: Sequence[str] | None) -> Retried:
        self.retried.append(ids)
        return Retried(delivered=tuple(ids or ()), refused={})


@dataclass
class Stage:
    """Where it is, and what it shows."""

    address: str
    show: Callable[[datetime], Status]
    house: House

    @property
    def port(self) -> int:
        return urlsplit(self.address).port or 0


@contextmanager
def staged(
    show: Callable[[datetime], Status], *, is_open: bool = True, port: int = 0, listeners_max: int = LISTENERS_MAX
) -> Iterator[Stage]:
    """Serve what `show` makes of the moment, to every client as an admin, or to users only."""
    clock = SystemClock()
    stage = Stage("", show, House(is_open=is_open))
    app = application(
        lambda: stage.show(clock.now()),
        stage.house,
        dead_letters=Desk(),
        hosts=("127.0.0.1",),
        live=Live(clock=clock, listeners_max=listeners_max, interval_s=INTERVAL_S, retry_ms=RETRY_MS),
    )
    web = WebServer(app, host="127.0.0.1", port=port)
    web.start()
    stage.address = web.address
    try:
        yield stage
    finally:
        web.stop()
