// Instances of theorems as JSON, so that a counterexample can be stored and run again.
#pragma once

#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include <kvbound/proofs/engine/theorem.hpp>

namespace kvbound::sim {

/// An instance and the property that it belongs to.
struct StoredInstance {
  const proofs::Theorem* theorem = nullptr;
  const proofs::Property* property = nullptr;
  proofs::Instance instance;
};

/// The property with this id, and its theorem; the instance is empty. Ids are case-insensitive.
///
/// throws  UsageError, which lists the known ids
StoredInstance find_property(const std::string& id);

/// {"schema": "kvbound-instance-1", "property": id, "query_heads": ..., "logits": [[...]], ...}
nlohmann::ordered_json to_json(const proofs::Property& property, const proofs::Instance& instance);

/// The instances in a file: a single document of this form, or all those within a report
/// of `kvbound prove --json`.
///
/// throws  TraceError naming file, byte or field for anything else; IoError
std::vector<StoredInstance> read_instances(const std::string& path);

}  // namespace kvbound::sim
