#include "estimate_columns.hpp"

#include <string>
#include <utility>

namespace kvbound::sim {
namespace {

Column beside(const Figure& of, const std::string& name, const std::string& heading,
              const std::string& meaning, Shown shown) {
  return number_column({.name = of.name + name,
                        .heading = of.heading + heading,
                        .meaning = meaning + of.heading,
                        .format = of.format,
                        .shown = shown});
}

}  // namespace

EstimateColumns::EstimateColumns(const Figure& mean, Shown error, Shown interval)
    : columns_{number_column(mean),
               beside(mean, "_error", " s.e.", "the standard error, over tasks, of ", error)} {
  for (Column& end : interval_columns(mean, interval)) columns_.push_back(std::move(end));
}

void EstimateColumns::add(const std::optional<Estimate>& estimate) {
  columns_[0].numbers().push_back(estimate ? estimate->mean : kUndefined);
  columns_[1].numbers().push_back(estimate ? estimate->standard_error.value_or(kUndefined) : kUndefined);
  add_interval(columns_[2], columns_[3], estimate ? estimate->interval : std::nullopt);
}

void EstimateColumns::append_to(std::vector<Column>& columns) && {
  for (Column& column : columns_) columns.push_back(std::move(column));
}

std::vector<Column> interval_columns(const Figure& figure, Shown shown) {
  return {beside(figure, "_low", " from", "the lower end of the bootstrap's 95 % interval, over tasks, of ",
                 shown),
          beside(figure, "_high", " to", "the upper end of the bootstrap's 95 % interval, over tasks, of ",
                 shown)};
}

void add_interval(Column& low, Column& high, const std::optional<Interval>& interval) {
  low.numbers().push_back(interval ? interval->low : kUndefined);
  high.numbers().push_back(interval ? interval->high : kUndefined);
}

}  // namespace kvbound::sim
