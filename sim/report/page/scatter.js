// Points: one column against another, a series by symbol and colour. {x, y, series, labels, diagonal,
// ceilings}: `diagonal` names y = x; ceilings are {name, slope} or {name, level}, lines y = slope x and y =
// level.

kinds.scatter = {
  numbers(figure, cube, picked) {
    const keys = [...figure.series, ...figure.labels], all = [];
    const readers = [...keys, figure.x.value, figure.y.value].map(value => reader(cube, value));
    eachRow(cube, picked, (row, places) => all.push(readers.map(read => read(row, places))));
    const rows = all.filter(row => !row.includes(null));
    return {headings: [...keys, figure.x.label, figure.y.label], rows, without: all.length - rows.length};
  },

  draw(frame, figure, rows) {
    const X = figure.series.length + figure.labels.length, Y = X + 1;
    const drawable = placed(figure, rows, X, Y), series = bySeries(figure, drawable), shown = series.slice(0, MOST_SERIES);
    const all = shown.flatMap(one => one.rows), points = thinned(all, figure.diagonal ? row => row[Y] / row[X] : null);
    if (points.length === 0) return {note: NO_PLACE};
    const lines = figure.diagonal ? [{name: figure.diagonal, slope: 1}] : figure.ceilings || [];
    const xs = points.map(row => row[X]), others = figure.diagonal ? xs : lines.flatMap(line => line.level ?? []);
    const {x, y, plot} = axes(frame, figure, xs, [...points.map(row => row[Y]), ...others]);
    const [x0, x1] = x.domain(), [y0, y1] = y.domain();
    for (const {name, slope, level} of lines) {
      const at = value => [x(value), y(level ?? slope * value)];
      const [from, to] = slope ? [Math.max(x0, y0 / slope), Math.min(x1, y1 / slope)] : [x0, x1];
      if (from < to) rule(plot, at(from), at(to), name, slope ? 0.7 : 0);
    }
    for (const {style, rows} of bySeries(figure, points))
      for (const row of rows) point(plot, x(row[X]), y(row[Y]), style, frame, row);
    const thin = points.length < all.length ? `${points.length} of ${all.length} points are drawn, evenly chosen` +
        `${figure.diagonal ? ' but for the half of them that are nearest to the diagonal' : ''}. All are in the CSV.` : '';
    return {legend: shown, note: [thin, leftOut(series, shown), unplaced(rows, drawable)]};
  },
};

// At most MOST_POINTS rows, evenly chosen, or half of them those of the largest `rank`; in the given order.
function thinned(rows, rank) {
  if (rows.length <= MOST_POINTS) return rows;
  const order = d3.range(rows.length), first = rank ? MOST_POINTS / 2 : 0, others = MOST_POINTS - first;
  if (rank) order.sort((i, j) => rank(rows[j]) - rank(rows[i]));
  const rest = order.slice(first).sort((i, j) => i - j);
  const kept = [...order.slice(0, first), ...d3.range(others).map(i => rest[Math.floor(i * rest.length / others)])];
  return kept.sort((i, j) => i - j).map(i => rows[i]);
}
