// JSON that this program wrote, read back from files that anybody may have changed since.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include <nlohmann/json.hpp>

namespace kvbound::sim {

/// Limits of what is read back: levels of nesting, members of an object, which are looked for one by one, and
/// bytes of memory that values take, with what lists reserve beyond their items.
struct WrittenLimits {
  size_t levels = 32;
  size_t members = 65'536;
  size_t bytes = size_t{1} << 30;
};

/// Reads JSON text, or CBOR. Ill-formed input gives a discarded value. Nesting and memory are counted
/// before anything is built: nlohmann's functions call themselves for every level, and a value may take 60
/// times the bytes of its text.
///
/// name    of the value, for messages
/// taken   if not null, gets the bytes that the value takes
/// throws  Error for more than the limits
nlohmann::ordered_json written_json(const char* name, std::string_view text, const WrittenLimits& limits = {},
                                    size_t* taken = nullptr);
nlohmann::ordered_json written_cbor(const char* name, std::string_view bytes,
                                    const WrittenLimits& limits = {});

/// Throws Error for CBOR of more than the limits; ill-formed CBOR is passed over.
void require_written_cbor(const char* name, std::string_view bytes, const WrittenLimits& limits = {});

/// The largest file that a value is read from.
inline constexpr int64_t kMostWrittenFileBytes = int64_t{1} << 28;

}  // namespace kvbound::sim
