"""The page of kvbound report in a browser: every figure and the first table are drawn, of the numbers that the page has.

What the page contains: cli/report_test.py. What its controls do and how it looks: report_page_view_test.py.

usage: report_page_test.py KVBOUND      KVBOUND: the program's path
"""
import json

import numpy as np

from browser.page_case import PageTest
from support import kvbound_cli
from support.documents import evaluated, parts, read, replayed
from support.report_documents import BASE
from support.report_page import column, keys


class Figures(PageTest):
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
        runs = replayed(read(self.maker.folder / "replay.json"))["runs"]
        stage_one = {run["entries"]: run["stage_one_low"] for run in runs if run["stage_one_low"] is not None}
        for row in self.rows("Stage one"):
            self.assertAlmostEqual(float(row[2]), stage_one[int(row[1])], places=5)
        tightness = sorted(run["tightness"] for run in runs if run["tightness"] is not None)
        np.testing.assert_allclose(sorted(float(row[2]) for row in self.rows("Tightness of the bound")), tightness, rtol=1e-4)

    def test_show_the_change_of_the_mean_that_the_first_table_has(self):
        answers = {(row[0], row[1]): row[3] for row in self.answer()[1]}
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


class Answers(PageTest):
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
            part, = parts(document)
            numbers = part.column("heads", "perturbation")
            for r, policy in enumerate(part.axes["run"]["policy"]):
                scale = factors[("critical" in policy) + 2 * ("adakv" in policy) + 3 * ("keepkv" in policy)]
                random = np.random.default_rng(int(1000 * scale))  # runs of the same scale are the same
                for l, head in np.ndindex(numbers.shape[1:]):
                    numbers[r, l, head] = scale * (1 + 0.01 * random.random()) * 10 ** (head + l)
            part.cubes["heads"]["columns"]["perturbation"] = numbers.ravel().tolist()
        for factors, best in (((1, 0.5, 0.9, 0.8), 2), ((1, 1.5, 1.2, 1.1), 2), ((1, 0.5, 0.5, 0.8), 0)):
            with self.subTest(factors):
                document = json.loads((self.maker.folder / "replay.json").read_text("utf-8"))
                spread(document, factors)
                (self.maker.folder / "spread.json").write_text(json.dumps(document), "utf-8")
                self.browser.open(self.make_page("spread.html", "spread.json"))
                self.assertEqual(self.browser.run("return document.querySelectorAll('#answer .best').length"), best)

    def test_have_no_mean_where_a_head_has_no_number(self):
        document = json.loads((self.maker.folder / "replay.json").read_text("utf-8"))
        part, = parts(document)
        heads = part.size("layer") * part.size("head")
        for r, policy in enumerate(part.axes["run"]["policy"]):
            if "critical" in policy:
                part.cubes["heads"]["columns"]["perturbation"][r * heads + 1] = None
                part.cubes["runs"]["columns"]["violations"][r] = 7
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
        self.filter("layer", "0-1")
        headings, rows = self.answer()
        self.assertEqual(headings[-2:], ["violations, whole run", "MB at the prompt's end, whole run"])
        self.assertTrue(all("[" not in row[3] for row in rows))
        self.assertEqual(self.browser.run("return document.querySelector('#answer table').querySelectorAll('.best').length"), 0)

    def test_have_outcomes_beside_what_was_replayed(self):
        document = json.loads((self.maker.folder / "replay.json").read_text("utf-8"))
        document["parts"][0]["facts"]["model"] = evaluated(read(self.maker.folder / "evaluate.json"))["model"]["name"]
        (self.maker.folder / "joined.json").write_text(json.dumps(document), "utf-8")
        self.browser.open(self.make_page("joined.html", "joined.json", "evaluate.json"))
        headings, rows = self.answer()
        said = evaluated(read(self.maker.folder / "evaluate.json"))
        replayed = dict(zip(zip(keys(self.page.cube_of("Perturbation"), "policy"), keys(self.page.cube_of("Perturbation"), "budget")),
                            keys(self.page.cube_of("Perturbation"), "bytes")))
        self.assertEqual(len(rows), len(replayed))
        for row in rows:
            self.assertEqual(float(row[headings.index("MB at the prompt's end")]), float(f"{replayed[row[0], row[1]] / 1e6:.4g}"))
        kinds = ("needle, answers", "prose")
        summaries = {(one["kind"], "critical" in one["policy"], one["budget"]): one for one in said["summaries"]}
        for row in rows:
            outcomes = [row[headings.index(name)] for name in (*(f"KL, {kind}" for kind in kinds), "MB in tasks")]
            if row[0] not in (BASE, f"{BASE}+critical"):
                self.assertEqual(outcomes, ["–"] * 3)
                continue
            own = [summaries[kind.split(",")[0], "critical" in row[0], row[1]] for kind in kinds]
            self.assertEqual([float(text.split()[0]) for text in outcomes[:2]], [float(f"{one['kl']:.4g}") for one in own])
            self.assertEqual(float(outcomes[2]), float(f"{np.mean([one['bytes'] for one in own]) / 1e6:.4g}"))


if __name__ == "__main__":
    kvbound_cli.main()
