"""The page of `matex-tf label` in a real browser: Debian's Chromium, driven by Playwright.

`apt-get install chromium` brings the browser; without it the tests are skipped.
"""

import os
import shutil
import signal
import time
from pathlib import Path

import numpy as np
import pytest

from tests.features.label.label_server import Running, discs, own_port

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium here: apt-get install chromium")
SECONDS = 60
LOADED = "[...document.images].every((one) => one.complete && one.naturalWidth)"


@pytest.fixture(scope="module")
def browser():
    api = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed: pip install playwright")
    with api.sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield started
        started.close()


class Window:
    """A window of the browser with the page in it; an error in its console fails the test that looks."""

    def __init__(self, browser, url, width=1280, height=800, **more):
        self.context = browser.new_context(viewport={"width": width, "height": height}, **more)
        self.page = self.context.new_page()
        self.errors = []
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on("console", lambda said: self.errors.append(said.text) if said.type == "error" else None)
        self.page.goto(url)
        self.page.wait_for_selector(".tile img")

    def until(self, true, what):
        end = time.monotonic() + SECONDS
        while not true():
            assert time.monotonic() < end, f"{what} did not come; {self.errors}"
            self.page.wait_for_timeout(20)

    def tile(self, place):
        return self.page.locator(f"#tile-{place}")

    def image(self, place):
        return int(self.tile(place).get_attribute("data-image"))

    def says(self, image, text):
        """Wait until an image that is shown is said to be this."""
        tile = self.page.locator(f'.tile[data-image="{image}"]')
        self.until(lambda: tile.count() and text in tile.get_attribute("aria-label"), f"image {image}: {text}")

    def keys(self, *keys):
        for key in keys:
            self.page.keyboard.press(key)

    def box(self, selector):
        """Where something is in the window; what is drawn anew at this moment is looked for again."""
        boxes = []
        self.until(lambda: boxes.append(self.page.locator(selector).bounding_box()) or boxes[-1], selector)
        return boxes[-1]

    def drag(self, place, group):
        start, end = self.box(f"#tile-{place}"), self.box(f'li[data-group="{group}"]')
        self.page.mouse.move(start["x"] + 20, start["y"] + 20)
        self.page.mouse.down()
        self.page.mouse.move(start["x"] - 40, start["y"] + 60, steps=3)
        self.page.mouse.move(end["x"] + 30, end["y"] + 15, steps=3)
        self.page.mouse.up()

    def broken_rules(self):
        """The rules of accessibility (axe-core: WCAG 2.2 A and AA, and best practices) that the page breaks."""
        from axe_playwright_python.sync_playwright import Axe

        found = Axe().run(self.page).response["violations"]
        return [(one["id"], [node["html"][:100] for node in one["nodes"]][:3]) for one in found]


@pytest.fixture
def served(tmp_path):
    """Starts a server on 300 images."""
    started = []

    def serve(*words, count=300):
        if not (tmp_path / "x.npy").exists():
            np.save(tmp_path / "x.npy", discs(count)[0])
        started.append(Running(tmp_path, ["x.npy", "--classes", "disc,square", *words]))
        return started[-1]

    yield serve
    for one in started:
        if one.process.poll() is None:
            one.stop()


def test_people_label(browser, served):
    """By keys and by drag; undo; another window sees it at once; a reload, and a server that is killed and started
    again, lose nothing; people disagree; rules of accessibility hold."""
    running = served("--train", "off", "--person", "ann", "--port", own_port())
    ann, bob = Window(browser, running.url), Window(browser, running.url)
    bob.page.evaluate("localStorage.setItem('matex-label-person', 'bob')")
    bob.page.reload()
    first, second, third = ann.image(0), ann.image(1), ann.image(2)
    for window in (ann, bob):
        window.keys("a")  # all images, in their order
        window.until(lambda window=window: window.image(0) == 0, "the view of all images")
    ann.keys("q")
    ann.until(lambda: ann.image(0) == first, "the queue")
    ann.keys("1")  # the first of the queue; the focus goes on to the next
    ann.says(first, "labelled disc")
    ann.keys("2")
    ann.says(second, "labelled square")
    ann.drag(2, 1)
    ann.says(third, "labelled disc")
    ann.keys("Control+z")
    ann.says(third, "no label")
    ann.keys("Control+Shift+z")
    ann.says(third, "labelled disc")
    running.until(lambda known: [known["labels"][image] for image in (first, second, third)] == [1, 2, 1])
    skipped = ann.image(5)
    ann.tile(5).click()
    ann.keys("s")  # by ann alone: for others it has no label
    ann.says(skipped, "skipped")
    known = running.until(lambda known: known["skipped"])  # the page says so before the server knows
    assert known["labels"][skipped] == -2 and known["skipped"] == {str(skipped): ["ann"]}

    ann.keys("a")
    ann.tile(0).click()
    ann.tile(4).click(modifiers=["Shift"])  # select five
    assert ann.page.locator('.tile[aria-selected="true"]').count() == 5
    ann.drag(2, 2)
    bob.says(4, "labelled square")  # in the other window, without a reload
    bob.page.locator("#grid").focus()
    bob.keys("Home", "1")
    bob.says(0, "people disagree: ann says square, bob says disc")
    ann.says(0, "people disagree")
    ann.keys("d")
    ann.until(lambda: ann.page.locator(".tile").count() == 1, "the view of disagreements")
    assert running.ask("/api/image/0")["votes"] == {"ann": 2, "bob": 1}

    ann.keys("n")
    ann.page.keyboard.type("<b>ring</b>")
    ann.keys("Enter")
    ann.until(lambda: ann.page.locator('li[data-group="3"] .name').count(), "the new group")
    assert ann.page.locator('li[data-group="3"] .name').text_content() == "<b>ring</b>"
    bob.until(lambda: bob.page.locator('li[data-group="3"]').count(), "the new group in the other window")

    running.stop(signal.SIGKILL)
    bob.keys("End", "2")  # waits in the page
    again = served("--train", "off", "--person", "ann")
    assert again.url == running.url
    bob.until(lambda: running_labels(again)[299] == 2, "the label that was given while there was no server")
    bob.until(lambda: bob.page.locator("body").get_attribute("data-server") == "here", "the server that is back")
    bob.keys("Home", "2")  # goes on without a reload
    bob.says(0, "labelled square")
    bob.until(lambda: running_labels(again)[0] == 2, "a label of the page that went on")
    ann.page.reload()
    ann.keys("a")
    ann.says(4, "labelled square")
    assert ann.page.locator('li[data-group="3"] .name').text_content() == "<b>ring</b>"

    assert ann.broken_rules() == []
    ann.page.locator("#theme").click()
    ann.keys("?")
    assert ann.broken_rules() == []
    assert [error for error in ann.errors + bob.errors if "ERR_" not in error] == []  # those of the network aside


def running_labels(running):
    return running.ask("/api/all")["labels"]


@pytest.mark.variants(0)
def test_the_queue_holds_still(browser, served):
    """A new queue comes in behind the image in focus. That one stays in its place, and so do those before it."""
    running = served("--train", "off")
    window = Window(browser, running.url)
    first = [window.image(place) for place in range(3)]
    window.keys("1", "2")
    running.until(lambda shown: [shown["labels"][image] for image in first] == [1, 2, -2])
    before = [window.image(place) for place in range(3, 12)]
    running.ask("/api/training", {"ask": "entropy"})
    window.until(lambda: window.page.locator("#controls select").input_value() == "entropy", "the new queue")
    behind = [image for image in running.ask("/api/all")["queue"] if image not in first][:9]
    assert behind != before
    assert [window.image(place) for place in range(12)] == first + behind
    assert window.page.locator(".tile.focus").get_attribute("data-image") == str(first[2])
    assert window.errors == []


@pytest.mark.variants(0)
def test_groups_by_keys(browser, served, tmp_path):
    """Select many, none of these, a new group of what is selected, split, merge, their undo; and the export."""
    running = served("--train", "off", "--person", "ann")
    window = Window(browser, running.url)
    page = window.page

    def labels(wanted):
        window.until(lambda: running_labels(running)[: len(wanted)] == wanted, f"labels {wanted}")

    def asked(title):
        window.until(lambda: page.locator("#asktitle").text_content() == title, title)

    window.keys("a", "Home", "Space", "ArrowRight", "Space", "Shift+ArrowRight", "1")
    labels([1, 1, 1, -2])
    window.keys("Home", "ArrowRight", "ArrowRight", "ArrowRight", "0")
    labels([1, 1, 1, 0])
    window.keys("Home", "ArrowRight", "Space", "x")
    asked("Split disc")
    page.keyboard.type("small")
    window.keys("Enter")
    labels([1, 3, 1, 0])
    window.until(lambda: page.locator('li[data-group="3"] .name').count(), "the group that was split off")
    window.keys("m")
    asked("Merge which group?")
    page.locator("#askselect").select_option("3")
    window.keys("Enter")
    asked("Merge small")
    page.locator("#askselect").select_option("2")
    window.keys("Enter")
    labels([1, 2, 1, 0])
    window.until(lambda: not page.locator('li[data-group="3"]').count(), "the end of the group that was merged")
    window.keys("Control+z")
    labels([1, 3, 1, 0])
    window.keys("Control+z")
    labels([1, 1, 1, 0])
    window.keys("End", "Space", "n")
    asked("New group")
    page.keyboard.type("last")
    window.keys("Enter")
    window.until(lambda: running_labels(running)[299] > 3, "a new group of what is selected")
    with page.expect_download() as waited:
        page.locator('a[href="/export/labels.csv"]').click()
    rows = Path(waited.value.path()).read_text().splitlines()
    assert rows[1].startswith("0,disc,people,1.00,ann: disc") and rows[300].startswith("299,last,people")
    assert window.errors == []


@pytest.mark.variants(0)
def test_keys_alone_at_400_percent(browser, served):
    """A screen of 1280 x 1024 at 400 % is one of 320 x 256: nothing is cut off at the side, and keys do it all."""
    running = served("--train", "off")
    window = Window(browser, running.url, 320, 256)
    assert window.page.evaluate("document.documentElement.scrollWidth") <= 320
    assert window.broken_rules() == []
    page = window.page
    page.evaluate("document.activeElement.blur()")
    seen = []
    for _ in range(60):  # Tab comes to everything, and leaves everything
        window.keys("Tab")
        seen.append(page.evaluate("document.activeElement.id || document.activeElement.className"))
        left, right = page.evaluate(
            "[document.activeElement.getBoundingClientRect()].map((box) => [box.left, box.right])[0]"
        )
        visible = left >= -1 and right <= 321
        assert visible or "jump" in seen[-1], seen[-1]
    for name in ("undo", "redo", "person", "theme", "help", "new", "view-ask", "grid", "put", "more"):
        assert name in seen, (name, seen)
    while page.evaluate("document.activeElement.id") != "grid":
        window.keys("Tab")
    image = window.image(0)
    window.keys("1")
    window.says(image, "labelled disc")
    window.keys("m", "Tab", "Escape")
    window.keys("r")
    page.keyboard.press("Enter")  # the first group
    window.until(lambda: page.locator("#asktitle").text_content() == "Rename disc", "the question for a name")
    page.keyboard.type("round")
    window.keys("Enter")
    window.until(lambda: page.locator('li[data-group="1"] .name').text_content() == "round", "the new name")
    window.keys("v")
    assert window.broken_rules() == []
    assert page.evaluate("document.documentElement.scrollWidth") <= 320
    assert window.errors == []


@pytest.mark.variants(0)
def test_20000_images(browser, served):
    """However many there are, few are in the page; wherever it is scrolled, what can be seen is there in two frames."""
    window = Window(browser, served("--train", "off", count=20_000).url)
    window.keys("a")
    found = window.page.evaluate(
        """async () => {
          const scroll = document.getElementById("scroll"), frame = () => new Promise(requestAnimationFrame);
          const box = scroll.getBoundingClientRect(), most = [], fewest = [], times = [];
          for (let step = 0; step < 119; step++) {
            scroll.scrollTop = step < 60 ? step * 300 : (scroll.scrollHeight / 60) * (step - 60);
            const begin = performance.now();
            await frame(); await frame();
            times.push(performance.now() - begin);
            const tiles = [...document.querySelectorAll(".tile")].map((tile) => tile.getBoundingClientRect());
            most.push(tiles.length);
            const tops = new Set(tiles.filter((at) => at.bottom > box.top && at.top < box.bottom).map((at) => at.top));
            fewest.push((tops.size * (tiles[0].height + 6)) / box.height); // how much of the height is covered
          }
          times.sort((a, b) => a - b);
          const [covered, height] = [Math.min(...fewest), scroll.scrollHeight];
          return { most: Math.max(...most), covered, median: times[60], height };
        }"""
    )
    print(f"two frames while scrolling: {found['median']:.0f} ms; at most {found['most']} images in the page")
    assert found["covered"] > 0.95 and found["most"] < 300 and found["height"] > 100_000
    window.page.locator("#grid").focus()
    window.keys("End", "1")
    window.until(lambda: "1 of 20,000" in window.page.locator("#done").text_content(), "the first label")
    window.keys("Control+a", "2")  # all of them, in one action
    window.until(lambda: "20,000 of 20,000" in window.page.locator("#done").text_content(), "20,000 labels")
    window.keys("Control+z")
    window.until(lambda: "1 of 20,000" in window.page.locator("#done").text_content(), "their undo")
    assert window.errors == []


@pytest.mark.variants(0)
def test_training_while_labelling(browser, served, tmp_path):
    """Ranks learn, and keys are answered all the same; the page shows loss, suggestions, what has changed, the map."""
    kind = discs(300)[1]
    running = served("-n", "2", "--steps", "40", "--size", "12", "--augment", "shift")
    window = Window(browser, running.url, 1360, 860)
    page, slowest = window.page, 0.0
    for _ in range(40):
        image = int(page.locator(".tile.focus").get_attribute("data-image"))
        begin = time.monotonic()
        window.keys(str(kind[image] + 1))
        window.says(image, "labelled")
        slowest = max(slowest, time.monotonic() - begin)
        window.until(
            lambda image=image: page.locator(".tile.focus").get_attribute("data-image") != str(image), "the next"
        )
    assert slowest < 10
    running.until(lambda shown: shown["suggested"] and shown["training"]["state"] == "waiting")
    window.until(lambda: "loss" in page.locator("#figures").text_content(), "the loss")
    window.keys("w")
    window.until(lambda: page.locator(".tile .tag b").count() > 10, "suggestions with their confidence")
    sure = [int(text.rstrip("%")) for text in page.locator(".tile .tag b").all_text_contents()]
    assert sure == sorted(sure, reverse=True)
    window.tile(3).click()
    surest = window.image(3)
    window.keys("Enter")
    running.until(lambda shown: shown["labels"][surest] == shown["suggested"][surest])  # accepted
    page.locator("#semi").uncheck()
    running.until(lambda shown: shown["news"]["round"] >= 2 and shown["news"]["semi"] is False)
    window.keys("c")
    window.until(
        lambda: "without images that have no label" in page.locator("#about").text_content(), "what has changed"
    )
    window.keys("v")
    box = page.locator("#map").bounding_box()
    page.mouse.move(box["x"] + 3, box["y"] + 3)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] - 3, box["y"] + box["height"] - 3, steps=4)
    page.mouse.up()
    window.until(lambda: "300 selected" in page.locator("#selected").text_content(), "the selection on the map")
    assert window.broken_rules() == []
    assert window.errors == []


@pytest.mark.variants(0)
def test_picture_of_the_docs(browser, tmp_path):
    """What docs/label.md shows: `LABEL_PICTURES=docs/images` has it written there."""
    import subprocess
    import sys

    h5py = pytest.importorskip("h5py")
    make = Path(__file__).parents[3] / "examples" / "make_data.py"
    subprocess.run([sys.executable, make, tmp_path, "--crystals", "1000"], check=True)
    kind = h5py.File(tmp_path / "crystals.h5")["labels"][:]
    running = Running(
        tmp_path, ["crystals.h5", "--classes", "water,ice", "-n", "2", "--augment", "rotate", "--person", "ann"]
    )
    try:
        for _ in range(3):
            queue = [
                image for image in running.ask("/api/all")["queue"] if running.ask("/api/all")["labels"][image] == -2
            ][:50]
            for group in (0, 1):
                some = [image for image in queue if kind[image] == group]
                running.ask("/api/act", {"kind": "assign", "person": "ann", "images": some, "group": group + 1})
            running.until(lambda shown: shown["suggested"] and shown["training"]["state"] == "waiting")
        for scheme in ("light", "dark"):
            window = Window(browser, running.url, 1280, 760, color_scheme=scheme)
            window.keys("ArrowRight", "ArrowDown")
            window.until(lambda window=window: window.page.locator("#detail img").count(), "the image in focus")
            window.until(lambda window=window: window.page.evaluate(LOADED), "all pictures")
            path = tmp_path / f"label-{scheme}.png"
            window.page.screenshot(path=path)
            assert path.stat().st_size > 50_000
            if folder := os.environ.get("LABEL_PICTURES"):
                shutil.copy(path, folder)
    finally:
        running.stop()
