// A part of the page: what one document, or one trace of it, says.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include <kvbound/sim/figures/json.hpp>
#include <kvbound/sim/figures/read_part.hpp>

#include "document.hpp"
#include "page_cube.hpp"

namespace kvbound::sim {

/// An axis of a figure, or what its colours mean.
struct FigureAxis {
  Json value;         ///< a key, a column, {column, log_ratio} or {column, beside} (data.js)
  std::string label;  ///< with its unit
  bool logarithmic = false;
  bool from_zero = false;
};

/// A key of which a figure shows one value at a time.
struct Pick {
  std::string key;
  std::string preferred = {};  ///< shown at first; the first one if it is empty
};

/// A figure as the page's script draws it (lines.js, whiskers.js, scatter.js, heatmap.js and
/// dots.js say what they need).
struct Drawing {
  std::string kind;  ///< lines, whiskers, scatter, heatmap or dots
  std::string title;
  std::string how;  ///< a sentence that says how to read it
  FigureAxis x, y = {};
  std::string series = {};  ///< the key that tells series apart; empty: there is one
  std::vector<Pick> pick = {};
  std::string statistic = "mean";
  Json more = Json::object();  ///< what else the kind needs
};

/// A section in the making.
struct Section {
  Section(std::string section_id, std::string heading)
      : id(std::move(section_id)), title(std::move(heading)) {}

  /// Adds a cube, or a figure that is drawn from one; returns its id.
  std::string add(const PageCube& cube);
  std::string add(const std::string& cube, const Drawing& drawing);
  Json json() const;

  std::string id, title;
  std::string source;              ///< what tells it from others of its document: a trace's path
  std::vector<std::string> lines;  ///< sentences below the title
  std::string headline;            ///< what the page says of it at its beginning; empty: nothing
  /// Below the lines: {headings, rows of cells as figure.js has them, what it is called while
  /// it is closed}; null: none.
  Json table = nullptr;
  Json cubes = Json::array(), figures = Json::array();
};

/// One line of the page's provenance.
using Fact = std::pair<std::string, std::string>;

/// What the page's first table joins: a trace's runs, and what a model said by the same policies.
struct Subject {
  std::string name;          ///< for people: the model; of outcomes their document and backend
  std::string model;         ///< as the document says; outcomes of the same model are joined
  std::string cube;          ///< the cube's id
  bool is_outcome = false;   ///< of `evaluate`
  std::string source = {};   ///< of a trace: its path
  std::string layers = {};   ///< likewise: the id of the cube of its layers; empty: none
  std::string picture = {};  ///< likewise: the figure's that stands above the table
};

/// What a document gives to the page.
struct Contribution {
  std::vector<Section> sections;
  std::vector<Subject> subjects;
  std::vector<Fact> facts;  ///< trace or model, seed and the like
};

/// A policy's text without the options that have their defaults: what it is called in figures.
std::string brief(const std::string& canonical_policy);

/// What a policy is called: as its file names it where its host is `given`, else briefly.
///
/// label  the document's
std::string policy_name(const std::string& canonical_policy, const std::string& label);

/// What a model is called: what a document says of it, up to the first colon with a space behind it.
std::string model_name(const JsonField& model);

/// The most layers, heads and the like that a document may speak of.
inline constexpr int64_t kMostParts = 65'536;
/// Throws TraceError, naming the field, if a cube would have more than kMostNumbers numbers.
void require_room(const JsonField& field, std::initializer_list<int64_t> sizes);

/// The part of a document that has one. Throws TraceError if it has several.
ReadPart only_part(const Document& document);

/// A table of all numbers that a cube has, closed until it is opened: also of figures
/// that the page draws nowhere.
Json figures_table(const Cube& cube, const std::string& summary);

/// A column's texts. Throws TraceError if the cube has no such texts.
const std::vector<std::string>& column_texts(const ReadPart& part, const Cube& cube, const char* column);

/// Facts of a trace or a model: path, hash, name and source.
std::vector<Fact> origin_facts(const JsonField& origin);

}  // namespace kvbound::sim
