// Results of a sweep that are none: cut off, changed by a bad disk, of another format. They count as missing.
#pragma once

#include <string>
#include <vector>

#include "sweep_folder.hpp"

namespace kvbound::sim {

struct DamageOptions {
  bool mixed = false;  ///< also look at results of other computations, as Gathering
  /// from the disk, so that all processes see that they are missing; else from this object's view alone
  bool remove = false;
  bool refuse_undamaged =
      false;  ///< throw for what has its hash and is no result all the same: somebody wrote it so
};

/// Reads every result that the sweep would use, and makes those missing that are no results of
/// their items: whose hash is another, that are of another format or of other layers, runs or
/// shapes, or that cannot be read.
///
/// Before one is removed its item is claimed and it is read again, because another process may
/// have replaced it meanwhile.
///
/// returns  a line for each of them, which names the file and says what is wrong
/// throws   IoError if they cannot be removed; with refuse_undamaged TraceError
std::vector<std::string> find_damaged(SweepFolder& folder, const Sweep& sweep, const DamageOptions& options);

/// Throws TraceError, naming the path and the field, unless a result has the layers, runs and
/// shapes that a source promises.
void require_result_of(const std::string& path, const ItemResult& result, const Sweep& sweep,
                       const SweepItem& item, const std::vector<size_t>& runs);

}  // namespace kvbound::sim
