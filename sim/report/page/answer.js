// The first table of each subject: what each policy did at each budget, best first.

// Whether an estimate's interval lies below those of all others, each of which must have one.
const isBest = (estimate, all) => all.length > 1 && all.every(one => one.has_interval) &&
                                  all.every(other => other === estimate || estimate.high < other.low);

const megabytes = bytes => bytes === null ? null : bytes / 1e6;
const meanBytes = outcomes => megabytes(d3.mean([...outcomes.values()], outcome => outcome.bytes) ?? null);

const estimated = ({mean, low, high}) => shortNumber(mean) + (low < high ? ` [${shortNumber(low)}, ${shortNumber(high)}]` : '');
// A ratio as a change: "-1.4 % [-1.9, -0.9]".
function changed({mean, low, high, has_interval}) {
  const [change, from, to] = [mean, low, high].map(one => Number(inPercent(one).toPrecision(3)));
  return `${change > 0 ? '+' : ''}${change} %${has_interval ? ` [${from}, ${to}]` : ''}`;
}

// The columns: a name, and the cell of a line, {text, unit, best}, or what it says; null: nothing. `own` are
// the budget's lines.
function columnsOf(lines) {
  const tasks = [...new Set(lines.flatMap(line => [...(line.outcomes?.keys() ?? [])]))];
  const base = lines.find(isBase), whole = view.filters.has('layer') || view.filters.has('head') ? ', whole run' : '';
  const change = ({change}) => change ? {text: changed(change), unit: `${change.count} heads`} : null;
  const kl = (line, task) => line.outcomes?.get(task)?.kl;
  const klCell = (one, all) => one && {text: estimated(one), unit: one.has_interval ? 'tasks' : '', best: isBest(one, all)};
  return [
    ['policy', nameOf], ['budget', line => named(line, 'budget')],
    ['relative L', (line, own, surest) => line.relative && {text: shortNumber(line.relative), best: line === surest}],
    [`against ${base ? nameOf(base) : 'the base'}`, change],
    [`layer-relative L${view.filters.has('head') ? ', all heads' : ''}`, line => line.layer_relative],
    ['improved heads', line => line.improved === undefined ? null : `${(100 * line.improved).toFixed(1)} %`],
    ['L', line => line.L],
    [`violations${whole}`, line => named(line, 'violations')],
    [`MB${whole}`, line => megabytes(named(line, 'bytes'))],
    ...tasks.map(task => [`KL, ${task}${whole}`,
                          (line, own) => klCell(kl(line, task), own.map(one => kl(one, task)).filter(Boolean))]),
    [`MB in tasks${whole}`, line => line.outcomes?.size === tasks.length ? meanBytes(line.outcomes) : null]];
}

// The cells of a budget's lines. The best relative L is marked if that of every other run is seen to be
// larger.
function rowsOf(own, columns) {
  const stands = standing(own), isSure = stands?.others.length > 0 && stands.others.every(({estimate}) => isLower(estimate));
  return own.map(line => columns.map(([, value]) => {
    const cell = value(line, own, isSure ? stands.best : null);
    return typeof cell === 'object' && cell !== null ? cell : {text: shortNumber(cell), title: named(line, 'canonical')};
  }));
}

function drawTable(parent, lines, filters) {
  const budgets = budgetsOf(lines);
  const columns = columnsOf(lines).filter(([, value]) => lines.some(line => (value(line, [], null) ?? null) !== null));
  parent.append('p').attr('class', 'note filtered').text(lines.length > 0 ? filters : 'Nothing passes the filters.');
  tableOf(parent, columns.map(([name]) => name), budgets.flatMap(({lines: own}) => rowsOf(own, columns)));
}
