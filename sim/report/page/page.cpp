#include "page.hpp"

#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <openssl/evp.h>

#include <kvbound/sim/report/environment.hpp>
#include <kvbound/traces/sha256.hpp>

#include "agreement_section.hpp"
#include "bench_section.hpp"
#include "evaluate_section.hpp"
#include "page_files.hpp"
#include "predict_section.hpp"
#include "prove_section.hpp"
#include "recall_section.hpp"
#include "replay_section.hpp"
#include "short_paths.hpp"

namespace kvbound::sim {
namespace {

Contribution contribution(const Document& document, const std::string& id) {
  using Make = Contribution (*)(const Document&, const std::string&);
  static const std::map<std::string, Make> kMakers{
      {"replay", replay_contribution},   {"recall", recall_contribution},
      {"predict", predict_contribution}, {"evaluate", evaluate_contribution},
      {"bench", bench_contribution},     {"bench-model", bench_model_contribution},
      {"diff", diff_contribution},       {"check", check_contribution},
      {"prove", prove_contribution}};
  return kMakers.at(document.kind)(document, id);
}

// What computed a document.
std::vector<Fact> machine_facts(const JsonField& root) {
  std::vector<Fact> facts;
  for (const char* name : {"version", "revision", "compiler", "device"}) {
    if (const auto field = root.optional_member(name)) facts.emplace_back(name, field->any_text());
  }
  if (const auto threads = root.optional_member("threads"))
    facts.emplace_back("threads", std::to_string(threads->integer()));
  if (const auto blas = root.optional_member("blas"))
    facts.emplace_back(
        "BLAS", fmt::format("{}, {}", blas->member("name").any_text(), blas->member("core").any_text()));
  return facts;
}

Json provenance_of(const Document& document, const std::vector<Fact>& facts) {
  Json list = Json::array({{"document", document.kind}, {"SHA-256", document.sha256}});
  for (const auto& [name, value] : machine_facts(document.root().member("provenance")))
    list.push_back({name, value});
  for (const auto& [name, value] : facts) list.push_back({name, value});
  return {{"path", document.path}, {"facts", list}};
}

Json own_provenance(const std::string& command) {
  return {
      {"path", "This page"},
      {"facts", Json::array({{"kvbound", fmt::format("{} ({})", version(), revision())},
                             {"made by", command},
                             {"drawn by", fmt::format("D3 {} ({})", kD3Version, kD3License)},
                             {"numbers", "of single layers, heads and tensors in six significant digits"}})}};
}

// Subjects of the first table: traces, each with what the model of that name said; models without a trace.
Json answer(const std::vector<Subject>& subjects) {
  Json all = Json::array();
  std::map<std::string, const Subject*> outcomes;
  for (const Subject& subject : subjects) {
    if (subject.is_outcome) outcomes.try_emplace(subject.model, &subject);
  }
  std::map<std::string, bool> joined;
  for (const Subject& subject : subjects) {
    if (subject.is_outcome) continue;
    const auto outcome = outcomes.find(subject.model);
    joined[subject.model] = true;
    all.push_back({{"subject", outcome == outcomes.end()
                                   ? subject.name
                                   : fmt::format("{}; KL from {}", subject.name, outcome->second->name)},
                   {"heads", subject.cube},
                   {"layers", subject.layers.empty() ? Json() : Json(subject.layers)},
                   {"picture", subject.picture},
                   {"outcomes", outcome == outcomes.end() ? Json() : Json(outcome->second->cube)}});
  }
  for (const Subject& subject : subjects) {
    if (subject.is_outcome && (!joined[subject.model] || outcomes.at(subject.model) != &subject))
      all.push_back({{"subject", fmt::format("{}; KL from {}", subject.model, subject.name)},
                     {"heads", nullptr},
                     {"layers", nullptr},
                     {"picture", nullptr},
                     {"outcomes", subject.cube}});
  }
  return all;
}

// JSON that cannot end the element that it stands in.
std::string embedded(const Json& document) {
  std::string text;
  for (const char c : document.dump(-1, ' ', false, Json::error_handler_t::replace)) {
    if (c == '<')
      text += "\\u003c";
    else
      text += c;
  }
  return text;
}

// A source of a Content-Security-Policy that allows one text.
std::string hash_source(std::string_view text) {
  traces::Sha256 hash;
  hash.update(text);
  const traces::Sha256::Digest digest = hash.digest();
  unsigned char base64[2 * digest.size()];
  const int length = EVP_EncodeBlock(base64, digest.data(), static_cast<int>(digest.size()));
  return fmt::format("'sha256-{}'", std::string_view(reinterpret_cast<const char*>(base64), length));
}

// The template with a text in place of each @name@; texts are not searched again.
std::string filled(std::string_view page, const std::map<std::string_view, std::string_view>& texts) {
  std::string result;
  for (size_t at = 0; at < page.size();) {
    const size_t begin = page.find('@', at), end = page.find('@', begin + 1);
    if (begin == std::string_view::npos || end == std::string_view::npos)
      return result.append(page.substr(at));
    const auto text = texts.find(page.substr(begin + 1, end - begin - 1));
    result.append(page.substr(at, begin - at));
    if (text == texts.end()) {
      result += '@';
      at = begin + 1;
    } else {
      result.append(text->second);
      at = end + 1;
    }
  }
  return result;
}

// A name of the page, and what is added to it where another is the same.
using Name = std::pair<std::string*, std::string>;

void tell_apart(const std::vector<Name>& names) {
  std::map<std::string, int> uses;
  for (const auto& [name, addition] : names) ++uses[*name];
  for (const auto& [name, addition] : names) {
    if (uses[*name] > 1) *name += addition;
  }
}

// The second of the same names gets a 2, and so on.
void number_the_same(const std::vector<Name>& names) {
  std::map<std::string, int> uses;
  for (const auto& [name, addition] : names) {
    const int use = ++uses[*name];
    if (use > 1) *name += fmt::format(", {}", use);
  }
}

std::vector<std::string> document_names(std::span<const std::unique_ptr<const Document>> documents) {
  std::vector<std::string> paths;
  for (const auto& document : documents) paths.push_back(document->path);
  return short_paths(paths);
}

// Gives the sections' sources their short names, and says them with the subjects' names.
void shorten_sources(std::vector<Contribution>& parts) {
  std::vector<std::string*> sources;
  for (Contribution& part : parts) {
    for (Section& section : part.sections) sources.push_back(&section.source);
    for (Subject& subject : part.subjects) sources.push_back(&subject.source);
  }
  std::vector<std::string> paths;
  for (const std::string* source : sources) paths.push_back(*source);
  const std::vector<std::string> names = short_paths(paths);
  for (size_t i = 0; i < sources.size(); ++i) *sources[i] = names[i];
  for (Contribution& part : parts) {
    for (Subject& subject : part.subjects) {
      if (!subject.is_outcome) subject.name += fmt::format(" ({})", subject.source);
    }
  }
}

// Of each document, with sections and subjects that have names of their own.
std::vector<Contribution> contributions(std::span<const std::unique_ptr<const Document>> documents) {
  std::vector<Contribution> parts;
  for (const auto& document : documents)
    parts.push_back(contribution(*document, fmt::format("part-{}", parts.size() + 1)));
  shorten_sources(parts);
  const std::vector<std::string> files = document_names(documents);
  std::vector<Name> sections, subjects;
  for (size_t i = 0; i < parts.size(); ++i) {
    const std::string file = fmt::format(" ({})", files[i]);
    std::vector<Name> in_file;
    for (Section& section : parts[i].sections) {
      in_file.emplace_back(&section.title, fmt::format(", {}", section.source));
      sections.emplace_back(&section.title, file);
    }
    for (Subject& subject : parts[i].subjects) {
      if (subject.name.starts_with(documents[i]->path))
        subject.name.replace(0, documents[i]->path.size(), files[i]);
      subjects.emplace_back(&subject.name, file);
    }
    tell_apart(in_file);
  }
  tell_apart(sections);
  tell_apart(subjects);
  number_the_same(sections);
  number_the_same(subjects);
  return parts;
}

}  // namespace

std::string html_page(std::span<const std::unique_ptr<const Document>> documents,
                      const std::string& command) {
  Json data{{"sections", Json::array()}, {"answer", nullptr}, {"provenance", Json::array()}};
  std::vector<Subject> subjects;
  const std::vector<Contribution> parts = contributions(documents);
  for (size_t i = 0; i < parts.size(); ++i) {
    for (const Section& section : parts[i].sections) data["sections"].push_back(section.json());
    subjects.insert(subjects.end(), parts[i].subjects.begin(), parts[i].subjects.end());
    data["provenance"].push_back(provenance_of(*documents[i], parts[i].facts));
  }
  data["answer"] = answer(subjects);
  data["provenance"].push_back(own_provenance(command));
  const std::string policy = fmt::format(
      "default-src 'none'; script-src {}; style-src {}; img-src data: blob:; base-uri 'none'; form-action 'none'",
      hash_source(kPageScript), hash_source(kPageStyle));
  return filled(
      kPageTemplate,
      {{"policy", policy}, {"style", kPageStyle}, {"data", embedded(data)}, {"script", kPageScript}});
}

}  // namespace kvbound::sim
