#include <kvbound/cuda/support/counters.hpp>
#include <kvbound/cuda/support/recording.hpp>

#include "recorded_work.hpp"

namespace kvbound::cuda {
inline namespace KVBOUND_CUDA_BUILD {

struct Recording::Graph {
  explicit Graph(const std::function<void(Stream)>& work) {
    const Listening listening(launches);
    work(nullptr);
  }

  emulation::RecordedWork launches;

 private:
  struct Listening {
    explicit Listening(emulation::RecordedWork& list) : before(emulation::record_to(&list)) {}
    ~Listening() { emulation::record_to(before); }
    Listening(const Listening&) = delete;
    Listening& operator=(const Listening&) = delete;

    emulation::RecordedWork* before;
  };
};

Recording::Recording() = default;
Recording::~Recording() = default;

void Recording::run(Stream stream, const std::function<void(Stream)>& work, const void* memory) {
  if (!ran_) {
    work(stream);
    ran_ = true;
    return;
  }
  if (!graph_) {
    graph_ = std::make_unique<Graph>(work);
    ++counters().recordings;
    memory_ = memory;
  }
  require_in_place(memory);
  for (const std::function<void()>& launch : graph_->launches) launch();
}

void Recording::forget() {
  graph_.reset();
  ran_ = false;
}

}  // namespace KVBOUND_CUDA_BUILD
}  // namespace kvbound::cuda
