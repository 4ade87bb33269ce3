// The page's data, and what figures make of them.
//
// A cube has axes and columns. An axis has `size` places, each named by its keys ({policy: [...], budget:
// [...]}); a column has a number or null for every combination of places, the last axis varying fastest.
//
// A value is the name of a key or of a column; or {column, log_ratio}: log2 of its ratio to the row at the
// place of `base` on the axis that has this key; or {column, beside}: both numbers, [own, the base's], or
// [own, that of the place `beside`].

const page = JSON.parse(document.getElementById('data').textContent);
const sections = page.sections;
const cubes = new Map(sections.flatMap(section => section.cubes.map(cube => [cube.id, cube])));

// What is shown: for each key a test that its values pass (none: all do), for each figure's picks the value
// chosen, and the name of the series that is picked in all figures (empty: none).
const view = {filters: new Map(), picks: new Map(), series: ''};

// Budgets in their order: shares, then counts.
const amountOf = budget => Number.isNaN(parseFloat(budget)) ? Infinity : parseFloat(budget);  // `given` comes last
const byBudget = (a, b) => String(b).endsWith('%') - String(a).endsWith('%') || d3.ascending(amountOf(a), amountOf(b));
const axisOf = (cube, key) => cube.axes.findIndex(axis => key in axis.keys);
// x / y; 0 / 0 is 0, and what is no number remains none.
const ratio = (x, y) => x === null || y === null || (y === 0 && x !== 0) ? null : x === 0 ? 0 : x / y;

const logRatio = (x, y) => x > 0 && y > 0 ? Math.log2(x / y) : x === 0 && y === 0 ? 0 : null;

// The function (row, places) -> value.
function reader(cube, value) {
  if (typeof value === 'string' && axisOf(cube, value) < 0) return row => cube.columns[value][row];
  const axis = axisOf(cube, typeof value === 'string' ? value : 'base'), keys = cube.axes[axis].keys;
  if (typeof value === 'string') return (row, places) => keys[value][places[axis]];
  const column = cube.columns[value.column];
  const step = cube.axes.slice(axis + 1).reduce((product, other) => product * other.size, 1);
  return (row, places) => {
    const base = typeof value.beside === 'number' ? value.beside : keys.base[places[axis]];
    const other = base === null ? null : column[row + (base - places[axis]) * step];
    if (column[row] === null || other === null) return null;
    return 'beside' in value ? [column[row], other] : logRatio(column[row], other);
  };
}

// Whether the filters let a place of an axis pass; `picked` holds further conditions, {key: value}.
const passes = (axis, place, picked) => Object.entries(axis.keys).every(([key, names]) =>
    (view.filters.get(key)?.(names[place]) ?? true) && (!(key in picked) || String(names[place]) === picked[key]));

// Calls use(row, places) for all rows that pass.
function eachRow(cube, picked, use) {
  const open = cube.axes.map(axis => d3.range(axis.size).filter(place => passes(axis, place, picked)));
  const places = cube.axes.map(() => 0);
  const along = (axis, row) => {
    if (axis === cube.axes.length) return use(row, places);
    for (const place of open[axis]) {
      places[axis] = place;
      along(axis + 1, row * cube.axes[axis].size + place);
    }
  };
  along(0, 0);
}

// The different values of a key at places that pass, in their order.
function valuesOf(cube, key, picked) {
  const axis = cube.axes[axisOf(cube, key)], open = d3.range(axis.size).filter(place => passes(axis, place, picked));
  return [...new Set(open.map(place => String(axis.keys[key][place])))];
}

// Groups of the rows that pass: {names: their values of `keys`, values: the defined values, without: how many
// rows have none, row: one of those that have}. `groups` are those that have a value, `all` includes the
// others; `without` is of all.
function grouped(cube, picked, keys, value) {
  const readers = keys.map(key => reader(cube, key)), read = reader(cube, value), groups = new Map();
  eachRow(cube, picked, (row, places) => {
    const number = read(row, places), names = readers.map(one => one(row, places)), id = JSON.stringify(names);
    if (!groups.has(id)) groups.set(id, {names, values: [], without: 0});
    const group = groups.get(id);
    if (number === null) ++group.without;
    else { group.row ??= row; group.values.push(number); }
  });
  const all = [...groups.values()];
  return {groups: all.filter(group => group.values.length > 0), all, without: d3.sum(all, group => group.without)};
}

// A figure's summary of each group, behind the group's names.
function summarised(figure, cube, ...of) {
  const {groups, without} = grouped(cube, ...of);
  return {rows: groups.map(group => [...group.names, ...summary(figure, cube, group)]), without};
}

const FEWEST_PAIRS = 10;  // that have an interval
const student = n => 1.96 + 2.7 / (n - 1);  // Student's t of 95 % for n >= FEWEST_PAIRS numbers, to 0.3 %
// The ratio of the means of x and y over pairs [x, y], with its 95 % interval: that of the mean of x - ratio
// y.
function ratioOfMeans(pairs) {
  const base = d3.mean(pairs, pair => pair[1]), mean = ratio(d3.mean(pairs, pair => pair[0]), base);
  const count = pairs.length;
  if (base === 0 && mean === 0) return {mean: 1, low: 1, high: 1, count, has_interval: false};  // both lose nothing
  if (count < FEWEST_PAIRS || !base) return {mean, low: mean, high: mean, count, has_interval: false};
  const reach = student(count) * d3.deviation(pairs, ([x, y]) => (x - mean * y) / base) / Math.sqrt(count);
  return {mean, low: mean - reach, high: mean + reach, count, has_interval: true};
}

const inPercent = ratio => ratio === null ? null : 100 * (ratio - 1);  // as a change

const statistics = {
  mean: values => d3.mean(values),
  largest: values => d3.max(values),
  'change of the mean, %': pairs => inPercent(ratioOfMeans(pairs).mean),
};

const bandsOf = {
  quartiles: (values, sorted = Float64Array.from(values).sort()) => [0.25, 0.75].map(share => d3.quantile(sorted, share)),
  'interval of the change': pairs => [ratioOfMeans(pairs).low, ratioOfMeans(pairs).high].map(inPercent),
};

// A group's statistic, and the ends of its band if the figure has one: by one of bandsOf, or from two
// columns.
function summary({statistic, band}, cube, {values, row}) {
  const ends = Array.isArray(band) ? band.map(column => cube.columns[column][row]) : band ? bandsOf[band](values) : [];
  return [statistics[statistic](values), ...ends];
}
// What a figure's band is: "middle half of 32 query heads", by the rows that end in their numbers of values.
// That of columns is over tasks.
function bandMeaning({band, unit}, rows = []) {
  if (Array.isArray(band)) return '95 % interval over tasks';
  const counts = d3.extent(rows, row => row[row.length - 1]), many = [...new Set(counts)].filter(Boolean).join(' to ');
  return [band === 'quartiles' ? 'middle half of' : '95 % interval over', many, unit ?? 'query heads'].filter(Boolean).join(' ');
}
const bandNames = figure => figure.band ? ['from', 'to'].map(end => `${bandMeaning(figure)}, ${end}`) : [];
