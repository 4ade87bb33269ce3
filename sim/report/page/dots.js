// Dots in rows: a statistic of a column for each value of some keys. {x, labels, series, statistic, band,
// limit}: `limit` is a line that dots are held against; `series` tells them apart.

kinds.dots = {
  numbers(figure, cube, picked) {
    const keys = [...figure.series, ...figure.labels];
    return {headings: [...keys, figure.x.label, ...bandNames(figure)], ...summarised(figure, cube, picked, keys, figure.x.value)};
  },

  draw(frame, figure, rows) {
    const V = figure.series.length + figure.labels.length, drawable = placed(figure, rows, V);
    if (drawable.length === 0) return {note: NO_PLACE};
    const largest = new Set([...drawable].sort((a, b) => b[V] - a[V]).slice(0, MOST_DOTS));
    const shown = drawable.filter(row => largest.has(row)), left = drawable.length - shown.length;
    const id = row => row.slice(0, V).join('\n'), text = one => one.split('\n').slice(figure.series.length).join(', ');
    const numbers = [...shown.flatMap(row => row.slice(V)), figure.limit?.at ?? shown[0][V]];
    const {x, y, plot} = dotAxes(frame, figure, shown.map(id), text, numbers), limit = figure.limit && x(figure.limit.at);
    const series = bySeries(figure, shown), down = row => y(id(row)) + y.bandwidth() / 2;
    for (const row of shown) add(plot, 'line', {x2: plot.datum().width, y1: down(row), y2: down(row), stroke: 'var(--edge)'});
    for (const {style, rows} of series) for (const row of rows) {
      const [low, high] = figure.band ? [row[V + 1], row[V + 2]].map(x) : [];
      if (figure.band) add(plot, 'line', {class: 'interval', x1: low, x2: high, y1: down(row), y2: down(row), ...stroke(style)});
      point(plot, x(row[V]), down(row), style, frame, row);
    }
    if (figure.limit) rule(plot, [limit, 0], [limit, plot.datum().height], figure.limit.name, 0);
    return {legend: series, note: [counted('Smaller ones, which only the table has', left), unplaced(rows, drawable)]};
  },
};
