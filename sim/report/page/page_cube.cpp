#include "page_cube.hpp"

#include <algorithm>
#include <cassert>
#include <charconv>
#include <cmath>
#include <utility>

namespace kvbound::sim {
namespace {

// In a page: the square of the ratio of two such numbers is one that doubles have.
constexpr double kLargest = 1e75;

// The number in six significant digits; null if it is not finite. One that is too large to be drawn is
// kLargest, 0 if too small.
Json rounded(double number) {
  if (!std::isfinite(number)) return nullptr;
  number = std::clamp(number, -kLargest, kLargest);
  if (std::abs(number) < 1 / kLargest) return 0;
  char buffer[32];
  const auto written = std::to_chars(buffer, buffer + sizeof buffer, number, std::chars_format::general, 6);
  double value = 0;
  std::from_chars(buffer, written.ptr, value);
  const bool integer = value == std::trunc(value) && std::abs(value) < 1e15;
  return integer ? Json(static_cast<int64_t>(value)) : Json(value);
}

}  // namespace

void PageCube::add_axis(Json keys) {
  const auto size = static_cast<int64_t>(keys.begin()->size());
  assert(std::ranges::all_of(keys, [&](const Json& names) { return std::ssize(names) == size; }));
  axes_.push_back({std::move(keys), size});
}

void PageCube::add_counted_axis(const std::string& key, int64_t count) {
  Json places = Json::array();
  for (int64_t place = 0; place < count; ++place) places.push_back(place);
  add_axis({{key, std::move(places)}});
}

void PageCube::append(const std::string& column, std::span<const double> numbers) {
  std::vector<double>& all = columns_[column];
  all.insert(all.end(), numbers.begin(), numbers.end());
}

bool PageCube::says_something(const std::string& column) const {
  const auto found = columns_.find(column);
  return found != columns_.end() &&
         std::ranges::any_of(found->second, [](double number) { return std::isfinite(number); });
}

int64_t PageCube::rows() const {
  int64_t product = 1;
  for (const Axis& axis : axes_) product *= axis.size;
  return product;
}

Json PageCube::json(const std::string& id) const {
  Json document{{"id", id}, {"axes", Json::array()}, {"columns", Json::object()}};
  for (const Axis& axis : axes_) document["axes"].push_back({{"size", axis.size}, {"keys", axis.keys}});
  for (const auto& [name, numbers] : columns_) {
    assert(std::ssize(numbers) == rows());
    Json& column = document["columns"][name] = Json::array();
    for (const double number : numbers) column.push_back(rounded(number));
  }
  return document;
}

}  // namespace kvbound::sim
