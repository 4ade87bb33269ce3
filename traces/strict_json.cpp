#include "strict_json.hpp"

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <utility>

#include <nlohmann/json.hpp>

#include <kvbound/reference/core/error.hpp>

#include "messages.hpp"

namespace kvbound::traces {

namespace {

constexpr size_t kBlockBytes = 16;  // that an allocation takes beside its contents
constexpr size_t kMemberBytes =     // a node of a map
    kBlockBytes + 4 * sizeof(void*) + sizeof(Json::Object::value_type);

/// Iterates over characters and records how far it got.
struct CountingIterator {
  using iterator_category = std::input_iterator_tag;
  using value_type = char;
  using difference_type = std::ptrdiff_t;
  using pointer = const char*;
  using reference = const char&;

  pointer position;
  pointer* taken;

  reference operator*() const { return *position; }
  CountingIterator& operator++() {
    *taken = ++position;
    return *this;
  }
  friend bool operator==(const CountingIterator& a, const CountingIterator& b) {
    return a.position == b.position;
  }
};

/// A number that JSON does not have, at its place in a text.
struct PythonNumber {
  std::string_view literal;
  size_t end = 0;  ///< position behind it
};

/// Finds the numbers of Python's that JSON does not have, and replaces them in `text` by
/// others of the same length.
std::vector<PythonNumber> replace_python_numbers(std::string& text) {
  constexpr std::string_view kLiterals[] = {"NaN", "Infinity", "-Infinity"};
  std::vector<PythonNumber> found;
  bool quoted = false;
  for (size_t i = 0; i < text.size(); ++i) {
    if (quoted && text[i] == '\\') {
      ++i;
      continue;
    }
    if (text[i] == '"') quoted = !quoted;
    if (quoted) continue;
    for (const std::string_view literal : kLiterals) {
      if (text.compare(i, literal.size(), literal) != 0) continue;
      std::string number = literal[0] == '-' ? "-0." : "0.";
      number.resize(literal.size(), '0');
      text.replace(i, literal.size(), number);
      found.push_back({literal, i + literal.size()});
      i += literal.size() - 1;
      break;
    }
  }
  return found;
}

// The bytes of a text that are not in its object itself.
size_t heap_bytes(const std::string& text) {
  return text.capacity() <= std::string().capacity() ? 0 : kBlockBytes + text.capacity();
}

class TreeBuilder final : public nlohmann::json_sax<nlohmann::json> {
 public:
  TreeBuilder(const std::string& path, int64_t offset, const std::string& field, std::string_view text,
              const JsonLimits& limits, std::vector<PythonNumber> python)
      : path_(path),
        offset_(offset),
        field_(field),
        limits_(limits),
        memory_(limits.taken ? *limits.taken : own_memory_),
        python_(std::move(python)),
        begin_(text.data()),
        taken_(text.data()) {}

  CountingIterator iterator(const char* position) { return {position, &taken_}; }
  Json take_root() { return std::move(root_); }

  bool null() override { return other("null"); }
  bool boolean(bool value) override { return other(value ? "true" : "false"); }
  bool number_integer(number_integer_t value) override {
    return other(value == 0 ? "-0" : std::to_string(value));  // called for literals with a minus sign only
  }
  bool number_float(number_float_t, const string_t& literal) override {
    if (next_python_ == python_.size() || taken_ < begin_ + python_[next_python_].end) return other(literal);
    return other(std::string(python_[next_python_++].literal));
  }
  bool number_unsigned(number_unsigned_t value) override {
    place({value});
    return true;
  }
  bool string(string_t& value) override {
    spend(heap_bytes(value));
    place({std::move(value)});
    return true;
  }
  bool binary(binary_t&) override { return false; }

  bool start_object(size_t) override { return open({Json::Object{}}); }
  bool start_array(size_t) override { return open({Json::Array{}}); }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }

  bool key(string_t& name) override {
    if (open_.back()->member(name)) refuse(last_taken(), "the key " + in_quotes(name) + " occurs twice");
    spend(kMemberBytes + heap_bytes(name));
    key_ = std::move(name);
    return true;
  }

  bool parse_error(size_t position, const std::string&, const nlohmann::json::exception& error) override {
    std::string_view reason = error.what();  // "[json.exception...] parse error at line ...: ... - REASON"
    if (const size_t end = reason.find("] "); end != std::string_view::npos) reason.remove_prefix(end + 2);
    if (const size_t end = reason.find(" - "); end != std::string_view::npos) reason.remove_prefix(end + 3);
    refuse(offset_ + static_cast<int64_t>(position) - 1,
           "is not valid JSON: " + printable(reason, kMostQuoted));
  }

 private:
  [[noreturn]] void refuse(int64_t offset, const std::string& problem) const {
    throw TraceError(path_, offset, field_, problem);
  }
  int64_t last_taken() const { return offset_ + (taken_ - begin_) - 1; }

  // Counts bytes that the values take.
  void spend(size_t bytes) {
    memory_ += bytes;
    if (memory_ <= limits_.bytes) return;
    refuse(last_taken(),
           "its values take more than " + std::to_string(limits_.bytes >> 20) + " MiB of memory up to here");
  }

  bool other(std::string text) {
    spend(heap_bytes(text));
    place({Json::Other{std::move(text)}});
    return true;
  }

  Json& place(Json value) {
    value.offset = last_taken();
    if (open_.empty()) return root_ = std::move(value);
    Json& parent = *open_.back();
    if (auto* object = std::get_if<Json::Object>(&parent.value)) {
      return (*object)[std::move(key_)] = std::move(value);
    }
    auto& array = std::get<Json::Array>(parent.value);
    if (array.size() == limits_.items) {
      refuse(parent.offset, "an array has more than " + std::to_string(limits_.items) + " items");
    }
    if (array.size() == array.capacity()) {
      const size_t items = std::max<size_t>(1, 2 * array.size());
      spend((items - array.size()) * sizeof(Json) + (array.empty() ? kBlockBytes : 0));
      array.reserve(items);
    }
    return array.emplace_back(std::move(value));
  }

  bool open(Json value) {
    if (open_.size() == limits_.levels) {
      refuse(last_taken(), "is nested deeper than " + std::to_string(limits_.levels) + " levels");
    }
    open_.push_back(&place(std::move(value)));
    return true;
  }

  bool close() {
    open_.pop_back();
    return true;
  }

  const std::string& path_;
  int64_t offset_;
  const std::string& field_;
  const JsonLimits& limits_;
  size_t own_memory_ = 0;
  size_t& memory_;                          // that values take
  const std::vector<PythonNumber> python_;  // in the order of the text
  size_t next_python_ = 0;
  const char* begin_;
  const char* taken_;
  Json root_;
  std::vector<Json*> open_;
  std::string key_;
};

}  // namespace

const Json* Json::member(std::string_view name) const {
  const Object* members = object();
  if (!members) return nullptr;
  const auto found = members->find(name);
  return found == members->end() ? nullptr : &found->second;
}

std::string description(const Json& json) {
  if (json.object()) return "an object";
  if (json.array()) return "an array";
  if (json.text()) return in_quotes(*json.text());
  if (json.number()) return std::to_string(*json.number());
  return printable(std::get<Json::Other>(json.value).text);
}

Json parse_strict_json(const std::string& path, int64_t offset, const std::string& field,
                       std::string_view text, const JsonLimits& limits) {
  if (text.starts_with("\xef\xbb\xbf")) {
    throw TraceError(path, offset, field, "begins with a byte order mark; expected {");
  }
  if (const size_t nul = text.find('\0'); nul != std::string_view::npos) {  // nlohmann would stop there
    throw TraceError(path, offset + static_cast<int64_t>(nul), field, "is not valid JSON: a zero byte");
  }
  std::string replaced(limits.python ? text : "");
  std::vector<PythonNumber> python = replace_python_numbers(replaced);
  if (!python.empty()) text = replaced;
  TreeBuilder builder(path, offset, field, text, limits, std::move(python));
  nlohmann::json::sax_parse(builder.iterator(text.data()), builder.iterator(text.data() + text.size()),
                            &builder);
  Json root = builder.take_root();
  if (!root.object())
    throw TraceError(path, offset, field, "is " + description(root) + "; expected an object");
  return root;
}

}  // namespace kvbound::traces
