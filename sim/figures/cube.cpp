#include "cube.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

namespace kvbound::sim {

int64_t Column::size() const {
  return std::visit([](const auto& all) { return static_cast<int64_t>(all.size()); }, values);
}

bool Column::says_something() const {
  if (is_text()) return std::ranges::any_of(texts(), [](const std::string& text) { return !text.empty(); });
  return std::ranges::any_of(numbers(), [](double number) { return !std::isnan(number); });
}

std::string Column::text(int64_t row) const {
  const auto at = static_cast<size_t>(row);
  return is_text() ? texts()[at] : number_text(figure, numbers()[at]);
}

std::string Column::cell(int64_t row) const {
  const auto at = static_cast<size_t>(row);
  if (is_text()) return texts()[at].empty() ? "-" : texts()[at];
  return cell_text(figure, numbers()[at]);
}

Column number_column(Figure figure, std::vector<double> numbers) {
  return {std::move(figure), std::move(numbers)};
}

Column text_column(Figure figure, std::vector<std::string> texts) {
  figure.format = Format::text;
  return {std::move(figure), std::move(texts)};
}

SharedAxis axis(std::string name, std::vector<Column> keys) {
  return std::make_shared<const Axis>(Axis{std::move(name), std::move(keys)});
}

SharedAxis counted_axis(std::string name, Figure key, int64_t count) {
  std::vector<double> places(static_cast<size_t>(count));
  std::iota(places.begin(), places.end(), 0.0);
  key.format = Format::count;
  key.shown = Shown::always;
  return axis(std::move(name), {number_column(std::move(key), std::move(places))});
}

int64_t Cube::rows() const {
  int64_t product = 1;
  for (const SharedAxis& axis : axes) product *= axis->size();
  return product;
}

int64_t Cube::place(int64_t row, size_t a) const {
  for (size_t faster = axes.size(); --faster > a;) row /= axes[faster]->size();
  return row % axes[a]->size();
}

const Column* Cube::find(std::string_view column) const {
  const auto found =
      std::ranges::find_if(columns, [&](const Column& one) { return one.figure.name == column; });
  return found == columns.end() ? nullptr : &*found;
}

bool Cube::says_something() const { return std::ranges::any_of(columns, &Column::says_something); }

const Cube* Part::find(std::string_view cube) const {
  const auto found = std::ranges::find_if(cubes, [&](const Cube& one) { return one.name == cube; });
  return found == cubes.end() ? nullptr : &*found;
}

}  // namespace kvbound::sim
