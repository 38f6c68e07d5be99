"""The page of `galley report` in a real browser: what a reader sees, and that nothing leaves it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Error, Page, sync_playwright
from torch import nn

import torch_galley
from tests.unit.tools.test_page import EVIL, chain, named
from torch_galley.cluster.seed import GraphOp
from torch_galley.tools.report.report import Report

pytestmark = pytest.mark.filterwarnings("ignore")

SIZES = [(1280, 900), (800, 900), (390, 844)]


def mlp() -> Report:
    model = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 4)).eval()
    return torch_galley.report(model, torch.randn(2, 8))


def evil() -> Report:
    return named([GraphOp(f"{text}{n}", text, ()) for n, text in enumerate(EVIL)])


REPORTS = {
    "network": mlp,
    "chain": lambda: chain(40),
    "large": lambda: chain(2000),
    "evil": evil,
}


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """CHROMIUM, the chromium on the PATH, or the one that playwright installed."""
    path = os.environ.get("CHROMIUM") or shutil.which("chromium")
    with sync_playwright() as playwright:
        try:
            browser = playwright.chromium.launch(executable_path=path)
        except Error as error:
            pytest.skip(f"no Chromium: set CHROMIUM, or `playwright install chromium` ({error})")
        yield browser
        browser.close()


@pytest.fixture(scope="module", params=REPORTS)
def page_file(request, tmp_path_factory) -> Path:
    file = tmp_path_factory.mktemp("page") / "page.html"
    file.write_text(REPORTS[request.param]().to_html(), "utf-8")
    return file


def opened(browser: Browser, file: Path, **options) -> tuple[Page, list[str]]:
    """Open a page; the list fills with what goes wrong and with whatever it asks the world for."""
    page = browser.new_context(**options).new_page()
    seen: list[str] = []
    page.on("console", lambda message: seen.append(f"console: {message.text}"))
    page.on("pageerror", lambda error: seen.append(f"error: {error}"))
    page.on("dialog", lambda dialog: seen.append(f"dialog: {dialog.message}"))

    def blocked(route, request):
        if request.url == file.as_uri():
            return route.continue_()
        seen.append(f"request: {request.url}")
        return route.abort()

    page.route("**", blocked)
    page.goto(file.as_uri())
    return page, seen


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", SIZES, ids=lambda s: f"{s[0]}")
def test_it_opens_quietly_and_fits(browser, page_file, size, scheme):
    width, height = size
    page, seen = opened(
        browser, page_file, viewport={"width": width, "height": height}, color_scheme=scheme
    )
    assert seen == []
    assert page.title()
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    page.context.close()


def test_light_and_dark_differ(browser, page_file):
    colours = set()
    for scheme in ("light", "dark"):
        page, _ = opened(browser, page_file, color_scheme=scheme)
        colours.add(page.evaluate("getComputedStyle(document.documentElement).backgroundColor"))
        page.context.close()
    assert len(colours) == 2


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_everybody_can_read_it(browser, page_file, scheme):
    # The page's policy forbids scripts, axe's too.
    page, _ = opened(browser, page_file, bypass_csp=True, color_scheme=scheme)
    found = Axe().run(page)
    assert found.violations_count == 0, found.generate_report()
    page.context.close()


def test_a_request_would_be_seen(browser, tmp_path):
    file = tmp_path / "canary.html"
    file.write_text("<title>t</title><img src='http://127.0.0.1:9/x.png'>", "utf-8")
    page, seen = opened(browser, file)
    assert any(line.startswith("request: ") for line in seen)
    page.context.close()
