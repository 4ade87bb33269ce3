// Lines: a statistic of a column along a key, a line for each series, with a band. {x, y, series, statistic, band}.

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
    for (const {rows} of shown) rows.sort((a, b) => a[X] - b[X]);
    const band = ({colour}, opacity) => ({class: 'band', fill: colour, 'fill-opacity': 0.3 / (1 + shown.length), stroke: colour,
                                          'stroke-opacity': opacity});
    for (const [i, {style, rows}] of (figure.band ? shown : []).entries()) {
      const beside = rows.length > 1 ? null : `translate(${4 * i - 2 * shown.length + 2})`;  // bands of one place are lines
      add(plot, 'path', {d: area(rows), ...band(style, beside ? 1 : 0.4), transform: beside});
    }
    for (const {style, rows} of shown) {
      add(plot, 'path', {d: line(rows), fill: 'none', ...stroke(style)});
      for (const row of rows) point(plot, at(row), y(row[Y]), style, frame, row);
    }
    return {legend: shown, note: [leftOut(lines, shown), unplaced(rows, drawable)]};
  },
};
