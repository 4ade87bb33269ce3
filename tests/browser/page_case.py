"""A page of kvbound report in a browser, for tests: one browser and one page for all tests of a class."""
import time

from support.browser import Browser
from support.kvbound_cli import CommandLineTest
from support.report_documents import write_documents
from support.report_page import Page

# How a page is looked at: arguments of Browser.look.
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


class PageTest(CommandLineTest):
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

    def drawn(self, title=None, page=None):
        """What the browser says of all figures, or of the one of the page whose title begins so."""
        figures = {figure["id"]: figure for figure in self.browser.run(FIGURES)}
        return figures[(page or self.page).figure(title)["id"]] if title else figures

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

    def answer(self):
        """The headings and the lines of the first table."""
        return self.browser.run("""
            const table = document.querySelector('#answer table'), texts = row => [...row.cells].map(cell => cell.textContent);
            return [texts(table.tHead.rows[0]), [...table.tBodies[0].rows].map(texts)];
        """)

    def sentences(self):
        """What the page says first of the first trace, [lead, more] of each budget."""
        return self.browser.run("""
            return [...document.querySelector('.sentences').children].map(item => [...item.children].map(part => part.textContent.trim().replaceAll('\u00a0', ' ')));
        """)

    def filter(self, name, value):
        """Ticks a value of a filter, or types it into its field."""
        self.browser.run("""
            const input = document.querySelector(`#filters [name="${arguments[0]}"]` + (arguments[2] ? `[value="${arguments[1]}"]` : ''));
            if (arguments[2]) input.click();
            else { input.value = arguments[1]; input.dispatchEvent(new Event('change', {bubbles: true})); }
        """, name, value, name in ("policy", "backend", "budget"))
