"""Pictures of every page as a person sees it: `python -m benchmarks.screenshots URL FOLDER`, of a running dashboard.

`vedette demo` plays rendered footage, so that what it shows may be shown to anybody: start it, wait for some alerts,
and give its address. Each page is kept at 390, 1440 and 2560 CSS pixels, light and dark, as PAGE-WIDTH-SCHEME.png;
`--language de` asks for another language, `--only alerts,live` for some pages.

`make screens` takes those that README.md and docs/dashboard.md show, of a running `make demo`, into docs/screens.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import cv2
import numpy as np
from playwright import sync_api as playwright

from benchmarks.dashboard_load import chromium

WIDTHS = {390: 844, 1440: 900, 2560: 1440}
PAGES = {
    "alerts": "/", "live": "/live", "timeline": "/timeline", "cameras": "/cameras", "camera-new": "/cameras/new",
    "savings": "/savings?since=all", "scenarios": "/scenarios", "proofs": "/proofs", "agreement": "/agreement",
    "storage": "/storage", "models": "/models", "notify": "/notify", "settings": "/settings",
    "settings-storage": "/settings/storage", "settings-uplink": "/settings/uplink", "adjoining": "/settings/adjoining",
    "users": "/users", "access": "/access", "account": "/account", "system": "/system", "login": "/login",
    "missing": "/nowhere",
}  # fmt: skip
README = {"alerts": "alerts", "alert": "alert", "timeline": "timeline", "zones": "camera-edit", "phone": "alerts"}
README_SIZE, QUALITY = (1000, 625), 80  # of what was 1440 wide; a phone's stay as they are
SETTLE_MS = 1500  # of pictures and drawings that come after the page


def pages_of(page: playwright.Page, url: str) -> dict[str, str]:
    """Return the pages of this site.

    They are those that every site has, one alert, and one camera with the pages below it.
    """
    found = dict(PAGES)
    page.goto(url)
    for name, selector in (("alert", ".card .open"), ("camera", ".states a")):
        link = page.locator(selector).first
        if link.count():
            found[name] = link.get_attribute("href") or ""
    if camera := found.get("camera"):
        below = ("edit", "settings", "timeline", "trials", "why")
        found |= {f"camera-{name}": f"{camera}/{name}" for name in below}
    return found


def take_readme(browser: playwright.Browser, pages: dict[str, str], url: str, folder: Path) -> None:
    """Write the pictures that the documents show, bright, as WebP."""
    for name, page_name in README.items():
        width = 390 if name == "phone" else 1440
        page = browser.new_page(
            viewport={"width": width, "height": WIDTHS[width]}, color_scheme="light", locale="en-GB"
        )
        page.goto(url + pages[page_name])
        page.wait_for_timeout(2 * SETTLE_MS)
        if page_name == "timeline":
            page.locator(".stage canvas[data-t]").first.wait_for()
        image = cv2.imdecode(np.frombuffer(page.screenshot(), np.uint8), cv2.IMREAD_COLOR)
        assert image is not None, "the browser made no picture"
        smaller = image if name == "phone" else cv2.resize(image, README_SIZE, interpolation=cv2.INTER_AREA)
        cv2.imwrite(str(folder / f"{name}.webp"), smaller, [cv2.IMWRITE_WEBP_QUALITY, QUALITY])
        page.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url", help="of the dashboard, such as http://127.0.0.1:8080")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--language", default="en")
    parser.add_argument("--only", default="", help="names of pages, with commas")
    parser.add_argument("--widths", default="390,1440,2560")
    parser.add_argument("--schemes", default="light,dark")
    parser.add_argument("--readme", action="store_true", help="only those that the documents show")
    parser.add_argument("--whole", action="store_true", help="all of each page, not what the window shows")
    wanted = parser.parse_args()
    wanted.folder.mkdir(parents=True, exist_ok=True)
    with playwright.sync_playwright() as driver:
        browser = chromium(driver)
        first = browser.new_page()
        pages = pages_of(first, wanted.url)
        first.close()
        if wanted.readme:
            take_readme(browser, pages, wanted.url, wanted.folder)
            return
        for width in map(int, wanted.widths.split(",")):
            for scheme in wanted.schemes.split(","):
                context = browser.new_context(
                    viewport={"width": width, "height": WIDTHS.get(width, 900)}, color_scheme=scheme,
                    locale={"en": "en-GB"}.get(wanted.language, wanted.language),
                )  # fmt: skip
                page = context.new_page()
                for name, path in pages.items():
                    if wanted.only and name not in wanted.only.split(","):
                        continue
                    page.goto(wanted.url + path)
                    page.wait_for_timeout(SETTLE_MS)
                    file = wanted.folder / f"{name}-{width}-{scheme}.png"
                    page.screenshot(path=str(file), full_page=wanted.whole)
                    wide = page.evaluate("document.documentElement.scrollWidth - innerWidth")
                    print(f"{file.name}{f': {wide} px wider than the window' if wide > 0 else ''}")
                context.close()
        browser.close()


if __name__ == "__main__":
    main()
