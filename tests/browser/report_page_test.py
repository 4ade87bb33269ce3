"""The page of kvbound report in a browser: every figure and the first table are drawn, of the numbers that the page has.

What the page contains: cli/report_test.py. What its controls do and how it looks: report_page_view_test.py.

usage: report_page_test.py KVBOUND      KVBOUND: the program's path
"""
import json
import re

import numpy as np

from browser.page_case import PageTest
from support import kvbound_cli
from support.documents import evaluated, parts, read, replayed
from support.report_documents import BASE, write_large_replay
from support.report_page import Page, column, keys


def numbers_in(text):
    """The numbers of a cell, such as -1.4 % [-1.9, -0.9] 12 heads."""
    return [float(number) for number in re.findall(r"-?[\d.]+(?:e[-+]\d+)?", text)]


def change_of(own, base):
    """The change of the mean, in %, and its interval by Student's t over 12 pairs."""
    ratio = own.mean() / base.mean()
    reach = 2.201 * ((own - ratio * base).ravel() / base.mean()).std(ddof=1) / np.sqrt(12)
    return [100 * (share - 1) for share in (ratio, ratio - reach, ratio + reach)]


class SpreadPage(PageTest):
    def open_spread(self, factors, other=lambda policy, layer: 1):
        """Opens a page of the replay with L that is about so many times a head's own number: of the base, +critical, +adakv, +keepkv."""
        document = json.loads((self.maker.folder / "replay.json").read_text("utf-8"))
        part, = parts(document)
        numbers = part.column("heads", "perturbation")
        for r, policy in enumerate(part.axes["run"]["policy"]):
            which = ("critical" in policy) + 2 * ("adakv" in policy) + 3 * ("keepkv" in policy)
            random = np.random.default_rng(int(1000 * factors[which]))  # runs of the same scale are the same
            for layer, head in np.ndindex(numbers.shape[1:]):
                numbers[r, layer, head] = factors[which] * other(which, layer) * (1 + 0.01 * random.random()) * 10 ** (head + layer)
        for name in ("perturbation", "relative"):
            part.cubes["heads"]["columns"][name] = numbers.ravel().tolist()
        (self.maker.folder / "spread.json").write_text(json.dumps(document), "utf-8")
        self.browser.open(self.make_page("spread.html", "spread.json"))


class Figures(SpreadPage):
    def test_are_all_drawn_with_labelled_axes(self):
        figures = self.drawn()
        self.assertEqual(set(figures), {figure["id"] for figure in self.page.figures()})
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

    def test_of_budgets_have_ticks_in_the_unit_of_the_table(self):
        for figure, expected in ((self.page.figure("Perturbation against budget"), ["20", "40"]),
                                 (self.page.data["sections"][1]["figures"][1], ["40"])):
            texts = self.browser.run("""
                return [...document.querySelector(`#${arguments[0]} .axis`).querySelectorAll('text')].map(text => text.textContent);
            """, figure["id"])
            self.assertEqual((texts, figure["x"]["label"]), (expected, "budget, % of the prompt"))

    def test_of_counted_budgets_have_entries_on_their_axis(self):
        document = json.loads((self.maker.folder / "replay.json").read_text("utf-8"))
        run = document["parts"][0]["axes"]["run"]
        run["budget"] = [str(entries) if budget == "20%" else budget for budget, entries in zip(run["budget"], run["entries"])]
        (self.maker.folder / "counted.json").write_text(json.dumps(document), "utf-8")
        page = Page(self.make_page("counted.html", "counted.json"))
        self.assertEqual(page.figure("Perturbation")["x"]["label"], "budget, entries per KV head")
        self.assertEqual(keys(page.cube_of("Perturbation"), "amount"), run["entries"])

    def test_of_lines_go_from_left_to_right(self):
        paths = self.browser.run("return [...document.querySelectorAll('figure .line')].map(path => path.getAttribute('d'))")
        self.assertGreater(len(paths), 3)
        for path in paths:
            across = [float(place.split(",")[0]) for place in path[1:].split("L")]
            self.assertEqual(across, sorted(across))

    def test_of_cells_are_sorted(self):
        texts = self.browser.run("""
            return [...document.querySelectorAll(`#${arguments[0]} .axis`)].map(axis => [...axis.querySelectorAll('text')].map(text => text.textContent));
        """, self.page.figure("Retrieval")["id"])
        self.assertEqual(texts, [["40", "60"], ["0.1", "0.5", "0.9"]])

    def test_of_cells_have_colours_up_to_the_95th_percentile_and_say_so(self):
        title = "Change against snapkv:window=4, by layer and query head"
        # 12 cells: 4 of 0, of 1 and of 2, nearly
        self.open_spread((1, 1, 1, 1), lambda which, layer: 2 ** layer if which == 1 else 1)
        page = Page(self.maker.folder / "spread.html")
        def said():
            drawn = self.drawn(title, page)
            return drawn["note"], [text for text in drawn["legend"] if text[:1] in "\u2264\u2265" or text[-1:].isdigit()]
        self.assertEqual(said(), ("", ["-2", "2"]))
        document = json.loads((self.maker.folder / "spread.json").read_text("utf-8"))
        part, = parts(document)
        far = list(part.axes["run"]["policy"]).index(next(policy for policy in part.axes["run"]["policy"] if "critical" in policy))
        part.cubes["heads"]["columns"]["perturbation"][12 * far + 3] *= 1024
        (self.maker.folder / "far.json").write_text(json.dumps(document), "utf-8")
        self.browser.open(self.make_page("far.html", "far.json"))
        reach = f"{np.quantile([0, 0, 0, 10, 1, 1, 1, 1, 2, 2, 2, 2], 0.95):.4g}"
        self.assertEqual(said(), (f"Colours end at {reach}, the 95th percentile of the sizes: cells beyond: 1.",
                                  [f"\u2264 -{reach}", f"\u2265 {reach}"]))
        colours = self.browser.run("return [...document.querySelectorAll(`#${arguments[0]} rect.mark`)].map(cell => cell.getAttribute('fill'))",
                                   page.figure(title)["id"])
        self.assertEqual(len(set(colours)), 4)

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
        # means, lows, highs
        numbers = np.array([[float(cell) for cell in row[1:4]] for row in self.rows("Rank correlation")]).T
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

    def test_are_joined_only_where_their_places_are_dense(self):
        def lines(title, page=self.page):
            return self.browser.run("return document.querySelectorAll(`#${arguments[0]} .line`).length", page.figure(title)["id"])
        # two budgets; layers 0 to 2
        self.assertEqual([lines(title) for title in ("Perturbation against budget", "Layer profile")], [0, 4])
        write_large_replay(self.maker.folder / "replay.json", self.maker.folder / "five.json", layers=4, heads=8, policies=3, budgets=5)
        path = self.make_page("five.html", "five.json")
        self.browser.open(path)
        self.assertEqual(lines("Perturbation against budget", Page(path)), 0)  # 5 and 10 % are far apart
        write_large_replay(self.maker.folder / "replay.json", self.maker.folder / "nine.json", layers=4, heads=8, policies=3, budgets=9)
        path = self.make_page("nine.html", "nine.json")
        self.browser.open(path, "#budget=15%25&budget=20%25&budget=25%25&budget=30%25&budget=35%25&budget=40%25")
        self.assertEqual(lines("Perturbation against budget", Page(path)), 3)

    def test_have_the_bands_of_what_is_picked_or_pointed_at_alone(self):
        title = "Perturbation against budget"
        def bands():
            return self.browser.run("""
                const isShown = band => band.checkVisibility() && band.getBBox().height > 10;
                return [...document.querySelectorAll(`#${arguments[0]} .series`)].map(one => [...one.querySelectorAll('.band')].filter(isShown).length);
            """, self.page.figure(title)["id"])
        def on_legend(kind):
            self.browser.run("""
                document.querySelectorAll(`#${arguments[0]} .entry`)[1].dispatchEvent(new MouseEvent(arguments[1], {bubbles: true}));
            """, self.page.figure(title)["id"], kind)
        self.assertEqual(bands(), [0, 0, 0, 0])
        for kind, shown in (("mouseover", 2), ("mouseout", 0), ("click", 2), ("click", 0)):
            on_legend(kind)
            self.assertEqual(bands(), [0, shown, 0, 0], kind)
        self.browser.open(self.path, "#series=" + f"{BASE}+keepkv".replace("+", "%2B"))
        self.assertEqual(bands(), [0, 0, 0, 2])
        self.assertEqual(self.browser.run("return document.querySelector('#series').value"), f"{BASE}+keepkv")
        self.browser.open(self.path, f"#policy={BASE}")
        self.assertEqual(bands(), [2])  # alone

    def test_say_what_bands_and_whiskers_hold(self):
        self.assertIn("95 % interval over 12 query heads of one prompt", self.drawn("Change against")["legend"])
        self.assertIn("middle half of 12 query heads", self.drawn("Perturbation against")["legend"])
        self.assertIn("95 % interval over tasks", self.drawn("Divergence")["legend"])

    def test_show_means_and_quartiles_of_what_their_data_have(self):
        cube = self.page.cube_of("Perturbation against budget")
        relative = column(cube, "relative")
        rows = self.rows("Perturbation against budget")
        self.assertEqual(len(rows), len(relative))
        for row in rows:
            run = next(r for r in range(len(relative)) if keys(cube, "policy")[r] == row[0] and keys(cube, "budget")[r] == f"{row[1]}%")
            expected = [relative[run].mean(), *np.quantile(relative[run], [0.25, 0.75]), relative[run].size]
            np.testing.assert_allclose([float(cell) for cell in row[2:]], expected, rtol=1e-12)

    def test_of_cells_show_the_log_ratio_to_the_base(self):
        title = "Change against snapkv:window=4, by layer and query head"
        cube, policy = self.page.cube_of(title), f"{BASE}+adakv"
        self.pick(title, "run", policy)
        self.pick(title, "budget", "40%")
        places = [(keys(cube, "policy")[r], keys(cube, "budget")[r]) for r in range(8)]
        numbers = column(cube, "perturbation")
        ratios = np.log2(numbers[places.index((policy, "40%"))] / numbers[places.index((BASE, "40%"))])
        rows = self.rows(title)
        np.testing.assert_allclose([float(row[2]) for row in rows], ratios.ravel(), rtol=1e-9, atol=1e-12)
        self.assertIn(f"{policy.split('+')[0]}", self.browser.run("return location.hash").replace("%3A", ":").replace("%3D", "="))

    def test_show_what_runs_say_of_themselves(self):
        runs = replayed(read(self.maker.folder / "replay.json"))["runs"]
        stage_one = {run["budget"]: run["stage_one_low"] for run in runs if run["stage_one_low"] is not None}
        for row in self.rows("Stage one"):
            self.assertAlmostEqual(float(row[2]), stage_one[f"{row[1]}%"], places=5)
        tightness = sorted(run["tightness"] for run in runs if run["tightness"] is not None)
        np.testing.assert_allclose(sorted(float(row[2]) for row in self.rows("Tightness of the bound")), tightness, rtol=1e-4)

    def test_show_the_change_of_the_mean_that_the_first_table_has(self):
        headings, lines = self.answer()
        answers = {(row[0], row[1]): numbers_in(row[headings.index(f"against {BASE}")]) for row in lines}
        rows = self.rows("Change against snapkv:window=4")
        self.assertEqual(len(rows), len(answers))
        for run, budget, change, low, high, heads in rows:
            expected = answers[run, budget] if run != BASE else [0, 0, 0, 12]
            np.testing.assert_allclose([float(number) for number in (change, low, high, heads)], expected, rtol=1e-2, atol=1e-12)

    def test_have_whiskers_where_the_table_has_an_interval(self):
        whiskers = self.browser.run("return document.querySelectorAll(`#${arguments[0]} .interval`).length", self.page.figure("Change")["id"])
        self.assertEqual(whiskers, 6)  # of three policies beside the base at two budgets

    def test_say_how_many_places_have_no_number(self):
        self.assertEqual(self.drawn("L against its bound")["note"], "")
        document = json.loads((self.maker.folder / "replay.json").read_text("utf-8"))
        part, = parts(document)
        bounds = part.column("heads", "bound")
        bounds[["keepkv" in policy for policy in part.axes["run"]["policy"]]] = np.nan
        part.cubes["heads"]["columns"]["bound"] = [None if np.isnan(bound) else bound for bound in bounds.ravel()]
        (self.maker.folder / "unbounded.json").write_text(json.dumps(document), "utf-8")
        self.browser.open(self.make_page("unbounded.html", "unbounded.json"))
        self.assertEqual(self.drawn("L against its bound", Page(self.maker.folder / "unbounded.html"))["note"], "Places without a number: 24.")

    def test_say_in_marks_what_they_show(self):
        titles = self.drawn("L against its bound")["titles"]
        self.assertRegex(titles[0], r"\Arun: .*\nbudget: .*\nlayer: \d+\nhead: \d+\nbound θ, hidden-state units: .*\nL, hidden-state units: ")


class Answers(SpreadPage):
    def test_begin_the_page_and_are_what_the_figures_say(self):
        headings, rows = self.answer()
        self.assertEqual(headings, ["policy", "budget", "relative L", f"against {BASE}", "layer-relative L", "improved heads", "L",
                                    "violations", "MB"])
        cube, layers = self.page.cube_of("Perturbation against budget"), self.page.cubes[self.page.data["answer"][0]["layers"]]
        relative, numbers, of_layers = column(cube, "relative"), column(cube, "perturbation"), column(layers, "layer_relative")
        places = list(zip(keys(cube, "policy"), keys(cube, "budget")))
        self.assertEqual(len(rows), len(places))
        for row in rows:
            own, base = places.index((row[0], row[1])), places.index((BASE, row[1]))
            self.assertEqual([float(row[2]), float(row[4]), float(row[6])],
                             [float(f"{mean:.4g}") for mean in (relative[own].mean(), of_layers[own].mean(), numbers[own].mean())])
            if row[0] == BASE:
                self.assertEqual((row[3], row[5]), ("–", "–"))
                continue
            np.testing.assert_allclose(numbers_in(row[3]), [*change_of(relative[own], relative[base]), 12], rtol=1e-2)
            self.assertTrue(row[3].endswith("] 12 heads"))
            self.assertEqual(row[5], f"{100 * (numbers[own] < numbers[base]).mean():.1f} %")

    def test_are_sorted_within_each_budget(self):
        _, rows = self.answer()
        for budget in ("20%", "40%"):
            relative = [float(row[2]) for row in rows if row[1] == budget]
            self.assertEqual(relative, sorted(relative))

    def test_mark_the_best_only_where_its_interval_is_below_all_others(self):
        for factors, best in (((1, 0.5, 0.9, 0.8), 2), ((1, 1.5, 1.2, 1.1), 2), ((1, 0.5, 0.5, 0.8), 0)):
            with self.subTest(factors):
                self.open_spread(factors)
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
        _, rows = self.answer()
        self.assertEqual(len(rows), 8)
        for row in rows:
            if "critical" in row[0]:
                self.assertEqual(row[2:4] + row[5:8], ["–", "–", "–", "–", "7"])
            else:
                self.assertNotEqual(row[2], "–")

    def test_have_no_interval_of_few_heads(self):
        self.filter("layer", "0-1")
        headings, rows = self.answer()
        self.assertEqual(headings[-2:], ["violations, whole run", "MB, whole run"])
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
            self.assertEqual(float(row[headings.index("MB")]), float(f"{replayed[row[0], row[1]] / 1e6:.4g}"))
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


class Sentences(SpreadPage):
    """What the page says before its tables. Of known numbers: L of each head, times a factor of its policy."""

    def said(self, factors, *of):
        self.open_spread(factors, *of)
        return dict(zip(("20 %", "40 %"), self.sentences()))

    def test_say_which_policy_is_best_by_how_much_and_how_surely(self):
        lead, more = self.said((1, 0.8, 0.9, 0.7))["20 %"]
        found = re.fullmatch(rf"At 20 % {BASE}\+keepkv moves the output ([\d.]+) % less than {BASE}, ([\d.]+) to ([\d.]+) % "
                             r"over 12 heads of one prompt\.", lead)
        cube = Page(self.maker.folder / "spread.html").cube_of("Perturbation against budget")
        runs = dict(zip(zip(keys(cube, "policy"), keys(cube, "budget")), column(cube, "relative")))
        mean, low, high = change_of(runs[f"{BASE}+keepkv", "20%"], runs[BASE, "20%"])
        np.testing.assert_allclose([float(number) for number in found.groups()], [-mean, -high, -low], rtol=5e-2)
        self.assertAlmostEqual(float(found[1]), 30, delta=1)
        self.assertEqual(more, f"It is lower than every other policy. In each of 3 layers its mean is lower than that of {BASE}.")

    def test_say_so_where_no_difference_is_seen(self):
        lead, more = self.said((1, 0.98, 1.5, 1.5), lambda which, layer: 1.1 if which == 1 and layer == 1 else 1)["40 %"]
        self.assertRegex(lead, rf"\AAt 40 % no difference between {BASE}\+critical, the lowest, and {BASE} is seen: "
                               r"[\d.]+ % less, from [\d.]+ % more to [\d.]+ % less over 12 heads of one prompt\.\Z")
        self.assertEqual(more, f"In 1 of 3 layers (1) the mean of {BASE}+critical is higher.")

    def test_name_the_policies_that_are_not_seen_to_be_worse_than_the_best(self):
        lead, more = self.said((1, 0.5, 0.5, 0.9))["20 %"]
        self.assertRegex(lead, rf"At 20 % {BASE}\+(critical|adakv) moves the output 50 % less than {BASE}, ")
        self.assertRegex(more, rf"\AFrom {BASE}\+(critical|adakv) no difference is seen\. ")

    def test_compare_the_base_with_the_next_where_it_is_best(self):
        lead, _ = self.said((1, 1.25, 1.5, 2))["20 %"]
        self.assertRegex(lead, rf"\AAt 20 % {BASE} moves the output 20 % less than {BASE}\+critical, ")

    def test_name_the_layers_in_which_the_best_is_not(self):
        lead, more = self.said((1, 1.3, 1.4, 0.5), lambda which, layer: 4 if which == 3 and layer < 2 else 1)["20 %"]
        self.assertIn(f"{BASE}+keepkv", lead)
        self.assertTrue(more.endswith(f"In 2 of 3 layers (0-1) the mean of {BASE}+keepkv is higher."), more)

    def test_have_no_interval_of_few_heads(self):
        self.filter("head", "0-1")
        self.assertEqual(len(self.sentences()), 2)
        for lead, _ in self.sentences():
            self.assertRegex(lead, r"of 6 heads there is no interval\.\Z")

    def test_follow_the_filters(self):
        self.filter("budget", "40%")
        self.assertEqual([lead[:7] for lead, _ in self.sentences()], ["At 40 %"])

    def test_of_a_single_policy_compare_nothing(self):
        self.filter("policy", BASE)
        mean = float(next(row[2] for row in self.answer()[1]))
        lead, more = self.sentences()[0]
        self.assertRegex(lead, rf"\AAt 20 % {BASE} moves the output by [\d.]+ %\.\Z")
        self.assertAlmostEqual(float(lead.split()[-2]), 100 * mean, delta=5 * mean)
        self.assertEqual(more, "")

    def test_say_what_intervals_are_over(self):
        note = self.browser.run("return document.querySelector('#short .note').textContent")
        self.assertIn("Heads of one prompt are no sample of prompts", " ".join(note.split()))


class Headlines(PageTest):
    def headlines(self):
        return self.browser.run("""
            return [...document.querySelectorAll('#headlines li')].map(item => [item.querySelector('a').getAttribute('href'),
                                                                               item.textContent.replaceAll('\u00a0', ' ')]);
        """)

    def test_are_those_of_sections_and_lead_to_them(self):
        found = self.headlines()
        for section in self.page.data["sections"]:
            if section["headline"]:
                self.assertIn([f"#{section['id']}", f"{section['title']}: {section['headline']}"], found)
        self.assertEqual(sum("Theorems" in text for _, text in found), 1)

    def test_say_whether_L_predicts_KL(self):
        texts = [text for _, text in self.headlines() if "does L predict KL?" in text]
        self.assertEqual(len(texts), 2)  # kinds of tasks
        cube = self.page.cube_of("Rank correlation")
        columns = [column(cube, name) for name in ("correlation", "correlation from", "correlation to")]
        expected = 0
        for kind, of, mean, low, high in zip(keys(cube, "kind"), keys(cube, "of"), *columns):
            if not of.startswith("KL, ") or np.isnan(mean):
                continue
            text = next(text for text in texts if f"Of {kind}, " in text)
            numbers = [f"{float(f'{number:.2g}'):g}" for number in (mean, low, high)]
            verdict = "yes" if low > 0 else "the other way round" if high < 0 else "not seen"
            said = f"{numbers[0]} without an interval" if low == high else f"{verdict} ({numbers[0]}, {numbers[1]} to {numbers[2]})"
            self.assertIn(f"{re.sub('^budget', 'at', of[4:]).replace('%', ' %')} {said}", text)
            expected += 1
        self.assertGreater(expected, 2)

    def test_are_none_of_documents_that_have_none(self):
        self.browser.open(self.make_page("recall.html", "recall.json"))
        self.assertFalse(self.browser.run("return document.querySelector('#short').checkVisibility()"))
        self.browser.open(self.make_page("prove.html", "prove.json"))
        self.assertEqual(len(self.headlines()), 1)
        self.assertFalse(self.browser.run("return document.querySelector('#intervals').checkVisibility()"))

    def test_fit_into_one_screen_with_the_sentences_of_a_trace(self):
        self.browser.open(self.make_page("asked.html", "replay.json", "prove.json", "evaluate.json"))
        bottom = self.browser.run("return document.querySelector('#headlines').getBoundingClientRect().bottom")
        self.assertLess(bottom, 900)


if __name__ == "__main__":
    kvbound_cli.main()
