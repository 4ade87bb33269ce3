// Points with whiskers, those of a value of x side by side. {x, y, series, statistic, band, level}: `level`
// is a line that they are held against.

kinds.whiskers = {
  numbers: kinds.lines.numbers,

  draw(frame, figure, rows) {
    const [X, Y, LOW, HIGH] = d3.range(4).map(i => figure.series.length + i);
    const ends = row => figure.band ? [row[LOW], row[HIGH]] : [];
    const drawable = rows.filter(row => [row[Y], ...ends(row)].every(Number.isFinite));
    if (drawable.length === 0) return {note: NO_PLACE};
    const lines = bySeries(figure, drawable), shown = lines.slice(0, MOST_SERIES);
    const places = [...new Set(drawable.map(row => row[X]))];
    const numbers = drawable.flatMap(row => [row[Y], ...ends(row), figure.level ?? row[Y]]);
    const {x, y, plot} = groupAxes(frame, figure, places.sort(byBudget), numbers);
    const within = d3.scalePoint(d3.range(shown.length), [0, x.bandwidth()]).padding(0.5);
    const [level] = [figure.level].map(y), across = {x2: plot.datum().width, y1: level, y2: level, stroke: 'var(--ink)'};
    if (figure.level !== undefined) add(plot, 'line', across);
    for (const [i, {style, rows}] of shown.entries()) for (const row of rows) {
      const at = x(row[X]) + within(i), [low, high] = ends(row).map(y);
      if (low > high) add(plot, 'line', {class: 'interval', x1: at, x2: at, y1: low, y2: high, ...stroke(style)});
      point(plot, at, y(row[Y]), style, frame, row);
    }
    return {legend: shown, meaning: figure.band && bandMeaning(figure, drawable), note: [leftOut(lines, shown)]};
  },
};
