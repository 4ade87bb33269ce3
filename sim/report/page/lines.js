// Points of a statistic of a column along a key, those of a series joined where they are dense, with a band.
// {x, y, series, statistic, band}

kinds.lines = {
  numbers(figure, cube, picked) {
    const {groups, without} = grouped(cube, picked, [...figure.series, figure.x.value], figure.y.value);
    const rows = groups.map(group => [...group.names, ...summary(figure, cube, group), group.values.length]);
    return {headings: [...figure.series, figure.x.label, figure.y.label, ...bandNames(figure), 'numbers'], rows, without};
  },

  draw(frame, figure, rows) {
    const X = figure.series.length, Y = X + 1, LOW = X + 2, HIGH = X + 3;
    const ends = row => figure.band ? [row[Y], row[LOW], row[HIGH]] : [row[Y]];
    const drawable = placed(figure, rows, X, Y).filter(row => ends(row).every(Number.isFinite));
    if (drawable.length === 0) return {note: NO_PLACE};
    const {x, y, plot} = axes(frame, figure, drawable.map(row => row[X]), drawable.flatMap(ends));
    const lines = bySeries(figure, drawable), shown = lines.slice(0, MOST_SERIES);
    const at = row => x(row[X]), line = d3.line().x(at).y(row => y(row[Y]));
    const area = d3.area().x(at).y0(row => y(row[LOW])).y1(row => y(row[HIGH]));
    const dense = isDense([...new Set(drawable.map(row => row[X]))].sort(d3.ascending), x);
    const joined = rows => dense ? [rows] : rows.map(row => [row]);  // what has one band
    const beside = dense ? 0 : Math.min(9, 60 / shown.length);  // so that single points do not hide each other
    for (const [i, {name, style, rows}] of shown.entries()) {
      rows.sort((a, b) => a[X] - b[X]);
      const group = add(plot, 'g', {class: 'series', transform: `translate(${beside * (i + 0.5 - shown.length / 2)})`});
      group.datum({name, isAlone: shown.length === 1});
      for (const d of figure.band ? joined(rows).map(area) : [])
        add(group, 'path', {class: 'band', d, fill: style.colour, 'fill-opacity': 0.25, ...stroke(style), 'stroke-opacity': 0.6});
      if (dense) add(group, 'path', {class: 'line', d: line(rows), fill: 'none', ...stroke(style)});
      for (const row of rows) point(group, at(row), y(row[Y]), style, frame, row);
    }
    const bands = figure.band && shown.length > 1 ? 'A band is drawn of what is picked or pointed at.' : '';
    const note = [leftOut(lines, shown), unplaced(rows, drawable), bands];
    return {legend: shown, meaning: figure.band && bandMeaning(figure, drawable), note};
  },
};

// Whether little can be hidden between neighbours: they are consecutive integers, or none is far from the
// next.
function isDense(places, x) {
  const room = 0.3 * (x(places[places.length - 1]) - x(places[0]));
  const all = test => d3.pairs(places).every(([a, b]) => test(a, b));
  return all((a, b) => b - a === 1) || all((a, b) => x(b) - x(a) <= room);
}
