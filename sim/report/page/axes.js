// Scales, axes and the marks that all kinds of figures share. Colours are CSS variables, so that figures
// follow the theme.

const kinds = {};  // by name: {numbers(figure, cube, picked), draw(frame, figure, rows)}
const MOST_SERIES = 24, MOST_POINTS = 2000, MOST_DOTS = 60, MOST_TABLE_ROWS = 1000;
const NO_PLACE = ['No number has a place on the axes: on a logarithmic one 0 has none.'];

// Appends an element with these attributes.
const add = (parent, name, attributes) =>
    Object.entries(attributes).reduce((added, [key, value]) => added.attr(key, value), parent.append(name));

// The rows that have places on the axes of a figure: on a logarithmic one only numbers above 0 have.
const fits = (axis, number) => Number.isFinite(number) && (axis.scale !== 'log' || number > 0);
const placed = (figure, rows, X, Y) => rows.filter(row => fits(figure.x, row[X]) && (!Y || fits(figure.y, row[Y])));
const counted = (text, count) => count > 0 ? `${text}: ${count}.` : '';
const unplaced = (rows, shown) => counted('Without a place on the axes (0 on a logarithmic one)', rows.length - shown.length);
const leftOut = (all, shown) => counted('Series that are not drawn (filter, or see the table)', all.length - shown.length);

// A number in four significant digits; other values as they are.
const shortNumber = value => typeof value !== 'number' || Number.isInteger(value) ? String(value ?? '–')
                             : Math.abs(value) >= 1e5 || Math.abs(value) < 1e-3 ? value.toExponential(3)
                             : String(Number(value.toPrecision(4)));

// How a series is drawn, the same in all figures: by its place among all series of its key.
const seriesNames = new Map();
function styleOf(key, name) {
  const i = Math.max(0, (seriesNames.get(key) || []).indexOf(String(name)));
  return {colour: `var(--series-${i % 8})`, symbol: d3.symbol().type(d3.symbols[i % d3.symbols.length]).size(40)(),
          dashes: [null, '6 3', '2 3', '8 3 2 3'][Math.floor(i / 8) % 4]};
}
const stroke = style => ({stroke: style.colour, 'stroke-width': 1.8, 'stroke-dasharray': style.dashes});

// The rows of each series: {name, style, rows}. A figure without series has one that has no name.
function bySeries(figure, rows) {
  const [key] = figure.series, named = row => key ? row[0] : '', of = name => rows.filter(row => named(row) === name);
  return [...new Set(rows.map(named))].map(name => ({name, style: styleOf(key, name), rows: of(name)}));
}

// A mark's title: all that its row says.
const titled = (mark, frame, row) => mark.attr('class', 'mark').append('title')
    .text(row.map((value, i) => `${frame.headings[i]}: ${shortNumber(value)}`).join('\n'));

function point(plot, x, y, style, frame, row) {
  titled(add(plot, 'path', {d: style.symbol, transform: `translate(${x},${y})`, fill: style.colour}), frame, row);
}

// A straight line that does not fall, with its name beside the point `at` of the way along it: left above,
// or right below where there is no room; that of an upright line stands above the drawing.
function rule(plot, [x0, y0], [x1, y1], name, at) {
  add(plot, 'line', {x1: x0, y1: y0, x2: x1, y2: y1, stroke: 'var(--ink)', 'stroke-dasharray': '4 3'});
  const x = x0 + at * (x1 - x0), y = y0 + at * (y1 - y0), isLeft = x > 120;
  label(plot, name, x + (isLeft ? -6 : 6), y + (isLeft || x0 === x1 ? -6 : 13), isLeft ? 'end' : 'start', 'rule');
}

const label = (parent, text, x, y, anchor, name) =>
    add(parent, 'text', {class: name, x, y, 'text-anchor': anchor, fill: 'var(--ink)'}).text(text);

// A scale over numbers: of a logarithmic one, those above 0, with room for marks at its ends.
function scaleOf(axis, numbers, range) {
  const log = axis.scale === 'log', [least, most] = d3.extent(numbers.filter(number => !log || number > 0));
  const room = least === most ? 2 : Math.exp(0.03 * (Math.log(most) - Math.log(least)));
  if (log) return d3.scaleLog([least / room, most * room], range);
  const from = axis.from_zero ? Math.min(0, least) : least;
  return d3.scaleLinear(from === most ? [from - 0.5, most + 0.5] : [from, most], range).nice();
}

// The room of a drawing, with tick labels `left` of it and `below` it.
function plotOf(frame, left, height, below = 0) {
  const margin = {top: 26, right: 24, bottom: 42 + below}, width = Math.max(80, frame.width - left - margin.right);
  frame.bottom = height + margin.top + margin.bottom;
  return frame.svg.append('g').attr('transform', `translate(${left},${margin.top})`).datum({left, width, height, below});
}

function drawAxes(figure, plot, bottomAxis, leftAxis) {
  const {left, width, height, below} = plot.datum();
  plot.append('g').attr('class', 'axis').attr('transform', `translate(0,${height})`).call(bottomAxis);
  plot.append('g').attr('class', 'axis').call(leftAxis);
  plot.selectAll('.axis').attr('font-size', 11).attr('font-family', 'inherit');
  label(plot, figure.x.label, width / 2, height + 36 + below, 'middle', 'x-label');
  label(plot, figure.y.label, 4 - left, -12, 'start', 'y-label');
}

const tickText = number => d3.format(number !== 0 && number < 1e-3 || number >= 1e5 ? '~e' : '.12~g')(number);

// About so many ticks of an axis: of a logarithmic one of less than a decade at round numbers, of less than
// two at 1, 2 and 5.
function ticks(axis, count) {
  const [least, most] = axis.scale().domain();
  const enough = from => d3.range(from, from + 9).find(many => d3.ticks(least, most, many).length > 1);  // for two ticks
  if (!axis.scale().base) return axis.ticks(count < 2 ? count : enough(count));
  if (most / least < 10) return axis.tickValues(d3.ticks(least, most, enough(Math.max(3, count / 2)))).tickFormat(tickText);
  if (most / least >= 100) return axis.ticks(count * 0.8, tickText);
  const decades = d3.range(Math.floor(Math.log10(least)), Math.log10(most));
  return ticksAt(axis, decades.flatMap(decade => ['1', '2', '5'].map(digit => Number(`${digit}e${decade}`)))
      .filter(number => least <= number && number <= most));
}

// Two axes of numbers.
function axes(frame, figure, xs, ys) {
  const plot = plotOf(frame, 56, Math.min(320, Math.max(200, frame.width * 0.5))), {width, height} = plot.datum();
  const x = scaleOf(figure.x, xs, [0, width]), y = scaleOf(figure.y, ys, [height, 0]);
  const places = [...new Set(xs)].sort(d3.ascending), bottom = d3.axisBottom(x);
  const hasFew = figure.kind === 'lines' && places.length <= MOST_TICKS;
  drawAxes(figure, plot, hasFew ? ticksAt(bottom, places) : ticks(bottom, Math.max(2, width / 80)), ticks(d3.axisLeft(y), 6));
  return {x, y, plot};
}

const MOST_TICKS = 12;  // at the numbers themselves
// Ticks at these numbers, in ascending order; labels where there is room for them.
function ticksAt(axis, numbers) {
  const x = axis.scale(), kept = [];
  for (const number of numbers) if (kept.length === 0 || Math.abs(x(number) - x(kept[kept.length - 1])) > 40) kept.push(number);
  return axis.tickValues(numbers).tickFormat(number => kept.includes(number) ? tickText(number) : '');
}

const LETTER = 6.5;  // about how wide one is
const widest = names => LETTER * d3.max(names, name => String(name).length);
// The text, cut off where it would be wider than so many pixels.
const shortened = (text, width) =>
    text.length * LETTER <= width - 12 ? text : text.slice(0, Math.max(3, width / LETTER - 3)) + '…';
// The names that have room for labels of so many pixels.
const labelled = (names, room, each) => names.filter((_, i) => i % Math.max(1, Math.ceil(names.length * each / room)) === 0);

// Two axes of names, for cells.
function bands(frame, figure, columns, lines) {
  const left = Math.min(220, Math.max(40, 16 + widest(lines))), each = 12 + widest(columns);
  const turned = !columns.every(Number.isFinite) && columns.length * each > frame.width - left;
  const plot = plotOf(frame, left, Math.max(60, lines.length * (lines.length > 40 ? 13 : 20)), turned ? 0.75 * each : 0);
  const {width, height} = plot.datum(), x = d3.scaleBand(columns, [0, width]), y = d3.scaleBand(lines, [0, height]);
  drawAxes(figure, plot, d3.axisBottom(x).tickValues(labelled(columns, width, turned ? 13 : each)),
           d3.axisLeft(y).tickValues(labelled(lines, height, 12)));
  if (turned) plot.select('.axis').selectAll('text').attr('text-anchor', 'end').attr('transform', 'rotate(-45) translate(-4,-6)');
  return {x, y, plot};
}

// Names below, of groups, and numbers on the left.
function groupAxes(frame, figure, names, numbers) {
  const plot = plotOf(frame, 56, 220), {width, height} = plot.datum();
  const x = d3.scaleBand(names, [0, width]).padding(0.1), y = scaleOf(figure.y, numbers, [height, 0]);
  drawAxes(figure, plot, d3.axisBottom(x).tickSize(0).tickPadding(8), ticks(d3.axisLeft(y), 6));
  return {x, y, plot};
}

// A number axis below rows that are named on the left.
function dotAxes(frame, figure, ids, text, numbers) {
  const left = Math.min(frame.width * 0.45, 16 + widest(ids.map(text)));
  const plot = plotOf(frame, left, ids.length * 20 + 8), {width, height} = plot.datum();
  const x = scaleOf(figure.x, numbers, [0, width]), y = d3.scaleBand(ids, [0, height]);
  drawAxes(figure, plot, ticks(d3.axisBottom(x), Math.max(2, width / 90)),
           d3.axisLeft(y).tickFormat(id => shortened(text(id), left)));
  return {x, y, plot};
}
