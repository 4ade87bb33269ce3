"""The page of kvbound report in a browser: every figure is drawn, fits and can be read, and does what its controls say.

What the page contains: cli/report_test.py.

usage: report_page_test.py KVBOUND      KVBOUND: the program's path
KVBOUND_PICTURES=FOLDER keeps pictures of the page in its looks.
"""
import csv
import json
import os
import time
from pathlib import Path

import numpy as np

from support import kvbound_cli
from support.browser import Browser
from support.kvbound_cli import CommandLineTest
from support.report_documents import BASE, write_documents, write_large_replay
from support.report_page import Page, column, keys

PICTURES = os.environ.get("KVBOUND_PICTURES")  # a folder for pictures of the page; none are kept without it
TAB, ENTER = "\ue004", "\ue007"
LOOKS = {"light": {}, "dark": {"scheme": "dark"}, "phone": {"width": 390, "height": 800}, "print": {"width": 720, "media": "print"}}

# Of each figure: what is drawn, and where its texts are.
FIGURES = """
return [...document.querySelectorAll('figure')].map(figure => ({
  id: figure.id, marks: figure.querySelectorAll('.mark').length, note: figure.querySelector('.note').textContent,
  titles: [...figure.querySelectorAll('.mark title')].map(title => title.textContent),
  x: figure.querySelector('.x-label')?.textContent, y: figure.querySelector('.y-label')?.textContent,
  legend: [...figure.querySelectorAll('.legend')].map(text => text.textContent),
}));
"""

# Texts that overlap each other or their lines, or leave their drawing, and boxes that are wider than the page; with an argument also those in boxes
# that scroll.
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


class BrowserTest(CommandLineTest):
    """One browser and one set of documents for all tests of a class."""

    @classmethod
    def setUpClass(cls):
        cls.maker = CommandLineTest()
        cls.maker.setUp()
        cls.addClassCleanup(cls.maker.doCleanups)
        cls.documents = write_documents(cls.maker)
        cls.path = cls.make_page("page.html", *cls.documents.values())
        cls.page = Page(cls.path)
        cls.downloads = cls.maker.folder / "downloads"
        cls.downloads.mkdir()
        cls.browser = Browser(cls.downloads)
        cls.addClassCleanup(cls.browser.close)

    @classmethod
    def make_page(cls, name, *documents):
        cls.maker.passes("report", *documents, "-o", name, "--quiet")
        return cls.maker.folder / name

    def setUp(self):
        super().setUp()
        self.browser.look()
        self.browser.open(self.path)

    def tearDown(self):
        self.assertEqual(self.browser.messages(), [])
        super().tearDown()

    def eventually(self, happens, otherwise):
        for _ in range(100):
            if happens():
                return
            time.sleep(0.1)
        self.fail(otherwise)

    def drawn(self, title=None):
        """What the browser says of all figures, or of the one whose title begins so."""
        figures = {figure["id"]: figure for figure in self.browser.run(FIGURES)}
        return figures[self.page.figure(title)["id"]] if title else figures

    def rows(self, title):
        """The numbers below a figure, as its table has them."""
        return self.browser.run("""
            const details = document.querySelector(`#${arguments[0]} details`);
            details.open = true;
            fillTable(d3.select(details), {headings: [], rows: []});
            details.dispatchEvent(new Event('toggle'));
            return [...details.querySelectorAll('tbody tr')].map(row => [...row.cells].map(cell => cell.textContent));
        """, self.page.figure(title)["id"])

    def pick(self, title, key, value):
        self.browser.run("""
            const control = document.querySelector(`[name="${arguments[0]}.${arguments[1]}"]`);
            control.value = arguments[2];
            control.dispatchEvent(new Event('change'));
        """, self.page.figure(title)["id"], key, value)


class Figures(BrowserTest):
    def test_are_all_drawn_with_labelled_axes(self):
        figures = self.drawn()
        self.assertEqual(list(figures), [figure["id"] for figure in self.page.figures()])
        for figure in self.page.figures():
            with self.subTest(figure["title"]):
                drawn = figures[figure["id"]]
                self.assertEqual((drawn["x"], drawn["y"]), (figure["x"]["label"], figure["y"]["label"]))
                self.assertGreater(drawn["marks"], 0)

    def test_of_lines_have_a_mark_for_each_number(self):
        cube = self.page.cube_of("Perturbation against budget")
        runs, layers = len(keys(cube, "budget")), len(keys(cube, "layer"))
        self.assertEqual(self.drawn("Perturbation against budget")["marks"], runs)
        self.assertEqual(self.drawn("Layer profile")["marks"], runs // 2 * layers)
        self.assertEqual(self.drawn("Change against snapkv:window=4")["marks"], runs)
        self.assertEqual(self.drawn("Stage one")["marks"], 2)
        scores = len(keys(self.page.cube_of("recall@8"), "score"))
        self.assertEqual(self.drawn("recall@8")["marks"], scores)

    def test_of_cells_and_points_have_a_mark_for_each_number(self):
        self.assertEqual(self.drawn("Change against snapkv:window=4, by")["marks"], 3 * 4)
        bounds = column(self.page.cube_of("L against"), "bound")
        self.assertEqual(self.drawn("L against its bound")["marks"], np.isfinite(bounds).sum())
        self.assertEqual(self.drawn("Retrieval")["marks"], 3 * 2)

    def test_of_one_budget_have_more_than_one_tick(self):
        texts = self.browser.run("return [...document.querySelectorAll(`#${arguments[0]} .axis`)][0].textContent",
                                 self.page.data["sections"][1]["figures"][0]["id"])
        self.assertGreater(len(texts), 3, "only 0 is labelled")

    def test_of_lines_go_from_left_to_right(self):
        paths = self.browser.run("return [...document.querySelectorAll('figure path[fill=none][stroke-width]')].map(path => path.getAttribute('d'))")
        self.assertGreater(len(paths), 10)
        for path in paths:
            across = [float(place.split(",")[0]) for place in path[1:].split("L")]
            self.assertEqual(across, sorted(across))

    def test_of_cells_are_sorted(self):
        texts = self.browser.run("""
            return [...document.querySelectorAll(`#${arguments[0]} .axis`)].map(axis => [...axis.querySelectorAll('text')].map(text => text.textContent));
        """, self.page.figure("Retrieval")["id"])
        self.assertEqual(texts, [["40", "60"], ["0.1", "0.5", "0.9"]])

    def test_of_dots_have_a_mark_for_each_number(self):
        self.assertEqual(self.drawn("Time of operations")["marks"], 2)
        properties = len(keys(self.page.cube_of("Cases"), "property"))
        self.assertEqual(self.drawn("Cases")["marks"], properties)

    def test_of_dots_have_their_intervals(self):
        drawn = self.browser.run("""
            const all = selector => [...document.querySelectorAll(`#${arguments[0]} ${selector}`)];
            const dots = all('.mark').map(mark => Number(/translate\\(([^,]+),/.exec(mark.getAttribute('transform'))[1]));
            return [dots, ...['x1', 'x2'].map(name => all('.interval').map(line => Number(line.getAttribute(name))))];
        """, self.page.figure("Rank correlation")["id"])
        numbers = np.array([[float(cell) for cell in row[1:4]] for row in self.rows("Rank correlation")]).T  # means, lows, highs
        places = np.array(drawn)
        self.assertEqual(places.shape, numbers.shape)
        self.assertTrue((numbers[1] < numbers[2]).any())
        slope, origin = np.polyfit(numbers.ravel(), places.ravel(), 1)
        np.testing.assert_allclose(places, slope * numbers + origin, atol=0.01)

    def test_of_points_have_their_diagonal_whatever_the_filters(self):
        for layer in range(3):
            for head in range(4):
                self.browser.open(self.path, f"#layer={layer}&head={head}")
                self.assertTrue(self.browser.run("return document.querySelector(`#${arguments[0]} .rule`) !== null",
                                                 self.page.figure("L against its bound")["id"]))

    def test_of_one_budget_have_bands_that_are_seen(self):
        self.browser.open(self.path, "#budget=20%25")
        boxes = self.browser.run("""
            return [...document.querySelectorAll(`#${arguments[0]} .band`)].map(band => [
              band.getBoundingClientRect().left, band.getBBox().height, getComputedStyle(band).strokeOpacity, band.getAttribute('stroke')]);
        """, self.page.figure("Perturbation against budget")["id"])
        places, heights, opacities, colours = zip(*boxes)
        self.assertEqual(np.diff(places).tolist(), [4, 4, 4])
        self.assertGreater(min(heights), 10)
        self.assertEqual((set(opacities), len(set(colours))), ({"1"}, 4))

    def test_show_means_and_quartiles_of_what_their_data_have(self):
        cube = self.page.cube_of("Perturbation against budget")
        relative = column(cube, "relative")
        rows = self.rows("Perturbation against budget")
        self.assertEqual(len(rows), len(relative))
        for row in rows:
            run = next(r for r in range(len(relative)) if keys(cube, "policy")[r] == row[0] and str(keys(cube, "entries")[r]) == row[1])
            expected = [relative[run].mean(), *np.quantile(relative[run], [0.25, 0.75]), relative[run].size]
            np.testing.assert_allclose([float(cell) for cell in row[2:]], expected, rtol=1e-12)

    def test_show_the_change_against_the_base(self):
        title = "Change against snapkv:window=4, by layer and query head"
        cube, policy = self.page.cube_of(title), f"{BASE}+adakv"
        self.pick(title, "run", policy)
        self.pick(title, "budget", "40%")
        places = [(keys(cube, "policy")[r], keys(cube, "budget")[r]) for r in range(8)]
        numbers = column(cube, "perturbation")
        change = numbers[places.index((policy, "40%"))] / numbers[places.index((BASE, "40%"))] - 1
        rows = self.rows(title)
        np.testing.assert_allclose([float(row[2]) for row in rows], change.ravel(), rtol=1e-9, atol=1e-12)
        self.assertIn(f"{policy.split('+')[0]}", self.browser.run("return location.hash").replace("%3A", ":").replace("%3D", "="))

    def test_show_what_runs_say_of_themselves(self):
        runs = json.loads((self.maker.folder / "replay.json").read_text("utf-8"))["traces"][0]["runs"]
        stage_one = {run["entries"]: run["stage_one_mass"]["share_at_most_half"] for run in runs if run["stage_one_mass"]}
        for row in self.rows("Stage one"):
            self.assertAlmostEqual(float(row[2]), stage_one[int(row[1])], places=5)
        tightness = sorted(run["tightness"]["mean"] for run in runs if run["tightness"]["mean"] is not None)
        np.testing.assert_allclose(sorted(float(row[2]) for row in self.rows("Tightness of the bound")), tightness, rtol=1e-4)

    def test_show_the_change_of_the_mean_that_the_first_table_has(self):
        answers = {(row[0], row[1]): row[3] for row in Answers.answer(self)[1]}
        entries = dict(zip(map(str, keys(self.page.cube_of("Change"), "entries")), keys(self.page.cube_of("Change"), "budget")))
        rows = self.rows("Change against snapkv:window=4")
        self.assertEqual(len(rows), len(answers))
        for run, kept, change, low, high, _ in rows:
            relative = [float(number) for number in answers[run, entries[kept]].translate(str.maketrans("", "", "[],")).split()]
            np.testing.assert_allclose([1 + float(number) for number in (change, low, high)],
                                       relative if len(relative) == 3 else 3 * relative, rtol=1e-3)

    def test_say_how_many_places_have_no_number(self):
        self.assertEqual(self.drawn("L against its bound")["note"], "Places without a number: 24.")

    def test_say_in_marks_what_they_show(self):
        titles = self.drawn("L against its bound")["titles"]
        self.assertRegex(titles[0], r"\Arun: .*\nbudget: .*\nlayer: \d+\nhead: \d+\nbound θ, hidden-state units: .*\nL, hidden-state units: ")


class Answers(BrowserTest):
    def test_begin_the_page_and_are_what_the_figures_say(self):
        headings, rows = self.answer()
        self.assertEqual(headings, ["policy", "budget", "L", "L / base", "improved heads", "violations", "MB at the prompt's end"])
        cube = self.page.cube_of("Perturbation against budget")
        numbers, places = column(cube, "perturbation"), list(zip(keys(cube, "policy"), keys(cube, "budget")))
        self.assertEqual(len(rows), len(places))
        for row in rows:
            L, base = numbers[places.index((row[0], row[1]))], numbers[places.index((BASE, row[1]))]
            self.assertEqual(float(row[2]), float(f"{L.mean():.4g}"))
            if row[0] == BASE:
                self.assertEqual(row[3:5], ["1", "–"])
                continue
            ratio = L.mean() / base.mean()
            off = (L - ratio * base).ravel() / base.mean()
            reach = 2.201 * off.std(ddof=1) / np.sqrt(off.size)  # Student's t of 12 pairs
            found = [float(number) for number in row[3].translate(str.maketrans("", "", "[],")).split()]
            np.testing.assert_allclose(found, [ratio, ratio - reach, ratio + reach], rtol=2e-3)
            self.assertEqual(row[4], f"{100 * (L < base).mean():.1f} %")

    def test_are_sorted_within_each_budget(self):
        _, rows = self.answer()
        for budget in ("20%", "40%"):
            relative = [float(row[3].split()[0]) for row in rows if row[1] == budget]
            self.assertEqual(relative, sorted(relative))

    def test_mark_the_best_only_where_its_interval_is_below_all_others(self):
        def spread(document, factors):
            for run in document["traces"][0]["runs"]:
                scale = factors[("critical" in run["policy"]) + 2 * ("adakv" in run["policy"]) + 3 * ("keepkv" in run["policy"])]
                random = np.random.default_rng(int(1000 * scale))  # runs of the same scale are the same
                for l, layer in enumerate(run["layers"]):
                    layer["perturbation"] = [scale * (1 + 0.01 * random.random()) * 10 ** (head + l) for head in range(4)]
        for factors, best in (((1, 0.5, 0.9, 0.8), 2), ((1, 1.5, 1.2, 1.1), 2), ((1, 0.5, 0.5, 0.8), 0)):
            with self.subTest(factors):
                document = json.loads((self.maker.folder / "replay.json").read_text("utf-8"))
                spread(document, factors)
                (self.maker.folder / "spread.json").write_text(json.dumps(document), "utf-8")
                self.browser.open(self.make_page("spread.html", "spread.json"))
                self.assertEqual(self.browser.run("return document.querySelectorAll('#answer .best').length"), best)

    def test_have_no_mean_where_a_head_has_no_number(self):
        document = json.loads((self.maker.folder / "replay.json").read_text("utf-8"))
        for run in document["traces"][0]["runs"]:
            if "critical" in run["policy"]:
                run["layers"][0]["perturbation"][1] = None
                run["violations"] = 7
        (self.maker.folder / "hole.json").write_text(json.dumps(document), "utf-8")
        self.browser.open(self.make_page("hole.html", "hole.json"))
        headings, rows = self.answer()
        self.assertEqual(len(rows), 8)
        for row in rows:
            if "critical" in row[0]:
                self.assertEqual(row[2:5] + [row[headings.index("violations")]], ["–", "–", "–", "7"])
            else:
                self.assertNotEqual(row[2], "–")

    def test_have_no_interval_of_few_heads(self):
        Controls.filter(self, "layer", "0-1")
        headings, rows = self.answer()
        self.assertEqual(headings[-2:], ["violations, whole run", "MB at the prompt's end, whole run"])
        self.assertTrue(all("[" not in row[3] for row in rows))
        self.assertEqual(self.browser.run("return document.querySelector('#answer table').querySelectorAll('.best').length"), 0)

    def test_have_outcomes_beside_what_was_replayed(self):
        document = json.loads((self.maker.folder / "replay.json").read_text("utf-8"))
        document["traces"][0]["model"] = json.loads((self.maker.folder / "evaluate.json").read_text("utf-8"))["model"]["name"]
        (self.maker.folder / "joined.json").write_text(json.dumps(document), "utf-8")
        self.browser.open(self.make_page("joined.html", "joined.json", "evaluate.json"))
        headings, rows = self.answer()
        evaluated = json.loads((self.maker.folder / "evaluate.json").read_text("utf-8"))
        replayed = dict(zip(zip(keys(self.page.cube_of("Perturbation"), "policy"), keys(self.page.cube_of("Perturbation"), "budget")),
                            keys(self.page.cube_of("Perturbation"), "bytes")))
        self.assertEqual(len(rows), len(replayed))
        for row in rows:
            self.assertAlmostEqual(float(row[headings.index("MB at the prompt's end")]), replayed[row[0], row[1]] / 1e6, delta=1e-6)
        kinds = ("needle, answers", "prose")
        summaries = {(one["kind"], one["run"]): one for one in evaluated["summaries"]}
        runs = {("critical" in run["policy"], run["budget"]): r for r, run in enumerate(evaluated["runs"])}
        for row in rows:
            outcomes = [row[headings.index(name)] for name in (*(f"KL, {kind}" for kind in kinds), "MB in tasks")]
            if row[0] not in (BASE, f"{BASE}+critical"):
                self.assertEqual(outcomes, ["–"] * 3)
                continue
            own = [summaries[kind.split(",")[0], runs["critical" in row[0], row[1]]] for kind in kinds]
            self.assertEqual([float(text.split()[0]) for text in outcomes[:2]], [float(f"{one['kl']['mean']:.4g}") for one in own])
            self.assertAlmostEqual(1e6 * float(outcomes[2]) / np.mean([one["bytes"] for one in own]), 1, delta=1e-3)

    def test_of_many_kinds_of_tasks_fit_on_paper(self):
        documents = {name: json.loads((self.maker.folder / f"{name}.json").read_text("utf-8")) for name in ("replay", "evaluate")}
        documents["replay"]["traces"][0]["model"] = documents["evaluate"]["model"]["name"]
        for name in ("kinds", "summaries"):
            documents["evaluate"][name] = [one | {"kind": f"{one['kind']}-{i}"} for one in documents["evaluate"][name] for i in range(3)]
        documents["evaluate"]["correlations"] = []
        for name, document in documents.items():
            (self.maker.folder / f"many-{name}.json").write_text(json.dumps(document), "utf-8")
        path = self.make_page("many.html", "many-replay.json", "many-evaluate.json")
        self.browser.look(**LOOKS["print"])
        self.browser.open(path)
        self.assertEqual(len(self.answer()[0]), 7 + 6 + 1)
        self.assertEqual(self.browser.run(COLLISIONS, True), [])

    def answer(self):
        return self.browser.run("""
            const table = document.querySelector('#answer table'), texts = row => [...row.cells].map(cell => cell.textContent);
            return [texts(table.tHead.rows[0]), [...table.tBodies[0].rows].map(texts)];
        """)


class Controls(BrowserTest):
    def filter(self, name, value):
        self.browser.run("""
            const input = document.querySelector(`#filters [name="${arguments[0]}"]` + (arguments[2] ? `[value="${arguments[1]}"]` : ''));
            if (arguments[2]) input.click();
            else { input.value = arguments[1]; input.dispatchEvent(new Event('change', {bubbles: true})); }
        """, name, value, name in ("policy", "backend", "budget"))

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
        self.assertEqual([row[1] for row in Answers.answer(self)[1]], 4 * ["20%"] + 4 * ["40%"])

    def test_a_list_that_is_none_is_marked_and_does_nothing(self):
        before = self.drawn()
        for text in ("2-x", "5-3", ",", "1," * 200 + "1"):
            self.filter("layer", text)
            self.assertTrue(self.browser.run("return document.querySelector('[name=layer]').matches(':invalid')"))
            self.assertEqual(self.drawn(), before)

    def test_filters_of_the_address_are_unfolded(self):
        def is_open():
            return self.browser.run("return document.querySelector('#filtering').open")
        self.assertFalse(is_open())
        for view in ("#layer=0-1", "#layer=2-x", "#budget=20%25"):
            self.browser.open(self.path, view)
            self.assertTrue(is_open(), view)

    def test_without_anything_to_filter_there_are_no_filters(self):
        self.browser.open(self.make_page("prove.html", "prove.json"))
        self.assertFalse(self.browser.run("return document.querySelector('#filtering').checkVisibility()"))

    def test_where_nothing_passes_figures_say_so(self):
        self.filter("layer", "77")
        self.assertEqual(self.browser.run("return document.querySelector('#answer .note').textContent"), "Nothing passes the filters.")
        self.assertIn("Nothing passes the filters", self.drawn("Perturbation against budget")["note"])

    def test_numbers_and_drawings_are_saved(self):
        figure = self.page.figure("Layer profile")["id"]
        for i, ending in enumerate(("csv", "svg", "png")):
            self.browser.run("document.querySelectorAll(`#${arguments[0]} .files button`)[arguments[1]].click()", figure, i)
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

    def saved(self, name):
        path = self.downloads / name
        self.eventually(lambda: path.exists() and path.stat().st_size > 0, f"{name} was not saved")
        return path.read_bytes()

    def test_all_are_reached_by_the_keyboard(self):
        self.browser.run("for (const box of document.querySelectorAll('nav details, #filtering')) box.open = true")
        wanted = self.browser.run("return document.querySelectorAll('input, select, button, summary, a[href], .scroll').length")
        self.browser.run("window.reached = new Set(); document.addEventListener('focusin', event => reached.add(event.target))")
        for _ in range(wanted + 5):
            self.browser.press(TAB)
        self.assertEqual(self.browser.run("return reached.size"), wanted)

    def test_numbers_open_by_the_keyboard(self):
        self.browser.run("document.querySelector('.numbers summary').focus()")
        self.browser.press(ENTER)
        self.eventually(lambda: self.browser.run("return document.querySelectorAll('details tbody tr').length") > 0, "no numbers")


class Looks(BrowserTest):
    def test_nothing_overlaps_or_is_cut_off(self):
        for name, look in LOOKS.items():
            with self.subTest(name):
                self.browser.look(**look)
                self.browser.open(self.path)
                if PICTURES:
                    (Path(PICTURES) / f"{name}.png").write_bytes(self.browser.picture())
                self.assertEqual(self.browser.run(COLLISIONS, name == "print"), [])  # paper cannot be scrolled

    def test_labels_tell_numbers_apart_that_are_nearly_the_same(self):
        document = json.loads((self.maker.folder / "replay.json").read_text("utf-8"))
        for run in document["traces"][0]["runs"]:
            for layer in run["layers"]:
                layer["bound"] = layer["bound"] and [12345.6 + 0.1 * head for head in range(4)]
        (self.maker.folder / "near.json").write_text(json.dumps(document), "utf-8")
        self.browser.open(self.make_page("near.html", "near.json"))
        labels = self.browser.run("""
            const axis = document.querySelector(`#${arguments[0]} .axis`);
            return [...axis.querySelectorAll('text')].map(text => text.textContent).filter(Boolean);
        """, self.page.figure("L against its bound")["id"])
        self.assertGreater(len(labels), 1)
        self.assertEqual(len(set(labels)), len(labels))

    def test_axes_of_numbers_have_two_labels(self):
        numbered = {figure["id"]: {"lines": 2, "scatter": 2, "dots": 1}.get(figure["kind"], 0) for figure in self.page.figures()}
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
            return [texts, document.querySelector('#filters').checkVisibility(), document.querySelector('.controls').checkVisibility()];
        """)
        self.assertEqual(shown[1:], [False, False])
        self.assertIn("budget 40%; only layer 0-1", shown[0])

    def test_say_only_of_filters_that_act_what_is_shown(self):
        def texts():
            return self.browser.run("return [...document.querySelectorAll('.shown, #answer .note')].map(text => text.textContent)")
        self.browser.open(self.path, "#layer=2-x")
        self.assertFalse(any("only" in text for text in texts()))
        self.browser.open(self.path, "#policy=snapkv:window=4%2Bcritical")
        said = texts()
        self.assertTrue(said[0].startswith("only policy"))
        acts = [any("policy" in axis["keys"] for axis in self.page.cubes[figure["cube"]]["axes"]) for figure in self.page.figures()]
        self.assertEqual(["only policy" in text for text in said[-len(acts):]], acts)

    def test_texts_have_contrast(self):
        for name, look in LOOKS.items():
            with self.subTest(name):
                self.browser.look(**look)
                self.browser.open(self.path)
                ratios = self.browser.run(CONTRASTS)
                self.assertGreater(len(ratios), 300)
                self.assertEqual([one for one in ratios if one["ratio"] < 4.5], [])

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


class Sizes(BrowserTest):
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
        self.assertIn({"marks": 4096, "note": ""}, [{"marks": figure["marks"], "note": figure["note"]} for figure in figures])
        thinned = [figure for figure in figures if figure["note"].startswith("2000 of 122880 points are drawn")]
        self.assertEqual([figure["marks"] for figure in thinned], [2000])


if __name__ == "__main__":
    kvbound_cli.main()
