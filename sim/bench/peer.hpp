// What another program took for the same operations on a layer of the same shape: a peer, whose times bench
// shows beside its own. sim/bench/peers/bench_torch.py writes such files for PyTorch,
// tests/peers for FlashInfer and CUB; sim/schemas/bench_peer.schema.json describes them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "bench.hpp"

namespace kvbound::sim {

struct PeerOperation {
  std::string operation;  ///< as bench calls it
  std::string policy;     ///< canonical, of an operation that is run by one; else empty
  /// Of one run, as bench defines it for this operation, or of one decode step; one per round, all > 0.
  std::vector<double> seconds;
};

struct Peer {
  std::string path;
  std::string sha256;   ///< of the file
  std::string name;     ///< "torch"
  std::string version;  ///< its version
  std::string device;   ///< where it worked: "cpu" or "cuda"
  std::string device_name;
  std::string storage;       ///< type of the cache: F64, F32, F16 or BF16
  int64_t threads = 1;       ///< on a processor
  int64_t seed = 0;          ///< of its random data, which is not bench's
  bool is_reference = true;  ///< whose operations these are: the reference's or a device's
  int64_t tokens = 0;        ///< of the layer
  LayerShape layer;          ///< its other sizes
  std::vector<PeerOperation> operations;
};

/// Reads a peer's file. Throws TraceError with the field and what was expected of it; IoError.
Peer read_peer(const std::string& path);

/// Throws TraceError if the peer's times are not of the operations of this backend on a layer of this shape.
void require_same_work(const Peer& peer, const BenchShape& shape, std::string_view backend);

/// "torch 2.15.0, F64, 2 threads"
std::string peer_text(const Peer& peer);

/// Its times for the work of an operation's first row, and how many times as long it took.
struct PeerTimes {
  BenchTimes times;
  /// The ratio of medians; the peer's least time over the operation's most, and the reverse.
  Spread ratio;
};
/// nullopt: the peer has no such operation by this policy.
std::optional<PeerTimes> peer_times(const Peer& peer, const BenchResult& result);

/// The peer's operations that have no counterpart among these results: "compress, snapkv:window=32:pool=7".
std::vector<std::string> only_of_peer(const Peer& peer, const std::vector<BenchResult>& results);

}  // namespace kvbound::sim
