#include "section.hpp"

#include <fmt/format.h>
#include <cmath>

#include <kvbound/reference/core/error.hpp>
#include <kvbound/sim/options/policy.hpp>

namespace kvbound::sim {
namespace {

Json to_json(const FigureAxis& axis) {
  return {{"value", axis.value},
          {"label", axis.label},
          {"scale", axis.logarithmic ? "log" : "linear"},
          {"from_zero", axis.from_zero}};
}

// The same policy as the canonical text's.
bool is_same(const std::string& text, const std::string& canonical_policy) {
  try {
    return canonical(parse_policy(text)) == canonical_policy;
  } catch (const InvalidPolicy&) {
    return false;
  }
}

// Four digits, but all of a count; figures that were read have no format.
std::string shown(const Column& column, int64_t row) {
  const bool is_count = !column.is_text() && column.numbers()[static_cast<size_t>(row)] ==
                                                 std::floor(column.numbers()[static_cast<size_t>(row)]);
  return is_count ? column.text(row) : column.cell(row);
}

}  // namespace

std::string Section::add(const PageCube& cube) {
  cubes.push_back(cube.json(fmt::format("{}-data-{}", id, cubes.size() + 1)));
  return cubes.back()["id"];
}

std::string Section::add(const std::string& cube, const Drawing& drawing) {
  Json document{{"id", fmt::format("{}-figure-{}", id, figures.size() + 1)},
                {"cube", cube},
                {"kind", drawing.kind},
                {"title", drawing.title},
                {"how", drawing.how},
                {"x", to_json(drawing.x)},
                {"y", to_json(drawing.y)},
                {"series", drawing.series.empty() ? Json::array() : Json::array({drawing.series})},
                {"pick", Json::array()},
                {"statistic", drawing.statistic}};
  for (const Pick& pick : drawing.pick)
    document["pick"].push_back({{"key", pick.key}, {"preferred", pick.preferred}});
  document.update(drawing.more);
  figures.push_back(std::move(document));
  return figures.back()["id"];
}

Json Section::json() const {
  return {{"id", id},       {"title", title}, {"headline", headline}, {"lines", lines},
          {"table", table}, {"cubes", cubes}, {"figures", figures}};
}

void require_room(const JsonField& field, std::initializer_list<int64_t> sizes) {
  int64_t product = 1;
  for (const int64_t size : sizes) {
    if (size > 0 && product > kMostNumbers / size)
      field.refuse(fmt::format("stands for more than the {} numbers that a page has room for", kMostNumbers));
    product *= size;
  }
}

std::string brief(const std::string& canonical_policy) {
  std::string text = canonical_policy;
  for (size_t end = text.size(), begin = text.rfind(':'); begin != std::string::npos && begin > 0;
       begin = text.rfind(':', begin - 1)) {
    end = text.find_first_of(":+", begin + 1);
    const std::string shorter = std::string(text).erase(begin, end == std::string::npos ? end : end - begin);
    if (is_same(shorter, canonical_policy)) text = shorter;
  }
  return text;
}

std::string policy_name(const std::string& canonical_policy, const std::string& label) {
  return canonical_policy.starts_with("given:") ? label : brief(canonical_policy);
}

std::string model_name(const JsonField& model) {
  const std::string text = model.any_text();
  return text.empty() ? "a model without a name" : text.substr(0, text.find(": "));
}

ReadPart only_part(const Document& document) {
  const JsonField parts = document.root().member("parts");
  if (parts.items().size() > 1) parts.refuse("expected one part");
  return read_part(parts.items().front());
}

Json figures_table(const Cube& cube, const std::string& summary) {
  Json headings = Json::array(), rows = Json::array();
  for (const SharedAxis& axis : cube.axes) {
    for (const Column& key : axis->keys) headings.push_back(key.figure.name);
  }
  for (const Column& column : cube.columns) headings.push_back(column.figure.name);
  for (int64_t row = 0; row < cube.rows(); ++row) {
    Json cells = Json::array();
    for (size_t a = 0; a < cube.axes.size(); ++a) {
      for (const Column& key : cube.axes[a]->keys)
        cells.push_back({{"text", shown(key, cube.place(row, a))}});
    }
    for (const Column& column : cube.columns) cells.push_back({{"text", shown(column, row)}});
    rows.push_back(std::move(cells));
  }
  return {{"summary", summary}, {"headings", headings}, {"rows", rows}};
}

const std::vector<std::string>& column_texts(const ReadPart& part, const Cube& cube, const char* column) {
  const Column* const found = cube.find(column);
  if (!found || !found->is_text())
    part.cubes_field.member(cube.name).refuse(fmt::format("has no texts {}", column));
  return found->texts();
}

std::vector<Fact> origin_facts(const JsonField& origin) {
  std::vector<Fact> facts{{"file", origin.member("path").text()},
                          {"SHA-256 of the file", origin.member("sha256").text()}};
  for (const char* name : {"model", "name", "source"}) {
    if (const auto text = origin.optional_member(name)) facts.emplace_back(name, text->any_text());
  }
  return facts;
}

}  // namespace kvbound::sim
