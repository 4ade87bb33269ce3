// Cubes of lists: one place for each subject, such as a judged tensor, whose keys and
// figures are rows of a table.
#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "cube.hpp"

namespace kvbound::sim {

/// A figure of a subject and what computes it: a number (NaN: none) or a text (empty: none).
template <class Subject>
struct FigureOf {
  using Number = std::function<double(const Subject&)>;
  using Text = std::function<std::string(const Subject&)>;

  FigureOf(Figure one, Number of) : figure(std::move(one)), number(std::move(of)) {}
  FigureOf(Figure one, Text of) : figure(std::move(one)), text(std::move(of)) {}

  Figure figure;
  Number number;  ///< or none
  Text text;      ///< or none
};

template <class Subject>
std::vector<Column> columns_of(const std::vector<FigureOf<Subject>>& figures,
                               const std::vector<Subject>& subjects) {
  std::vector<Column> columns;
  for (const FigureOf<Subject>& one : figures) {
    Column& column = columns.emplace_back(one.number ? number_column(one.figure) : text_column(one.figure));
    for (const Subject& subject : subjects) {
      if (one.number) {
        column.numbers().push_back(one.number(subject));
      } else {
        column.texts().push_back(one.text(subject));
      }
    }
  }
  return columns;
}

/// place  the axis' name: what a subject is
template <class Subject>
Cube list_cube(std::string name, std::string place, const std::vector<FigureOf<Subject>>& keys,
               const std::vector<FigureOf<Subject>>& figures, const std::vector<Subject>& subjects) {
  std::vector<Column> of_keys = columns_of(keys, subjects);
  for (Column& key : of_keys) {
    if (key.figure.shown == Shown::by_default) key.figure.shown = Shown::always;
  }
  return {std::move(name), {axis(std::move(place), std::move(of_keys))}, columns_of(figures, subjects)};
}

}  // namespace kvbound::sim
