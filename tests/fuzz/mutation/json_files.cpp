// Safetensors files, and CBOR.
#include <algorithm>
#include <cstring>
#include <vector>

#include <nlohmann/json.hpp>

#include <kvbound/reference/core/dtype.hpp>
#include <kvbound/reference/core/error.hpp>
#include <kvbound/sim/options/written_json.hpp>

#include "mutation.hpp"

namespace kvbound::fuzz {
namespace {

using Json = nlohmann::ordered_json;

// JSON from text, unless it is ill-formed, deep or large.
std::optional<Json> json_of(std::string_view text) try {
  Json json = sim::written_json("", text);
  return json.is_discarded() ? std::nullopt : std::optional(std::move(json));
} catch (const Error&) {
  return std::nullopt;
}

// The bytes of a tensor that a header describes; none if it does not, or they are more than `most`.
std::optional<size_t> bytes_of(const Json& tensor, size_t most) {
  if (!tensor.is_object() || !tensor.contains("dtype") || !tensor.contains("shape")) return std::nullopt;
  const Json &type = tensor.at("dtype"), &shape = tensor.at("shape");
  const auto dtype = type.is_string() ? dtype_named(type.get_ref<const std::string&>()) : std::nullopt;
  if (!dtype || !shape.is_array()) return std::nullopt;
  auto bytes = static_cast<size_t>(size_of(*dtype));
  for (const Json& length : shape) {
    if (!length.is_number_unsigned() || length.get<uint64_t>() > most) return std::nullopt;
    bytes *= length.get<uint64_t>();
    if (bytes > most) return std::nullopt;
  }
  return bytes;
}

// Makes the offsets those of the shapes and types, in the order of the header, and the data as long as that:
// each tensor begins with its own bytes, as far as it had any.
bool mend_offsets(Json& header, std::string& data, size_t most) {
  std::string mended;
  for (auto& [name, tensor] : header.items()) {
    if (name == "__metadata__") continue;
    const auto bytes = bytes_of(tensor, most);
    if (!bytes || mended.size() + *bytes > most) return false;
    const Json& old = tensor.contains("data_offsets") ? tensor.at("data_offsets") : Json();
    const bool known = old.is_array() && !old.empty() && old[0].is_number_unsigned();
    const size_t begin = known ? std::min<uint64_t>(old[0].get<uint64_t>(), data.size()) : 0;
    std::string own = data.substr(begin, *bytes);
    own.resize(*bytes, '\0');
    tensor["data_offsets"] = {mended.size(), mended.size() + *bytes};
    mended += own;
  }
  data = std::move(mended);
  return true;
}

}  // namespace

std::optional<std::string> changed_safetensors(std::string_view file, size_t room, const ChangeText& change,
                                               Draw& draw) {
  uint64_t length = 0;
  if (file.size() < sizeof length) return std::nullopt;
  std::memcpy(&length, file.data(), sizeof length);
  if (length > file.size() - sizeof length) return std::nullopt;
  std::string header(file.substr(sizeof length, length)), data(file.substr(sizeof length + length));
  const bool in_data = !data.empty() && draw.one_in(4);
  if (in_data) {
    const size_t size = data.size();
    data = changed_bytes(data, size);
    data.resize(size);
  } else {
    header = change(header, std::max(room, file.size()) - data.size(), draw);
    std::optional<Json> json = draw.one_in(4) ? std::nullopt : json_of(header);
    if (json && json->is_object() && mend_offsets(*json, data, room))
      header = json->dump(-1, ' ', false, Json::error_handler_t::replace);
  }
  length = header.size();
  return std::string(reinterpret_cast<const char*>(&length), sizeof length) + header + data;
}

std::optional<std::string> changed_cbor(std::string_view file, size_t room, const ChangeText& change,
                                        Draw& draw) try {
  if (draw.one_in(8)) {  // deep, which nothing else could write
    std::string result(file);
    const char level = static_cast<char>(draw.one_in(2) ? 0x81 : 0x9f);
    return result.insert(draw.below(file.size() + 1), std::min(draw.magnitude(5), room), level);
  }
  const Json json = sim::written_cbor("", file);
  if (json.is_discarded()) return std::nullopt;
  const std::string text = json.dump(-1, ' ', false, Json::error_handler_t::replace);
  const std::optional<Json> changed = json_of(change(text, room, draw));
  if (!changed) return std::nullopt;
  std::string result;
  Json::to_cbor(*changed, result);
  return result;
} catch (const Error&) {
  return std::nullopt;
}

}  // namespace kvbound::fuzz
