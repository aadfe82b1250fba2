"""The page in a browser, at the widths of a phone, a tablet and a screen."""

from __future__ import annotations

from pathlib import Path

import pytest

from linumpy.report.build import build_report
from tests.report.browser import CHROMIUM, NO_CHROMIUM, take_steps

STEPS = """
const click = (element) =>
  element.dispatchEvent(new view.MouseEvent("click", { bubbles: true, composed: true }));
const widest = Math.max(...[...page.querySelectorAll("main *, header *")]
  .filter((e) => !e.closest(".scroll, dialog, .image, svg"))
  .map((e) => e.getBoundingClientRect().right));
const found = { page: page.documentElement.scrollWidth, widest };
// Texts of scale bars stay inside their images, and none of a plot is black on a dark page.
found.cut = [...page.querySelectorAll(".image .bar span")].filter((text) => {
  const [a, b] = [text, text.closest(".image")].map((e) => e.getBoundingClientRect());
  return a.right > b.right + 0.5 || a.left < b.left - 0.5;
}).length;
found.black = [...page.querySelectorAll(".plot svg text")]
  .filter((text) => view.getComputedStyle(text).fill === "rgb(0, 0, 0)").length;

// A click enlarges an image, an arrow leads on, Close closes.
const card = page.querySelector(".card .image");
found.small = card.getBoundingClientRect().width;
click(card);
const dialog = page.querySelector("dialog");
found.opened = dialog.open;
const large = dialog.querySelector(".shown .image");
found.large = large.getBoundingClientRect().width;
found.fits = large.getBoundingClientRect().bottom <= view.innerHeight;
found.caption = dialog.querySelector("p").textContent;
dialog.dispatchEvent(new view.KeyboardEvent("keydown", { key: "ArrowRight", bubbles: true }));
found.next = dialog.querySelector("p").textContent;
click([...dialog.querySelectorAll("button")].at(-1));
found.closed = !dialog.open;
click(page.querySelector(".plot svg"));
found.plot = dialog.querySelectorAll(".shown svg").length;
dialog.close();

// Tables sort by number and by name, and are searched.
const table = page.querySelector("#slices ~ details table.data");
table.closest("details").open = true;
const column = (n) => [...table.rows].slice(1).map((row) => row.cells[n].textContent);
const heading = [...table.rows[0].cells].find((cell) => cell.textContent === "Quality");
click(heading);
found.rising = column(3);
click(heading);
found.falling = column(3);
const search = table.closest("details").querySelector("input[type=search]");
search.value = "TORN";
search.dispatchEvent(new view.Event("input"));
found.searched = [...table.rows].slice(1).filter((row) => !row.hidden)
  .map((row) => row.cells[0].textContent);

// Sliders move the planes of the brain; a click moves the other two.
const views = [...page.querySelectorAll(".brain .view")];
const state = (v, name) => v.querySelector(".image").style.getPropertyValue(name);
const slider = views[0].querySelector("input");
slider.value = 0;
slider.dispatchEvent(new view.Event("input"));
found.frame = state(views[0], "--i");
found.depth = views[0].querySelector("output").textContent;
const box = views[0].querySelector(".image").getBoundingClientRect();
views[0].querySelector(".image").dispatchEvent(new view.PointerEvent("pointerdown",
  { clientX: box.left + 0.25 * box.width, clientY: box.top + 0.75 * box.height }));
found.clicked = [state(views[0], "--column"), state(views[0], "--row")].map(Number);
found.others = views.slice(1).map((v) => Number(state(v, "--i")) / v.dataset.frames);

// Packed plots unfold when their slice is opened.
const packed = page.querySelector(".packed").closest("details");
packed.open = true;
await wait(1);
found.unfolded = packed.querySelectorAll("svg").length;
found.pictures = [...page.images].filter((i) => i.loading !== "lazy" && !i.naturalWidth).length;

// Light and dark, by the system and by the button.
const paper = () => view.getComputedStyle(page.body).backgroundColor;
const ink = () => view.getComputedStyle(page.querySelector(".plot svg text")).fill;
found.papers = [paper()];
found.inks = [ink()];
click([...page.querySelectorAll("header button")].at(-1));
found.papers.push(paper());
found.inks.push(ink());
return found;
"""
WHITE, DARK = "rgb(255, 255, 255)", "rgb(21, 24, 28)"


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason=NO_CHROMIUM)
def test_people_can_look_at_the_page(pristine_run: Path, tmp_path: Path) -> None:
    """Seen to fail with a block of 600 px; without the hash, the sort by number and `unpack`.

    And without the colour of texts.
    """
    address = tmp_path / "report.html"
    address.write_text(build_report(pristine_run), encoding="utf-8")
    for width, dark in ((390, False), (820, True), (1440, False)):
        flags = ["--blink-settings=preferredColorScheme=0"] if dark else []
        found = take_steps(tmp_path, address.as_uri(), width, STEPS, *flags)
        assert found["page"] <= width and found["widest"] <= width, width
        assert found["cut"] == found["black"] == 0, width
        assert found["opened"] and found["closed"] and found["fits"]
        assert found["large"] > 1.5 * found["small"]
        assert found["caption"].startswith("z00") and found["next"].startswith("z02")
        assert found["plot"] == 1
        assert found["rising"] == ["0.21", "0.93", *"–––––"]
        assert found["falling"] == ["0.93", "0.21", *"–––––"]
        assert found["searched"] == ["z03"]
        assert (found["frame"], found["depth"]) == ("0", "0.00 mm")
        assert found["clicked"] == pytest.approx([0.25, 0.75], abs=0.02)
        assert found["others"] == pytest.approx([0.75, 0.25], abs=0.05)
        assert found["unfolded"] == 2
        assert found["pictures"] == 0
        assert found["papers"] == ([DARK, WHITE] if dark else [WHITE, DARK])
        assert found["inks"][0] != found["inks"][1]
