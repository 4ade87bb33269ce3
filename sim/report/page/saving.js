// The menu that saves a figure's numbers or its drawing as a file.

const savable = new Map();  // by a figure's id: calls one of the savers with it

// A click on a link to the blob saves it.
const download = (name, blob) =>
    Object.assign(document.createElement('a'), {href: URL.createObjectURL(blob), download: name}).click();

// The drawing as a file of its own: with its title and what is shown, on paper, with colours instead of the
// page's variables.
function svgText({title}, {shown}, node) {
  const style = getComputedStyle(document.documentElement), copy = d3.select(node.cloneNode(true)), room = 44;
  const [width, height] = [node.clientWidth, node.clientHeight + room];
  copy.attr('xmlns', 'http://www.w3.org/2000/svg').attr('height', height).attr('viewBox', `0 ${-room} ${width} ${height}`);
  label(copy, title, 8, 18 - room, 'start', 'title');
  label(copy, shown, 8, 34 - room, 'start', 'title');
  copy.insert('rect', '*').attr('y', -room).attr('width', width).attr('height', height).attr('fill', 'var(--paper)');
  const text = new XMLSerializer().serializeToString(copy.node());
  return {width, height, text: text.replace(/var\((--[\w-]+)\)/g, (_, name) => style.getPropertyValue(name).trim())};
}

const savers = {
  CSV: (figure, {headings, rows, picked}) => {  // what is picked stands in every line
    const lines = [[...Object.keys(picked), ...headings], ...rows.map(row => [...Object.values(picked), ...row])];
    download(`${figure.id}.csv`, new Blob([d3.csvFormatRows(lines)], {type: 'text/csv'}));
  },
  SVG: (figure, numbers, node) =>
      node && download(`${figure.id}.svg`, new Blob([svgText(figure, numbers, node).text], {type: 'image/svg+xml'})),
  PNG: (figure, numbers, node) => {
    if (!node) return;
    const {text, width, height} = svgText(figure, numbers, node);
    const image = new Image(), canvas = Object.assign(document.createElement('canvas'), {width: 2 * width, height: 2 * height});
    image.onload = () => {
      canvas.getContext('2d').drawImage(image, 0, 0, canvas.width, canvas.height);
      canvas.toBlob(blob => download(`${figure.id}.png`, blob));
    };
    image.src = 'data:image/svg+xml;charset=utf-8,' + encodeURIComponent(text);
  },
};

function drawSaving() {
  const form = d3.select('#saving form'), figures = sections.flatMap(section => section.figures), choice = form.select('select');
  d3.select('#saving').attr('hidden', figures.length > 0 ? null : '')
      .on('toggle', () => choice.property('value', inSight(figures)));
  for (const {title, figures: own} of sections.filter(section => section.figures.length > 0))
    choice.append('optgroup').attr('label', title).selectAll('option').data(own).enter().append('option')
        .attr('value', ({id}) => id).text(figure => figure.title);
  form.selectAll('button').data(Object.entries(savers)).enter().append('button').attr('type', 'button').text(([name]) => name)
      .on('click', ([, save]) => savable.get(choice.property('value'))(save));
}

// The figure that is nearest to the middle of the window.
function inSight(figures) {
  const away = ({id}) => {
    const {top, bottom} = document.getElementById(id).getBoundingClientRect();
    return Math.abs(top + bottom - innerHeight);
  };
  return figures[d3.scan(figures, (a, b) => away(a) - away(b))]?.id ?? '';
}
