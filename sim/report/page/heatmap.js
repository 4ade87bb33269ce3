// A map of cells: a statistic of a column by two keys. {x, y, value, statistic, scale, domain}: the scale is 'diverging', centred
// on 0, or 'sequential', over `domain` or from the least number to the largest.

kinds.heatmap = {
  numbers(figure, cube, picked) {
    const numbers = summarised(figure, cube, picked, [figure.y.value, figure.x.value], figure.value.value);
    return {headings: [figure.y.label, figure.x.label, figure.value.label], ...numbers};
  },

  draw(frame, figure, rows) {
    const inOrder = names => names.every(Number.isFinite) ? names.sort((a, b) => a - b) : names;
    const [lines, columns] = [0, 1].map(part => inOrder([...new Set(rows.map(row => row[part]))]));
    const {x, y, plot} = bands(frame, figure, columns, lines);
    const colour = colours(figure, rows.map(row => row[2]));
    add(plot, 'rect', {width: plot.datum().width, height: plot.datum().height, fill: 'var(--edge)'});  // where there is no number
    for (const row of rows) {
      const [line, column, value] = row, size = {x: x(column), y: y(line), width: x.bandwidth(), height: y.bandwidth()};
      titled(add(plot, 'rect', {...size, fill: colour(value)}), frame, row);
    }
    return {scale: {colour, meaning: figure.value.label}, note: []};
  },
};

// The colour scale of cells: purple below 0 and orange above in equal measure, or dark to bright.
function colours({scale, domain}, values) {
  const [least, most] = domain ?? d3.extent(values);
  const range = least < most ? [least, most] : [Math.min(0, least), Math.max(0, least) || 1];
  if (scale === 'sequential') return d3.scaleSequential(d3.interpolateCividis).domain(range);
  const reach = d3.max(values, Math.abs) || 1;
  return d3.scaleSequential(d3.interpolatePuOr).domain([-reach, reach]);
}
