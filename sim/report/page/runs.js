// Runs of policies, as the page opens with them. A subject of page.answer is one trace or model: {subject,
// heads, layers, picture, outcomes}: the cubes of what policies did to its heads and layers, the figure above
// its table, and the cube of what the model then said; each may be null. A line is a run: {keys, place} say
// which, the rest is what is known.

const named = (line, key) => line.keys[key]?.[line.place] ?? null;
const nameOf = line => named(line, 'run') ?? named(line, 'policy');
const isBase = line => line.keys.base?.[line.place] === line.place;

// The ratio of the mean relative L of two runs over the heads that pass, with its interval over pairs; null
// where a head has no L.
function compared(cube, place, other) {
  const [L, relative] = ['perturbation', 'relative'].map(column => pairsOf(cube, place, other, [], column)[0]);
  const estimate = L.without > 0 ? {mean: null} : ratioOfMeans(relative.values);
  return estimate.mean === null ? null : estimate;
}
const pairsOf = (cube, place, other, keys, column) =>
    grouped(cube, {place: String(place)}, keys, {column, beside: other}).all;

// L and relative L of each run over the heads that pass, layer-relative L over the layers, how they differ
// from the base's, and how many heads improve. Where a head has no L there is no mean; x / 0 is left out of
// those of relative L.
function openLoop({heads, layers}) {
  const cube = cubes.get(heads), {keys} = cube.axes[axisOf(cube, 'place')];
  const ofRuns = (id, column) => id ? grouped(cubes.get(id), {}, ['place'], column).all : [];
  const [relative, layer_relative] = [ofRuns(heads, 'relative'), ofRuns(layers, 'layer_relative')];
  return ofRuns(heads, 'perturbation').map(({names: [place], values, without}, run) => {
    const line = {keys, place, cube};
    if (without > 0) return line;
    const means = {L: values, relative: relative[run].values, layer_relative: layer_relative[run]?.values ?? []};
    return {...line, ...Object.fromEntries(Object.entries(means).map(([name, all]) => [name, d3.mean(all)])), ...ofBase(line)};
  });
}

function ofBase(line) {
  const base = line.keys.base[line.place];
  if (base === null || isBase(line)) return {};
  const pairs = pairsOf(line.cube, line.place, base, [], 'perturbation')[0].values;
  return {change: compared(line.cube, line.place, base), improved: d3.mean(pairs, ([L, other]) => L < other ? 1 : 0)};
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
  const lines = subject.heads ? openLoop(subject) : [];
  for (const {outcomes, ...run} of subject.outcomes ? closedLoop(cubes.get(subject.outcomes)) : []) {
    let partners = lines.filter(line => ['canonical', 'budget'].every(key => named(line, key) === named(run, key)));
    if (partners.length === 0) lines.push(...(partners = [run]));
    for (const line of partners) Object.assign(line, {outcomes});
  }
  return lines;
}

// The lines of each budget, in the order of budgets: by relative L, then those that have L alone, then those
// that have KL alone.
function budgetsOf(lines) {
  const kl = line => d3.mean([...(line.outcomes?.values() ?? [])], outcome => outcome.kl.mean);
  const ranks = line => [line.relative, line.L, kl(line)].map(value => value ?? Infinity);
  const order = (a, b) => d3.range(3).map(i => d3.ascending(ranks(a)[i], ranks(b)[i])).find(Boolean) ?? 0;
  return [...new Set(lines.map(line => named(line, 'budget')))].sort(byBudget)
      .map(budget => ({budget, lines: lines.filter(line => named(line, 'budget') === budget).sort(order)}));
}

// What the lowest relative L of a budget is worth, on the backend of its run: {best, partner, others}:
// `partner` is the base's run, or the next one where the base is best or there is none; `others` are all that
// the best is held against, {line, estimate}.
function standing(lines) {
  const all = lines.filter(line => line.relative !== undefined), [best] = all;
  if (!best) return null;
  const others = all.slice(1).filter(line => named(line, 'backend') === named(best, 'backend'))
                     .map(line => ({line, estimate: compared(best.cube, best.place, line.place)}))
                     .filter(({estimate}) => estimate !== null);
  return {best, others, partner: others.find(({line}) => isBase(line)) ?? others[0] ?? null};
}
// Whether the interval of a ratio lies below 1.
const isLower = estimate => Boolean(estimate?.has_interval && estimate.high < 1);
