#include "peer_writer.hpp"

#include <nlohmann/json.hpp>

#include <kvbound/traces/output_file.hpp>

namespace kvbound::sim {

void write_peer(const Peer& peer) {
  using Json = nlohmann::ordered_json;
  const auto text_or_null = [](const std::string& text) { return text.empty() ? Json() : Json(text); };
  Json operations = Json::array();
  for (const PeerOperation& one : peer.operations) {
    operations.push_back(
        {{"operation", one.operation}, {"policy", text_or_null(one.policy)}, {"seconds", one.seconds}});
  }
  const Json shape{{"tokens", peer.tokens},
                   {"query_heads", peer.layer.query_heads},
                   {"kv_heads", peer.layer.kv_heads},
                   {"head_dim", peer.layer.head_dim},
                   {"model_dim", peer.layer.model_dim}};
  const Json document{{"schema", "kvbound-bench-peer-1"},
                      {"name", peer.name},
                      {"version", peer.version},
                      {"device", peer.device},
                      {"device_name", peer.device_name},
                      {"storage", peer.storage},
                      {"threads", peer.threads},
                      {"seed", peer.seed},
                      {"operations_of", peer.is_reference ? "reference" : "device"},
                      {"shape", shape},
                      {"operations", operations}};
  traces::OutputFile file(peer.path);
  file.write(document.dump(2) + "\n");
  file.commit();
}

}  // namespace kvbound::sim
