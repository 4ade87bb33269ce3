// Writes another library's times as `kvbound bench --peer` reads them: sim/schemas/bench_peer.schema.json.
#pragma once

#include <kvbound/sim/bench/peer.hpp>

namespace kvbound::sim {

/// Writes peer.path; all but `sha256` is read back as it was. Throws IoError.
void write_peer(const Peer& peer);

}  // namespace kvbound::sim
