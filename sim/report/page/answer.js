// The table that the page opens with: what each policy did at each budget, best first. A subject of page.answer is one trace or
// model: {subject, heads, outcomes}: the cubes of what policies did to its heads, and of what the model then said; either may be
// null. A line of the table is a run: {keys, place} say which, the rest is what is known.

const named = (line, key) => line.keys[key]?.[line.place] ?? null;

// L of each run over the heads that pass, its ratio to the base's, and how many heads improve.
function openLoop(cube) {
  const {keys} = cube.axes[axisOf(cube, 'place')];
  const ofRuns = value => grouped(cube, {}, ['place'], value).all;
  const own = ofRuns('perturbation'), pairs = ofRuns({column: 'perturbation', beside: true});
  const ofAll = group => group.without > 0 ? [] : group.values;  // where a head has no number there is no mean
  return own.map(({names: [place], ...group}, run) =>
      ({keys, place, L: d3.mean(ofAll(group)), ...againstBase(ofAll(pairs[run]), keys.base[place] === place)}));
}

function againstBase(pairs, isBase) {
  if (isBase) return {relative: {mean: 1, low: 1, high: 1, has_interval: pairs.length >= FEWEST_PAIRS}};
  const relative = ratioOfMeans(pairs);
  return pairs.length > 0 && relative.mean !== null ? {relative, improved: d3.mean(pairs, ([L, base]) => L < base ? 1 : 0)} : {};
}

// KL and bytes of each run that passes, by kind of task.
function closedLoop(cube) {
  const [run, kind] = ['policy', 'kind'].map(key => axisOf(cube, key)), {keys} = cube.axes[run], runs = new Map();
  eachRow(cube, {}, (row, places) => {
    const place = places[run], task = cube.axes[kind].keys.kind[places[kind]];
    const [mean, low, high, bytes] = ['kl', 'kl from', 'kl to', 'bytes'].map(column => cube.columns[column][row]);
    if (mean === null) return;
    if (!runs.has(place)) runs.set(place, {keys, place, outcomes: new Map()});
    runs.get(place).outcomes.set(task, {kl: {mean, low, high, has_interval: low < high}, bytes});
  });
  return [...runs.values()];
}

// The lines of a subject: outcomes stand in those of the same policy and budget.
function linesOf(subject) {
  const lines = subject.heads ? openLoop(cubes.get(subject.heads)) : [];
  for (const {outcomes, ...run} of subject.outcomes ? closedLoop(cubes.get(subject.outcomes)) : []) {
    let partners = lines.filter(line => ['canonical', 'budget'].every(key => named(line, key) === named(run, key)));
    if (partners.length === 0) lines.push(...(partners = [run]));
    for (const line of partners) Object.assign(line, {outcomes});
  }
  return lines;
}

// Whether an estimate's interval lies below those of all others, each of which must have one.
const isBest = (estimate, all) => all.length > 1 && all.every(one => one.has_interval) &&
                                  all.every(other => other === estimate || estimate.high < other.low);

const megabytes = bytes => bytes === null ? null : bytes / 1e6;
const meanBytes = outcomes => megabytes(d3.mean([...outcomes.values()], outcome => outcome.bytes) ?? null);

// The columns: a name, and what it says of a line; null: nothing.
function columnsOf(lines) {
  const tasks = [...new Set(lines.flatMap(line => [...(line.outcomes?.keys() ?? [])]))];
  const whole = view.filters.has('layer') || view.filters.has('head') ? ', whole run' : '';
  return [
    ['policy', line => named(line, 'run') ?? named(line, 'policy')], ['budget', line => named(line, 'budget')],
    ['L', line => line.L], ['L / base', line => line.relative],
    ['improved heads', line => line.improved === undefined ? null : `${(100 * line.improved).toFixed(1)} %`],
    [`violations${whole}`, line => named(line, 'violations')],
    [`MB at the prompt's end${whole}`, line => megabytes(named(line, 'bytes'))],
    ...tasks.map(task => [`KL, ${task}${whole}`, line => line.outcomes?.get(task)?.kl]),
    [`MB in tasks${whole}`, line => line.outcomes?.size === tasks.length ? meanBytes(line.outcomes) : null]];
}

const estimated = ({mean, low, high}) => shortNumber(mean) + (low < high ? ` [${shortNumber(low)}, ${shortNumber(high)}]` : '');

// The lines of each budget by L / base, then those that have L alone, then those that have KL alone.
function rowsOf(lines, columns) {
  const kl = line => d3.mean([...(line.outcomes?.values() ?? [])], outcome => outcome.kl.mean);
  const ranks = line => [line.relative?.mean, line.L, kl(line)].map(value => value ?? Infinity);
  const order = (a, b) => d3.range(3).map(i => d3.ascending(ranks(a)[i], ranks(b)[i])).find(Boolean) ?? 0;
  return [...new Set(lines.map(line => named(line, 'budget')))].sort(byBudget).flatMap(budget => {
    const own = lines.filter(line => named(line, 'budget') === budget).sort(order);
    return own.map(line => columns.map(([, value]) => {
      const cell = value(line);
      if (typeof cell !== 'object' || cell === null) return {text: shortNumber(cell), title: named(line, 'canonical')};
      return {text: estimated(cell), best: isBest(cell, [...new Set(own.map(value).filter(Boolean))])};
    }));
  });
}

function drawAnswer(parent) {
  parent.selectAll('*').remove();
  d3.select('#policies').attr('hidden', page.answer.length > 0 ? null : '');
  for (const subject of page.answer) {
    const lines = linesOf(subject);
    const columns = columnsOf(lines).filter(([, value]) => lines.some(line => (value(line) ?? null) !== null));
    parent.append('h3').text(subject.subject);
    const note = lines.length > 0 ? filtersText(cubes.get(subject.heads ?? subject.outcomes)) : 'Nothing passes the filters.';
    parent.append('p').attr('class', 'note').text(note);
    tableOf(add(parent, 'div', {class: 'scroll', tabindex: 0}), columns.map(([name]) => name), rowsOf(lines, columns));
  }
}
