// A result of another subcommand, read back from its JSON.
#pragma once

#include <memory>
#include <string>

#include <kvbound/traces/json_field.hpp>

namespace kvbound::sim {

using traces::JsonField;

/// A JSON document that a page is made of.
struct Document {
  std::string path;
  std::string kind;    ///< the command that wrote it
  std::string sha256;  ///< of the file's bytes
  traces::Json json;

  /// The whole document, as long as this object is not moved.
  JsonField root() const { return {path, "", json}; }
};

/// Reads a document.
///
/// taken   bytes of memory that the values of all documents take, 1 GiB at most
/// throws  TraceError if it is no JSON, too large, alone or with the others, or its schema is none that
///         pages are made of; IoError
std::unique_ptr<const Document> read_document(const std::string& path, size_t& taken);

}  // namespace kvbound::sim
