// What sections say at the page's beginning: their headlines, and whether L predicts KL.

// "at 10 % not seen (0.4, -0.8 to 1)": a rank correlation is seen where its interval over tasks is on one
// side of 0.
function correlated({of, mean, low, high}) {
  const [own, from, to] = [mean, low, high].map(number => shortNumber(Number(number.toPrecision(2))));
  const at = of.startsWith('budget ') ? `at ${of.slice(7).replace('%', '\u00a0%')}` : of;
  if (low === high) return `${at} ${own} without an interval`;
  return `${at} ${low > 0 ? 'yes' : high < 0 ? 'the other way round' : 'not seen'} (${own}, ${from} to ${to})`;
}

// The rank correlations of L and KL in a cube, by kind of task.
function correlationsOf(cube) {
  const [kindOf, of] = ['kind', 'of'].map(key => reader(cube, key)), all = [];
  const columns = ['correlation', 'correlation from', 'correlation to'];
  eachRow(cube, {}, (row, places) => {
    const [mean, low, high] = columns.map(column => cube.columns[column][row]), what = of(row, places);
    if (mean !== null && what.startsWith('KL, ')) all.push({kind: kindOf(row, places), of: what.slice(4), mean, low, high});
  });
  return d3.nest().key(({kind}) => kind).entries(all).map(({key, values}) =>
      `does L predict KL? Of ${key}, by the rank correlation over tasks: ${values.map(correlated).join('; ')}.`);
}

const headlinesOf = section => [section.headline, ...section.cubes.filter(({columns}) => 'correlation' in columns)
    .flatMap(correlationsOf)].filter(Boolean);

function drawHeadlines(list) {
  const all = sections.flatMap(section => headlinesOf(section).map(text => ({section, text})));
  const items = list.attr('hidden', all.length > 0 ? null : '').selectAll('li').data(all).enter().append('li');
  items.append('a').attr('href', ({section}) => `#${section.id}`).text(({section}) => section.title);
  items.append('span').text(({text}) => `: ${text}`);
}
