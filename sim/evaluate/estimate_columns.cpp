#include "estimate_columns.hpp"

#include <string>
#include <utility>

namespace kvbound::sim {
namespace {

Column beside(const Figure& of, const std::string& name, const std::string& heading,
              const std::string& meaning, Shown shown) {
  return number_column(
      number_figure(of.name + name, of.heading + heading, meaning + of.heading, of.format, shown));
}

}  // namespace

std::vector<Column> estimate_columns(const Figure& mean, Shown error, Shown interval,
                                     const std::vector<std::optional<Estimate>>& estimates) {
  std::vector<Column> columns{number_column(mean),
                              beside(mean, "_error", " s.e.", "the standard error, over tasks, of ", error)};
  std::vector<std::optional<Interval>> intervals;
  for (const std::optional<Estimate>& one : estimates) {
    columns[0].numbers().push_back(one ? one->mean : kUndefined);
    columns[1].numbers().push_back(one ? one->standard_error.value_or(kUndefined) : kUndefined);
    intervals.push_back(one ? one->interval : std::nullopt);
  }
  for (Column& end : interval_columns(mean, interval, intervals)) columns.push_back(std::move(end));
  return columns;
}

std::vector<Column> interval_columns(const Figure& figure, Shown shown,
                                     const std::vector<std::optional<Interval>>& intervals) {
  const std::string meaning = " end of the bootstrap's 95 % interval, over tasks, of ";
  std::vector<Column> ends{beside(figure, "_low", " from", "the lower" + meaning, shown),
                           beside(figure, "_high", " to", "the upper" + meaning, shown)};
  for (const std::optional<Interval>& interval : intervals) {
    ends[0].numbers().push_back(interval ? interval->low : kUndefined);
    ends[1].numbers().push_back(interval ? interval->high : kUndefined);
  }
  return ends;
}

}  // namespace kvbound::sim
