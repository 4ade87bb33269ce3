"""The page of kvbound report in a browser: it does what its controls say, fits, can be read, and opens soon.

usage: report_page_view_test.py KVBOUND      KVBOUND: the program's path
KVBOUND_PICTURES=FOLDER keeps pictures of the page in its looks.
"""
import csv
import json
import os
import time
from pathlib import Path

from browser.page_case import FIGURES, LOOKS, PageTest
from support import kvbound_cli
from support.report_documents import BASE, write_large_replay
from support.report_page import column, keys

PICTURES = os.environ.get("KVBOUND_PICTURES")  # a folder for pictures of the page; none are kept without it
TAB, ENTER = "\ue004", "\ue007"

# Texts that overlap each other or their lines, or leave their drawing, and boxes that are wider than the
# page; with an argument also those in boxes that scroll.
COLLISIONS = """
const found = [], box = element => element.getBoundingClientRect();
const meet = (a, b) => a.left < b.right - 1 && b.left < a.right - 1 && a.top < b.bottom - 1 && b.top < a.bottom - 1;
for (const svg of document.querySelectorAll('svg')) {
  const texts = [...svg.querySelectorAll('text')], turned = text => Boolean(text.getAttribute('transform'));
  for (const [i, text] of texts.entries()) {
    const own = box(text), room = box(svg);
    if (own.left < room.left - 1 || own.right > room.right + 1 || own.top < room.top - 1 || own.bottom > room.bottom + 1)
      found.push(`outside: ${text.textContent} in ${svg.closest('figure').id}`);
    const rule = text.matches('.rule') ? text.previousElementSibling : null, ends = rule && box(rule), parts = [...Array(201).keys()];
    const on = part => ({x: ends.left + part * ends.width / 200, y: ends.bottom - part * ends.height / 200});  // rules do not fall
    if (rule && parts.map(on).some(({x, y}) => own.left < x && x < own.right && own.top < y && y < own.bottom))
      found.push(`${text.textContent} on its line in ${svg.closest('figure').id}`);
    for (const other of texts.slice(i + 1))
      if (turned(text) === turned(other) && !turned(text) && meet(own, box(other))) found.push(`${text.textContent} | ${other.textContent} in ${svg.closest('figure').id}`);
  }
}
for (const element of document.querySelectorAll('body *'))
  if ((arguments[0] || !element.closest('.scroll')) && box(element).right > innerWidth + 1) found.push(`wide: ${element.tagName} ${element.className}`);
return found;
"""

# Texts whose colour is too near to that of what is behind them, by WCAG's contrast ratio.
CONTRASTS = """
const channels = text => text.match(/[\\d.]+/g).map(Number);
const light = text => {
  const [r, g, b] = channels(text).map(value => value / 255).map(value => value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4);
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
};
const behind = element => {
  for (let at = element; at; at = at.parentElement) {
    const colour = getComputedStyle(at).backgroundColor;
    if ((channels(colour)[3] ?? 1) > 0) return colour;
  }
  return 'rgb(255, 255, 255)';
};
const ratios = [];
for (const element of document.querySelectorAll('h1, h2, h3, p, td, th, dt, dd, label, legend, summary, button, a, svg text')) {
  if (!element.textContent.trim() || !element.getClientRects().length) continue;
  const style = getComputedStyle(element), colour = element.closest('svg') ? style.fill : style.color;
  const [a, b] = [light(colour), light(behind(element))];
  ratios.push({ratio: (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05), text: element.textContent.slice(0, 40)});
}
return ratios;
"""


class Controls(PageTest):
    def test_filters_act_on_all_figures(self):
        self.filter("policy", f"{BASE}+critical")
        self.assertEqual(self.drawn("Perturbation against budget")["marks"], 2)
        self.assertEqual(self.drawn("Agreement with the reference: shares")["marks"], 0)  # of the base alone
        self.assertEqual(self.drawn("Tightness of the bound")["marks"], 2)
        self.filter("budget", "40%")
        self.assertEqual(self.drawn("Perturbation against budget")["marks"], 1)
        self.filter("layer", "0,2")
        self.assertEqual(self.drawn("L against its bound")["marks"], 2 * 4)
        self.filter("head", "1-3")
        self.assertEqual(self.drawn("L against its bound")["marks"], 2 * 3)
        cube = self.page.cube_of("L against its bound")
        run = list(zip(keys(cube, "policy"), keys(cube, "budget"))).index((f"{BASE}+critical", "40%"))
        chosen = column(cube, "relative")[run][[0, 2], 1:4]
        self.assertAlmostEqual(float(self.rows("Perturbation against budget")[0][2]), chosen.mean())
        self.assertEqual(self.drawn("recall@8")["marks"], len(keys(self.page.cube_of("recall@8"), "score")))

    def test_filters_by_backend_tell_runs_of_one_policy_apart(self):
        title, id = "Perturbation against budget", self.page.data["sections"][1]["figures"][0]["id"]
        self.assertEqual(self.drawn()[id]["marks"], 2)
        self.filter("backend", "emulated")
        self.assertEqual(self.drawn()[id]["marks"], 1)
        self.assertIn("Nothing passes the filters", self.drawn(title)["note"])

    def test_enter_in_a_field_sends_nothing(self):
        self.browser.run("document.querySelector('#filtering').open = true; document.querySelector('[name=layer]').focus()")
        self.browser.press(ENTER)
        self.assertEqual(self.browser.run("return location.protocol"), "file:")

    def test_the_address_keeps_the_view(self):
        self.filter("budget", "20%")
        self.filter("layer", "1")
        self.pick("Change against snapkv:window=4, by", "run", f"{BASE}+keepkv")
        before, address = self.drawn(), self.browser.run("return location.hash")
        self.browser.open(self.path, address)
        self.assertEqual(self.drawn(), before)
        self.browser.run("[...document.querySelectorAll('#filters button')].at(-1).click()")
        self.assertEqual(self.drawn("Perturbation against budget")["marks"], 8)

    def test_links_within_the_page_keep_the_view(self):
        self.filter("budget", "20%")
        before = self.drawn(), self.browser.run("return location.hash")
        titles = [section["title"] for section in self.page.data["sections"]]
        self.assertEqual(self.browser.run("return [...document.querySelectorAll('#contents a')].map(link => link.textContent)"), titles)
        self.browser.run("[...document.querySelectorAll('#contents a')].at(-1).click()")
        self.eventually(lambda: self.browser.run("return location.hash") == before[1], "the address is another one")
        self.assertEqual((self.drawn(), self.browser.run("return location.hash")), before)
        self.assertLess(abs(self.browser.run("return [...document.querySelectorAll('#sections section')].at(-1).getBoundingClientRect().top")), 60)

    def test_budgets_are_in_their_order(self):
        self.assertEqual(list(dict.fromkeys(keys(self.page.cube_of("Perturbation"), "budget"))), ["40%", "20%"])
        boxes = self.browser.run("return [...document.querySelectorAll('[name=budget]')].map(box => box.value)")
        self.assertEqual(boxes, sorted(boxes, key=lambda budget: int(budget[:-1])))
        self.assertEqual([row[1] for row in self.answer()[1]], 4 * ["20%"] + 4 * ["40%"])

    def test_a_list_that_is_none_is_marked_and_does_nothing(self):
        before = self.drawn()
        for text in ("2-x", "5-3", ",", "1," * 200 + "1"):
            self.filter("layer", text)
            self.assertTrue(self.browser.run("return document.querySelector('[name=layer]').matches(':invalid')"))
            self.assertEqual(self.drawn(), before)

    def test_controls_stay_in_sight_and_say_what_is_filtered(self):
        self.browser.open(self.path, "#layer=0-1&budget=20%25")
        self.browser.run("scrollTo(0, document.documentElement.scrollHeight)")
        box = self.browser.run("const {top, bottom} = document.querySelector('#bar').getBoundingClientRect(); return [top, bottom]")
        self.assertEqual(box[0], 0)
        self.assertLess(box[1], 80)
        self.assertEqual(self.browser.run("return document.querySelector('#filtering summary').innerText"),
                         "Filters: only budget 20%; only layer 0-1")

    def test_filters_that_are_none_are_unfolded(self):
        def is_open():
            return self.browser.run("return document.querySelector('#filtering').open")
        for view, unfolded in (("", False), ("#layer=0-1", False), ("#layer=2-x", True)):
            self.browser.open(self.path, view)
            self.assertEqual(is_open(), unfolded, view)

    def test_contents_fold_behind_a_link(self):
        self.browser.run("document.querySelector('#bar summary').click(); document.querySelector('#contents a').click()")
        self.assertFalse(self.browser.run("return document.querySelector('#bar details').open"))

    def test_without_anything_to_filter_there_are_no_filters(self):
        self.browser.open(self.make_page("prove.html", "prove.json"))
        self.assertFalse(self.browser.run("return document.querySelector('#filtering').checkVisibility()"))

    def test_where_nothing_passes_figures_say_so(self):
        self.filter("layer", "77")
        self.assertEqual(self.browser.run("return document.querySelector('#answer .filtered').textContent"), "Nothing passes the filters.")
        self.assertIn("Nothing passes the filters", self.drawn("Perturbation against budget")["note"])

    def test_one_menu_saves_numbers_and_drawings(self):
        self.assertEqual(self.browser.run("return document.querySelectorAll('#answer button, #sections button').length"), 0)
        figure = self.page.figure("Layer profile")["id"]
        for i, ending in enumerate(("csv", "svg", "png")):
            self.browser.run("""
                document.querySelector('#saving select').value = arguments[0];
                document.querySelectorAll('#saving button')[arguments[1]].click();
            """, figure, i)
            content = self.saved(f"{figure}.{ending}")
            if ending == "csv":
                rows = list(csv.reader(content.decode().splitlines()))
                self.assertEqual(rows[0], ["budget", "run", "layer", "relative L", "numbers"])
                self.assertEqual(rows[1:], [["40%", *row] for row in self.rows("Layer profile")])
            elif ending == "svg":
                self.assertTrue(content.startswith(b"<svg"))
                self.assertNotIn(b"var(", content)
                self.assertEqual(content.count(b'class="mark"'), 4 * 3)
                self.assertIn(b">Layer profile<", content)
                self.assertIn(b">budget 40%<", content)
            else:
                self.assertTrue(content.startswith(b"\x89PNG"))
                self.assertGreater(len(content), 5000)

    def test_the_menu_offers_the_figure_that_is_in_sight(self):
        figure = self.page.figure("Rank correlation")["id"]
        self.browser.run("document.getElementById(arguments[0]).scrollIntoView({block: 'center'})", figure)
        self.browser.run("document.querySelector('#saving').open = true")
        self.eventually(lambda: self.browser.run("return document.querySelector('#saving select').value") == figure, "another figure is offered")

    def saved(self, name):
        path = self.downloads / name
        self.eventually(lambda: path.exists() and path.stat().st_size > 0, f"{name} was not saved")
        return path.read_bytes()

    def test_all_are_reached_by_the_keyboard(self):
        self.browser.run("for (const menu of document.querySelectorAll('#bar details')) { menu.removeAttribute('name'); menu.open = true; }")
        # Boxes of tables that are closed cannot be reached.
        wanted = self.browser.run("return [...document.querySelectorAll('input, select, button, summary, a[href], .scroll')]"
                                  ".filter(one => one.checkVisibility()).length")
        self.browser.run("window.reached = new Set(); document.addEventListener('focusin', event => reached.add(event.target))")
        for _ in range(wanted + 5):
            self.browser.press(TAB)
        self.assertEqual(self.browser.run("return reached.size"), wanted)

    def test_numbers_open_by_the_keyboard(self):
        self.browser.run("document.querySelector('.numbers summary').focus()")
        self.browser.press(ENTER)
        self.eventually(lambda: self.browser.run("return document.querySelectorAll('details tbody tr').length") > 0, "no numbers")


class Looks(PageTest):
    def test_nothing_overlaps_or_is_cut_off(self):
        for name, look in LOOKS.items():
            with self.subTest(name):
                self.browser.look(**look)
                self.browser.open(self.path)
                if PICTURES:
                    (Path(PICTURES) / f"{name}.png").write_bytes(self.browser.picture())
                # paper cannot be scrolled
                self.assertEqual(self.browser.run(COLLISIONS, name == "print"), [])

    def test_labels_tell_numbers_apart_that_are_nearly_the_same(self):
        document = json.loads((self.maker.folder / "replay.json").read_text("utf-8"))
        columns = document["parts"][0]["cubes"]["heads"]["columns"]
        columns["bound"] = [bound and 12345.6 + 0.1 * (i % 4) for i, bound in enumerate(columns["bound"])]
        (self.maker.folder / "near.json").write_text(json.dumps(document), "utf-8")
        self.browser.open(self.make_page("near.html", "near.json"))
        labels = self.browser.run("""
            const axis = document.querySelector(`#${arguments[0]} .axis`);
            return [...axis.querySelectorAll('text')].map(text => text.textContent).filter(Boolean);
        """, self.page.figure("L against its bound")["id"])
        self.assertGreater(len(labels), 1)
        self.assertEqual(len(set(labels)), len(labels))

    def test_axes_of_numbers_have_two_labels(self):
        """But for lines, whose places are labelled where they are few: of one there is one label."""
        numbered = {figure["id"]: {"lines": 2, "scatter": 2, "dots": 1}.get(figure["kind"], 0) for figure in self.page.figures()}
        one_budget = self.page.data["sections"][1]["figures"]
        numbered |= {figure["id"]: 0 for figure in one_budget if figure["x"]["value"] == "amount"}
        for name, look in LOOKS.items():
            self.browser.look(**look)
            self.browser.open(self.path)
            labels = self.browser.run("""
                const count = axis => new Set([...axis.querySelectorAll('text')].map(text => text.textContent).filter(Boolean)).size;
                return [...document.querySelectorAll('figure')].map(figure => [figure.id, [...figure.querySelectorAll('.axis')].map(count)]);
            """)
            self.assertEqual([(name, id) for id, counts in labels if sum(count > 1 for count in counts[:numbered[id]]) < numbered[id]], [])

    def test_paper_says_what_is_picked_and_filtered(self):
        self.browser.open(self.path, "#layer=0-1")
        self.browser.look(**LOOKS["print"])
        shown = self.browser.run("""
            const texts = [...document.querySelectorAll('.shown')].filter(text => text.checkVisibility()).map(text => text.textContent);
            return [texts, document.querySelector('#bar').checkVisibility(), document.querySelector('.controls').checkVisibility()];
        """)
        self.assertEqual(shown[1:], [False, False])
        self.assertIn("budget 40%; only layer 0-1", shown[0])
        self.assertEqual(self.browser.run("return [...document.querySelectorAll('#answer .filtered')].filter(text => text.checkVisibility())[0].textContent"),
                         "only layer 0-1")

    def test_say_only_of_filters_that_act_what_is_shown(self):
        def texts():
            return self.browser.run("return [...document.querySelectorAll('.shown, #answer .filtered')].map(text => text.textContent)")
        self.browser.open(self.path, "#layer=2-x")
        self.assertFalse(any("only" in text for text in texts()))
        self.browser.open(self.path, "#policy=snapkv:window=4%2Bcritical")
        self.assertIn("only policy", texts()[0])
        acts = {figure["id"]: any("policy" in axis["keys"] for axis in self.page.cubes[figure["cube"]]["axes"])
                for figure in self.page.figures()}
        shown = self.browser.run("return [...document.querySelectorAll('figure')].map(box => [box.id, box.querySelector('.shown').textContent])")
        self.assertEqual({figure: "only policy" in text for figure, text in shown}, acts)

    def test_texts_have_contrast(self):
        for name, look in LOOKS.items():
            with self.subTest(name):
                self.browser.look(**look)
                self.browser.open(self.path)
                ratios = self.browser.run(CONTRASTS)
                self.assertGreater(len(ratios), 300)
                self.assertEqual([one for one in ratios if one["ratio"] < 4.5], [])

    def test_tables_say_that_they_scroll_where_they_do(self):
        notes = """
            return [...document.querySelectorAll('.scrolls')].filter(note => !note.closest('details:not([open])')).map(note => {
              const box = note.nextSibling, right = box.getBoundingClientRect().right, columns = [...box.querySelectorAll('th')];
              const hidden = columns.filter(cell => cell.getBoundingClientRect().right > right + 1).length;
              return [note.checkVisibility() ? note.textContent : '', hidden, columns.length, box.scrollWidth > box.clientWidth];
            });
        """
        for name, scroll in (("phone", True), ("light", False)):
            self.browser.look(**LOOKS[name])
            self.browser.open(self.path)
            self.eventually(lambda: self.browser.run(notes)[0][3] == scroll, "the first table has another width")
            time.sleep(0.2)  # observers are told after the layout
            found = self.browser.run(notes)
            self.assertGreater(len(found), 3)
            for text, hidden, columns, scrolls in found:
                expected = f"Scroll the table sideways: {hidden} of its {columns} columns are further right." if hidden > 0 else ""
                self.assertEqual((text, hidden > 0), (expected, scrolls))
        self.browser.look(**LOOKS["print"])
        self.assertEqual([text for text, *_ in self.browser.run(notes) if text], [])

    def test_colours_follow_the_scheme(self):
        papers = []
        for scheme in ("light", "dark"):
            self.browser.look(scheme=scheme)
            papers.append(self.browser.run("return getComputedStyle(document.body).backgroundColor"))
        self.assertEqual(papers, ["rgb(255, 255, 255)", "rgb(21, 23, 25)"])

    def test_lines_through_their_names_are_found(self):
        self.browser.run("""
            const rule = document.querySelector('.rule'), end = name => Number(rule.previousElementSibling.getAttribute(name));
            rule.setAttribute('x', (end('x1') + end('x2')) / 2);
            rule.setAttribute('y', (end('y1') + end('y2')) / 2 + 4);
        """)
        self.assertRegex("\n".join(self.browser.run(COLLISIONS)), "on its line")

    def test_collisions_are_found(self):
        self.browser.run("document.querySelector('svg .x-label').setAttribute('y', 5); document.querySelector('svg .x-label').setAttribute('x', 0)")
        self.assertGreater(len(self.browser.run(COLLISIONS)), 0)

    def test_outcomes_of_many_kinds_of_tasks_fit_on_paper(self):
        documents = {name: json.loads((self.maker.folder / f"{name}.json").read_text("utf-8")) for name in ("replay", "evaluate")}
        part, = documents["evaluate"]["parts"]
        documents["replay"]["parts"][0]["facts"]["model"] = part["facts"]["model"]["name"]
        many = 3
        part["axes"]["kind"] = {key: [f"{value}-{i}" if key == "kind" else value for i in range(many) for value in values]
                                for key, values in part["axes"]["kind"].items()}
        for cube in part["cubes"].values():
            if cube["axes"][0] == "kind":
                cube["columns"] = {name: values * many for name, values in cube["columns"].items()}
        del part["cubes"]["correlations"]
        for name, document in documents.items():
            (self.maker.folder / f"many-{name}.json").write_text(json.dumps(document), "utf-8")
        path = self.make_page("many.html", "many-replay.json", "many-evaluate.json")
        self.browser.look(**LOOKS["print"])
        self.browser.open(path)
        self.assertEqual(len(self.answer()[0]), 9 + 6 + 1)
        self.assertEqual(self.browser.run(COLLISIONS, True), [])


class Sizes(PageTest):
    def test_32_layers_and_50_runs_open_in_2_s(self):
        write_large_replay(self.maker.folder / "replay.json", self.maker.folder / "large.json", layers=32, heads=32, policies=10, budgets=5)
        path = self.make_page("large.html", "large.json")
        self.assertLess(min(self.browser.open(path) for _ in range(3)), 2)

    def test_64_layers_of_64_heads_open_in_5_s_and_thin_points(self):
        write_large_replay(self.maker.folder / "replay.json", self.maker.folder / "huge.json", layers=64, heads=64, policies=6, budgets=5)
        path = self.make_page("huge.html", "huge.json")
        self.assertLess(path.stat().st_size, 10e6)
        self.assertLess(min(self.browser.open(path) for _ in range(3)), 5)
        figures = self.browser.run(FIGURES)
        self.assertIn(4096, [figure["marks"] for figure in figures])
        thinned = [figure for figure in figures if figure["note"].startswith("2000 of 122880 points are drawn")]
        self.assertEqual([figure["marks"] for figure in thinned], [2000])


if __name__ == "__main__":
    kvbound_cli.main()
