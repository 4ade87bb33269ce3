#include "peer.hpp"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include <kvbound/reference/core/error.hpp>
#include <kvbound/sim/options/policy.hpp>
#include <kvbound/sim/options/runs.hpp>
#include <kvbound/traces/input_file.hpp>
#include <kvbound/traces/json_field.hpp>
#include <kvbound/traces/messages.hpp>
#include <kvbound/traces/sha256.hpp>

namespace kvbound::sim {
namespace {

using traces::Json, traces::JsonField;

constexpr int64_t kMostPeerBytes = int64_t{16} << 20;
constexpr size_t kMostPeerItems = 10'000;  // of a list
constexpr int64_t kMostSize = INT32_MAX;
constexpr std::string_view kPeerSchema = "kvbound-bench-peer-1";

std::string policy_of(const JsonField& field) {
  if (field.is_null()) return "";
  try {
    return canonical(parse_policy(field.text()));
  } catch (const InvalidPolicy& error) {
    field.refuse(error.what());
  }
}

std::vector<PeerOperation> operations_of(const JsonField& list) {
  std::vector<PeerOperation> all;
  for (const JsonField& item : list.items()) {
    PeerOperation operation{item.member("operation").text(), policy_of(item.member("policy")), {}};
    for (const PeerOperation& other : all) {
      if (other.operation == operation.operation && other.policy == operation.policy)
        item.member("operation").refuse(fmt::format("is {} again", traces::in_quotes(operation.operation)));
    }
    for (const JsonField& seconds : item.member("seconds").items())
      operation.seconds.push_back(seconds.positive());
    all.push_back(std::move(operation));
  }
  return all;
}

bool is_of(const PeerOperation& operation, const BenchResult& result) {
  return operation.operation == result.operation && operation.policy == result.policy;
}

}  // namespace

Peer read_peer(const std::string& path) {
  const std::string text = traces::whole_input(path, kMostPeerBytes);
  const Json json = traces::parse_strict_json(path, 0, "", text, {.levels = 4, .items = kMostPeerItems});
  const JsonField root(path, "", json), shape = root.member("shape");
  root.member("schema").one_of({kPeerSchema});
  const auto size = [&](const char* name) { return shape.member(name).integer(1, kMostSize); };
  Peer peer{path,
            traces::sha256_of(text),
            root.member("name").text(),
            root.member("version").text(),
            root.member("device").one_of({"cpu", "cuda"}),
            root.member("device_name").text(),
            root.member("storage").one_of({"F64", "F32", "F16", "BF16"}),
            root.member("threads").integer(1, kMostSize),
            root.member("seed").integer(0, INT64_MAX),
            root.member("operations_of").one_of({"reference", "device"}) == "reference",
            size("tokens"),
            {size("query_heads"), size("kv_heads"), size("head_dim"), size("model_dim")},
            {}};
  peer.operations = operations_of(root.member("operations"));
  return peer;
}

void require_same_work(const Peer& peer, const BenchShape& shape, std::string_view backend) {
  if (peer.is_reference != (backend == kReference)) {
    throw TraceError(peer.path, -1, "operations_of",
                     fmt::format("is {}; expected {}, whose operations --backend {} measures",
                                 peer.is_reference ? "reference" : "device",
                                 peer.is_reference ? "device" : "reference", backend));
  }
  const auto text = [](int64_t tokens, const LayerShape& layer) {
    return fmt::format("{} tokens, {} query heads, {} KV heads, head_dim {}, model_dim {}", tokens,
                       layer.query_heads, layer.kv_heads, layer.head_dim, layer.model_dim);
  };
  if (peer.tokens == shape.tokens && peer.layer == shape.layer) return;
  throw TraceError(peer.path, -1, "shape",
                   fmt::format("is {}; expected that of {}:{}: {}", text(peer.tokens, peer.layer), shape.name,
                               shape.tokens, text(shape.tokens, shape.layer)));
}

std::string peer_text(const Peer& peer) {
  const std::string threads = fmt::format(", {} thread{}", peer.threads, peer.threads == 1 ? "" : "s");
  return fmt::format("{} {}, {}{}", traces::printable(peer.name), traces::printable(peer.version),
                     peer.storage, peer.device == "cpu" ? threads : "");
}

std::optional<PeerTimes> peer_times(const Peer& peer, const BenchResult& result) {
  const auto found = std::ranges::find_if(
      peer.operations, [&](const PeerOperation& operation) { return is_of(operation, result); });
  if (found == peer.operations.end()) return std::nullopt;
  BenchTimes times = result.times.front();
  const Spread ours = spread(times.seconds);
  times.name = peer_text(peer);
  times.bytes.reset();
  times.seconds = found->seconds;
  if (times.unit == "steps") {
    for (double& seconds : times.seconds) seconds *= times.work;
  }
  const Spread theirs = spread(times.seconds);
  return PeerTimes{std::move(times),
                   {theirs.median / ours.median, theirs.least / ours.most, theirs.most / ours.least}};
}

std::vector<std::string> only_of_peer(const Peer& peer, const std::vector<BenchResult>& results) {
  std::vector<std::string> names;
  for (const PeerOperation& operation : peer.operations) {
    if (std::ranges::any_of(results, [&](const BenchResult& result) { return is_of(operation, result); }))
      continue;
    names.push_back(traces::printable(operation.operation) +
                    (operation.policy.empty() ? "" : ", " + operation.policy));
  }
  return names;
}

}  // namespace kvbound::sim
