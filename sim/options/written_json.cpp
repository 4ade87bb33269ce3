#include "written_json.hpp"

#include <string>
#include <vector>

#include <fmt/format.h>

#include <kvbound/reference/core/error.hpp>

namespace kvbound::sim {
namespace {

using Value = nlohmann::ordered_json;

constexpr size_t kBlockBytes = 16;  // that an allocation takes beside its contents
constexpr size_t kItemBytes = 2 * sizeof(Value);
constexpr size_t kMemberBytes = 2 * sizeof(Value::object_t::value_type);
constexpr size_t kContainerBytes = kBlockBytes + sizeof(Value::object_t) + kBlockBytes;
constexpr size_t kTextBytes = kBlockBytes + sizeof(std::string) + kBlockBytes;

// Throws Error where the limits are exceeded.
class Counter final : public nlohmann::json_sax<Value> {
 public:
  Counter(const char* name, const WrittenLimits& limits) : name_(name), limits_(limits) {}

  size_t taken() const { return taken_; }

  bool null() override { return spend(kItemBytes); }
  bool boolean(bool) override { return spend(kItemBytes); }
  bool number_integer(number_integer_t) override { return spend(kItemBytes); }
  bool number_unsigned(number_unsigned_t) override { return spend(kItemBytes); }
  bool number_float(number_float_t, const string_t&) override { return spend(kItemBytes); }
  bool string(string_t& value) override { return spend(kItemBytes + kTextBytes + value.size()); }
  bool binary(binary_t& value) override { return spend(kItemBytes + kTextBytes + value.size()); }

  bool start_object(size_t) override { return open(); }
  bool start_array(size_t) override { return open(); }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }

  bool key(string_t& name) override {
    if (++members_.back() > limits_.members) refuse(fmt::format("has more than {} members", limits_.members));
    return spend(kMemberBytes + kBlockBytes + name.size());
  }

  bool parse_error(size_t, const std::string&, const nlohmann::detail::exception&) override { return false; }

 private:
  [[noreturn]] void refuse(const std::string& problem) const { throw Error(name_ + " " + problem); }

  bool spend(size_t bytes) {
    taken_ += bytes;
    if (taken_ > limits_.bytes) refuse(fmt::format("takes more than {} MiB of memory", limits_.bytes >> 20));
    return true;
  }

  bool open() {
    if (members_.size() == limits_.levels)
      refuse(fmt::format("is nested deeper than {} levels", limits_.levels));
    members_.push_back(0);
    return spend(kItemBytes + kContainerBytes);
  }

  bool close() {
    members_.pop_back();
    return true;
  }

  const std::string name_;
  const WrittenLimits& limits_;
  size_t taken_ = 0;
  std::vector<size_t> members_;  // of every open object; 0 of a list
};

}  // namespace

nlohmann::ordered_json written_json(const char* name, std::string_view text, const WrittenLimits& limits,
                                    size_t* taken) {
  Counter counter(name, limits);
  if (!Value::sax_parse(text, &counter)) return Value(Value::value_t::discarded);
  if (taken) *taken = counter.taken();
  return Value::parse(text, nullptr, false);
}

nlohmann::ordered_json written_cbor(const char* name, std::string_view bytes, const WrittenLimits& limits) {
  Counter counter(name, limits);
  if (!Value::sax_parse(bytes, &counter, Value::input_format_t::cbor))
    return Value(Value::value_t::discarded);
  return Value::from_cbor(bytes, true, false);
}

void require_written_cbor(const char* name, std::string_view bytes, const WrittenLimits& limits) {
  Counter counter(name, limits);
  Value::sax_parse(bytes, &counter, Value::input_format_t::cbor);
}

}  // namespace kvbound::sim
