// The page: its filters, its figures, and the view that its address keeps.

const LISTS = ['layer', 'head'];  // filters that are lists such as 0,3-5; the others are sets of boxes
const form = d3.select('#filters');
const draws = [];
const pictures = new Map();  // figures that stand in the first section: where, by their ids

// The values of a key in all cubes, in order of appearance.
const known = key => [...new Set([...cubes.values()].filter(cube => axisOf(cube, key) >= 0)
    .flatMap(cube => cube.axes[axisOf(cube, key)].keys[key].map(String)))];

// The test that a number is in a list such as 0,3-5; null if the text is none.
function listed(text) {
  const parts = text.split(',').map(part => /^\s*(\d{1,6})\s*(?:-\s*(\d{1,6})\s*)?$/.exec(part));
  if (parts.length > 100 || parts.some(part => !part)) return null;
  const ranges = parts.map(([, from, to]) => [Number(from), Number(to ?? from)]);
  return ranges.some(([from, to]) => from > to) ? null : number => ranges.some(([from, to]) => from <= number && number <= to);
}

// The filters, {name: values as the form has them}.
const fieldsOf = () => d3.nest().key(([name]) => name).rollup(pairs => pairs.map(pair => pair[1]))
    .entries([...new FormData(form.node())].filter(([, value]) => value.trim() !== ''));
// Those that act, on a cube or at all.
const filtersText = cube => fieldsOf().filter(({key}) => view.filters.has(key) && (!cube || axisOf(cube, key) >= 0))
    .map(({key, value}) => `only ${key} ${value.join(', ')}`).join('; ');

// Takes the filters from the form, and draws.
function readForm() {
  const testOf = (key, values) => LISTS.includes(key) ? listed(values[0]) : name => values.includes(String(name));
  view.filters = new Map(fieldsOf().map(({key, value}) => [key, testOf(key, value)]).filter(([, test]) => test));
  for (const input of form.selectAll('input[type=text]').nodes())
    input.setCustomValidity(input.value.trim() && !listed(input.value) ? 'A list such as 0,3-5 is expected.' : '');
  if (!form.node().checkValidity()) d3.select('#filtering').attr('open', '');
  d3.select('#filtered').text(view.filters.size > 0 ? `: ${filtersText()}` : '');
  for (const draw of draws) draw();
}

// Takes the view from the address.
function readView() {
  const fields = new URLSearchParams(location.hash.slice(1));
  view.picks = new Map([...fields].filter(([name]) => name.includes('.')));
  view.series = fields.get('series') ?? '';
  form.selectAll('input').each(function() {
    if (this.type === 'checkbox') this.checked = fields.getAll(this.name).includes(this.value);
    else this.value = fields.get(this.name) ?? '';
  });
  d3.select('#series').property('value', view.series);
  readForm();
}

function keepView() {
  const fields = [...new FormData(form.node()), ...view.picks, ['series', view.series]].filter(([, value]) => value !== '');
  history.replaceState(null, '', `#${new URLSearchParams(fields)}`);
}

function drawFilters() {
  for (const name of ['policy', 'backend', 'budget', ...LISTS]) {
    const values = name === 'budget' ? known(name).sort(byBudget) : known(name);
    if (values.length < (name === 'backend' ? 2 : 1)) continue;
    if (LISTS.includes(name)) {
      add(form.append('label').text(`${name}s `), 'input', {type: 'text', name, placeholder: 'all, or 0,3-5'});
      continue;
    }
    const group = form.append('fieldset');
    group.append('legend').text(name);
    const boxes = group.selectAll('label').data(values).enter().append('label');
    boxes.append('input').attr('type', 'checkbox').attr('name', name).attr('value', value => value);
    boxes.append('span').text(value => ` ${value}`);
  }
  d3.select('#filtering').attr('hidden', form.selectAll('input').empty() ? '' : null);
  add(form, 'button', {type: 'button'}).text('Show all').on('click', () => { history.replaceState(null, '', '#'); readView(); });
  form.on('change', () => { readForm(); keepView(); });
  form.on('submit', () => d3.event.preventDefault());
}

// The control for the series whose bands are drawn: those that share a figure with bands with others.
function drawPicking() {
  const keys = new Set(sections.flatMap(({figures}) => figures).filter(({kind, band}) => kind === 'lines' && band)
      .flatMap(({series}) => series));
  const names = [...keys].filter(key => known(key).length > 1).flatMap(key => known(key));
  d3.select('#picking').attr('hidden', names.length > 0 ? null : '');
  d3.select('#series').on('change', function() { pickSeries(this.value); })
      .selectAll('option').data(['', ...new Set(names)]).enter().append('option').attr('value', name => name)
      .text(name => name || 'none');
}

function pickSeries(name) {
  view.series = name;
  d3.select('#series').property('value', name);
  showBands(d3.select('body'));
  keepView();
}

function drawSectionTable(box, {summary, headings, rows}) {
  if (!summary) { tableOf(add(box, 'div', {class: 'words'}), headings, rows); return; }
  const details = box.append('details');
  details.append('summary').text(summary);
  tableOf(details, headings, rows);
}

function drawSection(section) {
  const box = add(d3.select('#sections'), 'section', {id: section.id});
  add(d3.select('#contents').append('li'), 'a', {href: `#${section.id}`}).text(section.title);
  box.append('h2').text(section.title);
  box.selectAll('p').data(section.lines).enter().append('p').text(line => line);
  if (section.table) drawSectionTable(box, section.table);
  for (const figure of section.figures) draws.push(mount(figure, pictures.get(figure.id) ?? box));
}

// What is said of a subject, the picture of it, and its table. Returns the function that draws them anew.
function mountSubject(subject) {
  const said = d3.select('#said').append('div'), box = d3.select('#answer').append('div');
  said.append('h3').text(subject.subject);
  box.append('h3').text(subject.subject);
  if (subject.picture) pictures.set(subject.picture, box.append('div'));
  const table = box.append('div');
  return () => {
    const lines = linesOf(subject);
    said.select('ul').remove();
    drawSentences(said, lines);
    said.attr('hidden', said.select('li').empty() ? '' : null);
    table.selectAll('*').remove();
    drawTable(table, lines, lines.length > 0 ? filtersText(cubes.get(subject.heads ?? subject.outcomes)) : '');
  };
}

function drawProvenance({path, facts}) {
  const box = add(d3.select('#provenance'), 'div', {class: 'facts'});
  box.append('h3').text(path);
  tableOf(box, ['fact', 'value'], facts.map(fact => fact.map(text => ({text}))));
}

for (const {figures} of sections) for (const {series: [key]} of figures) if (key) seriesNames.set(key, known(key));
drawFilters();
drawPicking();
drawSaving();
drawHeadlines(d3.select('#headlines'));
d3.select('#policies').attr('hidden', page.answer.length > 0 ? null : '');
d3.select('#intervals').attr('hidden', page.answer.some(({heads}) => heads) ? null : '');
const isSaid = page.answer.length > 0 || sections.some(section => headlinesOf(section).length > 0);
d3.select('#short').attr('hidden', isSaid ? null : '');
draws.push(...page.answer.map(mountSubject));
sections.forEach(drawSection);
page.provenance.forEach(drawProvenance);
readView();
d3.select('#contents').on('click', () => d3.select('#bar details').attr('open', null));
// A link to a part of the page leaves the view as it is.
window.addEventListener('hashchange', () => document.getElementById(location.hash.slice(1)) ? keepView() : readView());
let width = innerWidth;
window.addEventListener('resize', () => { if (innerWidth !== width) readForm(width = innerWidth); });
