// What the page says first: of each trace and budget, which policy moves the output least, by how much, how
// sure that is, and in which layers it does not.

const twoDigits = share => String(Number((100 * Math.abs(share)).toPrecision(2)));
const listOf = names => names.length < 2 ? names.join('') : `${names.slice(0, -1).join(', ')} and ${names[names.length - 1]}`;
// Layers as a list such as 0-3,7.
function rangesOf(numbers) {
  const starts = numbers.filter((number, i) => i === 0 || number !== numbers[i - 1] + 1);
  const ends = numbers.filter((number, i) => number + 1 !== numbers[i + 1]);
  return starts.map((start, i) => start === ends[i] ? start : `${start}-${ends[i]}`).join(', ');
}

// "At 5 % keepkv moves the output 23 % less than snapkv, 19 to 27 % over 32 heads of one prompt."
function leadOf(budget, {best, partner}) {
  const at = `At ${budget.replace('%', ' %')}`, name = nameOf(best);
  if (!partner) return `${at} ${name} moves the output by ${twoDigits(best.relative)} %.`;
  const other = nameOf(partner.line), {mean, low, high, count, has_interval} = partner.estimate;
  const change = share => `${twoDigits(1 - share)} % ${share > 1 ? 'more' : 'less'}`, heads = `${count} heads of one prompt`;
  if (mean === 1) return `${at} ${name} and ${other} move the output equally far.`;
  const moves = `${at} ${name} moves the output ${change(mean)} than ${other}`;
  if (!has_interval) return `${moves}; of ${count} heads there is no interval.`;
  if (high < 1) return `${moves}, ${twoDigits(1 - high)} to ${twoDigits(1 - low)} % over ${heads}.`;
  return `${at} no difference between ${name}, the lowest, and ${other} is seen: ` +
         `${change(mean)}, from ${change(high)} to ${change(low)} over ${heads}.`;
}

// How the best stands to the runs that the first sentence does not name.
function restOf({best, partner, others}) {
  const further = others.filter(other => other !== partner), unseen = further.filter(({estimate}) => !isLower(estimate));
  if (further.length === 0) return '';
  if (unseen.length === 0) return isLower(partner.estimate) ? 'It is lower than every other policy.' : '';
  const either = isLower(partner.estimate) ? '' : ' either';
  return `From ${listOf(unseen.map(({line}) => nameOf(line)))} no difference is seen${either}.`;
}

// Policies that are seen to be lower than the base where the best one is not.
function lowerOf({best, partner, others}) {
  if (!partner || isLower(partner.estimate) || !isBase(partner.line)) return '';
  const lower = others.filter(({line}) => isLower(line.change));
  if (lower.length === 0) return '';
  const changes = lower.map(({line}) => `${nameOf(line)} (${changed(line.change)})`);
  return `Seen to be lower than ${nameOf(partner.line)}: ${listOf(changes)}.`;
}

// The layers in which the best one's mean is not the lower one.
function layersOf({best, partner}) {
  if (!partner) return '';
  const groups = pairsOf(best.cube, best.place, partner.line.place, ['layer'], 'relative')
                     .filter(({values}) => values.length > 0);
  const higher = groups.filter(({values}) => d3.mean(values, pair => pair[0]) > d3.mean(values, pair => pair[1]));
  const equal = groups.filter(({values}) => d3.mean(values, pair => pair[0]) === d3.mean(values, pair => pair[1]));
  if (groups.length < 2 || equal.length === groups.length) return '';
  if (higher.length === 0 && equal.length > 0) return `In none of ${groups.length} layers its mean is higher than that of ${nameOf(partner.line)}.`;
  if (higher.length === 0) return `In each of ${groups.length} layers its mean is lower than that of ${nameOf(partner.line)}.`;
  const where = rangesOf(higher.map(({names}) => names[0]));
  return `In ${higher.length} of ${groups.length} layers (${where}) the mean of ${nameOf(best)} is higher.`;
}

// The sentences of a subject at each budget: {lead, more}.
function sentencesOf(lines) {
  return budgetsOf(lines).map(({budget, lines: own}) => ({budget, stands: standing(own)})).filter(({stands}) => stands)
      .map(({budget, stands}) => ({
        lead: leadOf(budget, stands),
        more: [restOf, lowerOf, layersOf].map(say => say(stands)).filter(Boolean).join(' ')}));
}

function drawSentences(parent, lines) {
  const list = parent.append('ul').attr('class', 'sentences').selectAll('li').data(sentencesOf(lines)).enter().append('li');
  list.append('strong').text(({lead}) => lead.replace(/ %/g, '\u00a0%'));
  list.append('span').text(({more}) => ` ${more}`);
}
