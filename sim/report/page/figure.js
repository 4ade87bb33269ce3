// A figure's frame: its title, how to read it, what is picked, the drawing, and its numbers as a table.

// Adds the figure to the page; returns the function that draws it anew.
function mount(figure, parent) {
  const cube = cubes.get(figure.cube), kind = kinds[figure.kind];
  const box = parent.append('figure').attr('id', figure.id), caption = box.append('figcaption');
  caption.append('h3').text(figure.title);
  caption.append('p').text(figure.how);
  const controls = box.append('p').attr('class', 'controls'), shown = box.append('p').attr('class', 'shown');
  const drawing = box.append('div').attr('class', 'drawing'), note = box.append('p').attr('class', 'note').attr('role', 'status');
  const details = box.append('details').attr('class', 'numbers');
  details.on('toggle', () => fillTable(details, current)).append('summary').text('Numbers');
  let current = {headings: [], rows: []};
  savable.set(figure.id, save => save(figure, current, drawing.select('svg').node()));

  return function draw() {
    const picked = {};
    for (const pick of figure.pick) picked[pick.key] = pickOne(controls, figure, cube, pick, picked, draw);
    current = {picked, ...kind.numbers(figure, cube, picked)};
    current.shown = [...Object.entries(picked).map(pair => pair.join(' ')), filtersText(cube)].filter(Boolean).join('; ');
    shown.text(current.shown);
    drawing.selectAll('*').remove();
    fillTable(details, current);
    const notes = current.rows.length > 0 ? drawOn(drawing, figure, kind, current)
                                          : ['Nothing passes the filters, or no number is defined.'];
    note.text([...notes, counted('Places without a number', current.without)].filter(Boolean).join(' '));
  };
}

// Draws the current numbers; returns what is to be said of that.
function drawOn(drawing, figure, kind, {headings, rows}) {
  const width = Math.max(280, drawing.node().clientWidth);
  const svg = add(drawing, 'svg', {width, role: 'img', 'aria-label': `${figure.title}. ${figure.how}`, 'font-size': 12});
  svg.attr('font-family', 'system-ui, sans-serif').attr('color', 'var(--ink)');
  const frame = {svg, width, headings, bottom: 0}, {legend = [], meaning, scale, note} = kind.draw(frame, figure, rows);
  drawLegend(frame, legend.filter(series => series.name !== ''));
  if (meaning) drawMeaning(frame, meaning);
  showBands(svg);
  if (scale) drawScale(frame, scale);
  svg.attr('height', frame.bottom).attr('viewBox', `0 0 ${width} ${frame.bottom}`);
  return note;
}

// The control for a key of which the figure shows one value, beside those `picked`; returns that value.
function pickOne(controls, figure, cube, {key, preferred}, picked, draw) {
  const id = `${figure.id}.${key}`, options = valuesOf(cube, key, picked);
  const chosen = [view.picks.get(id), preferred, options[0]].find(value => options.includes(value)) ?? '';
  if (controls.select(`[name="${id}"]`).empty()) {
    controls.append('label').text(`${key} `).append('select').attr('name', id).on('change', function() {
      view.picks.set(id, this.value);
      keepView();
      draw();
    });
  }
  const control = controls.select(`[name="${id}"]`);
  control.selectAll('option').remove();
  for (const value of options) control.append('option').attr('value', value).property('selected', value === chosen).text(value);
  return chosen;
}

function drawLegend(frame, series) {
  let x = 8, y = frame.bottom + 8;
  for (const {name, style} of series) {
    const text = shortened(String(name), frame.width - 40), width = 40 + 7 * text.length;
    if (x > 8 && x + width > frame.width) [x, y] = [8, y + 18];
    const entry = add(frame.svg, 'g', {class: 'entry', transform: `translate(${x},${y})`});
    entry.on('mouseover', () => showBands(frame.svg, name)).on('mouseout', () => showBands(frame.svg));
    entry.on('click', () => pickSeries(name === view.series ? '' : name));
    add(entry, 'line', {x2: 20, ...stroke(style)});
    add(entry, 'path', {d: style.symbol, transform: 'translate(10,0)', fill: style.colour});
    label(entry, text, 26, 4, 'start', 'legend').append('title').text(name);
    x += width;
  }
  if (series.length > 0) frame.bottom = y + 16;
}

// What a band or a whisker is.
function drawMeaning(frame, meaning) {
  const y = frame.bottom + 8;
  add(frame.svg, 'path', {d: `M14,${y - 5}h8m-4,0v10m-4,0h8`, stroke: 'var(--ink)', fill: 'none'});
  label(frame.svg, shortened(meaning, frame.width - 40), 34, y + 4, 'start', 'legend');
  frame.bottom = y + 16;
}

// Draws bands of the picked series, of the one that is pointed at, and of one that is alone.
function showBands(parent, pointedAt) {
  parent.selectAll('.series').each(function({name, isAlone}) {
    const isShown = isAlone || name === view.series || name === pointedAt;
    d3.select(this).selectAll('.band').attr('display', isShown ? null : 'none');
  });
}

// What the colours of cells mean.
function drawScale(frame, {colour, beyond, meaning}) {
  const domain = colour.domain(), steps = 24, width = Math.min(260, frame.width - 180) / steps, y = frame.bottom + 6;
  const value = d3.scaleLinear([0, steps - 1], domain);
  for (const i of d3.range(steps))
    add(frame.svg, 'rect', {x: 86 + i * width, y, width: width + 0.5, height: 10, fill: colour(value(i))});
  label(frame.svg, `${beyond.low ? '\u2264 ' : ''}${shortNumber(domain[0])}`, 82, y + 9, 'end', 'legend');
  label(frame.svg, `${beyond.high ? '\u2265 ' : ''}${shortNumber(domain[1])}`, 90 + steps * width, y + 9, 'start', 'legend');
  label(frame.svg, meaning, 86, y + 26, 'start', 'legend');
  frame.bottom = y + 34;
}

function fillTable(details, {headings, rows}) {
  details.selectAll('div').remove();
  if (!details.property('open')) return;
  const box = details.append('div');
  tableOf(box, headings, rows.slice(0, MOST_TABLE_ROWS).map(row => row.map(value => ({text: String(value ?? '')}))));
  if (rows.length > MOST_TABLE_ROWS) box.append('p').text(`${MOST_TABLE_ROWS} of ${rows.length} rows; the CSV has all.`);
}

// Where a table is wider than its box, a note says how many columns are further right.
const widths = new ResizeObserver(entries => {
  for (const {target} of entries) {
    if (!target.isConnected) { widths.unobserve(target); continue; }  // another table was drawn in its place
    const box = target.parentNode, columns = [...target.tHead.rows[0].cells];
    const hidden = columns.filter(cell => cell.offsetLeft + cell.offsetWidth > box.clientWidth + 1).length;
    d3.select(box.previousSibling).attr('hidden', hidden > 0 ? null : '')
        .text(`Scroll the table sideways: ${hidden} of its ${columns.length} columns are further right.`);
  }
});

// A table of cells {text, unit, title, best, wrong}, in a box that scrolls: the unit stands behind the text.
function tableOf(parent, headings, rows) {
  parent.append('p').attr('class', 'note scrolls').attr('hidden', '');
  const table = add(parent, 'div', {class: 'scroll', tabindex: 0}).append('table'), head = table.append('thead').append('tr');
  for (const heading of headings) head.append('th').attr('scope', 'col').text(heading);
  const cells = table.append('tbody').selectAll('tr').data(rows).enter().append('tr').selectAll('td').data(row => row).enter()
      .append('td').text(cell => cell.text).attr('title', cell => cell.title ?? null).classed('best', cell => Boolean(cell.best))
      .classed('wrong', cell => Boolean(cell.wrong));
  cells.filter(cell => cell.unit).append('small').text(cell => ` ${cell.unit}`);
  widths.observe(table.node());
}
