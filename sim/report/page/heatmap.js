// A map of cells: a statistic of a column by two keys. {x, y, value, statistic, scale, domain}: the scale is
// 'diverging', centred on 0, or 'sequential', over `domain` or from the least number to the largest.

kinds.heatmap = {
  numbers(figure, cube, picked) {
    const numbers = summarised(figure, cube, picked, [figure.y.value, figure.x.value], figure.value.value);
    return {headings: [figure.y.label, figure.x.label, figure.value.label], ...numbers};
  },

  draw(frame, figure, rows) {
    const inOrder = names => names.every(Number.isFinite) ? names.sort((a, b) => a - b) : names;
    const [lines, columns] = [0, 1].map(part => inOrder([...new Set(rows.map(row => row[part]))]));
    const {x, y, plot} = bands(frame, figure, columns, lines);
    const {colour, beyond, note} = colours(figure, rows.map(row => row[2]));
    add(plot, 'rect', {width: plot.datum().width, height: plot.datum().height, fill: 'var(--edge)'});  // where there is no number
    for (const row of rows) {
      const [line, column, value] = row, size = {x: x(column), y: y(line), width: x.bandwidth(), height: y.bandwidth()};
      titled(add(plot, 'rect', {...size, fill: colour(value)}), frame, row);
    }
    return {scale: {colour, beyond, meaning: figure.value.label}, note: [note]};
  },
};

// The colour scale of cells: purple below 0 and orange above in equal measure, or dark to bright. Without a
// domain it ends at the 95th percentile of the sizes, so that a few cells do not take the colours from all
// others; `beyond` says at which ends, and the note of how many.
function colours({scale, domain}, values) {
  const isDiverging = scale !== 'sequential', sizes = isDiverging ? values.map(Math.abs) : values;
  const [least, most] = domain ?? [isDiverging ? 0 : d3.min(values), highest(sizes)];
  const range = isDiverging ? [-(most || 1), most || 1]
                : least < most ? [least, most] : [Math.min(0, least), Math.max(0, least) || 1];
  const colour = d3.scaleSequential(isDiverging ? d3.interpolatePuOr : d3.interpolateCividis).domain(range).clamp(true);
  const count = domain ? 0 : sizes.filter(size => size > range[1]).length;
  const note = `Colours end at ${shortNumber(range[1])}, the 95th percentile${isDiverging ? ' of the sizes' : ''}: cells beyond`;
  return {colour, beyond: {low: isDiverging && count > 0, high: count > 0}, note: counted(note, count)};
}

// The 95th percentile; the largest number where that is not much larger, or the percentile is the least
// number.
function highest(numbers) {
  const percentile = d3.quantile([...numbers].sort(d3.ascending), 0.95), [least, most] = d3.extent(numbers);
  return percentile > least && most > 1.01 * percentile ? percentile : most;
}
