#include <cuda_runtime.h>

#include <kvbound/cuda/support/counters.hpp>
#include <kvbound/cuda/support/recording.hpp>

#include "check.hpp"

namespace kvbound::cuda {
inline namespace KVBOUND_CUDA_BUILD {

struct Recording::Graph {
  explicit Graph(const std::function<void(Stream)>& work) {
    const DeviceCounters before = counters();
    const Captured captured(work);
    requests = counters() - before;
    counters() = before;
    check(cudaGraphInstantiate(&executable, captured.graph, 0), "cudaGraphInstantiate");
  }
  ~Graph() { cudaGraphExecDestroy(executable); }
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;

  cudaGraphExec_t executable = nullptr;
  DeviceCounters requests;

 private:
  // On a stream of its own, because the default stream cannot be captured.
  struct Captured {
    explicit Captured(const std::function<void(Stream)>& work) {
      check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreate");
      try {
        check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "cudaStreamBeginCapture");
        work(stream);
        check(cudaStreamEndCapture(stream, &graph), "cudaStreamEndCapture");
      } catch (...) {
        release();
        throw;
      }
    }
    ~Captured() { release(); }
    Captured(const Captured&) = delete;
    Captured& operator=(const Captured&) = delete;

    void release() {
      cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
      if (cudaStreamIsCapturing(stream, &status) == cudaSuccess && status != cudaStreamCaptureStatusNone) {
        cudaStreamEndCapture(stream, &graph);
      }
      if (graph != nullptr) cudaGraphDestroy(graph);
      cudaStreamDestroy(stream);
    }

    cudaStream_t stream = nullptr;
    cudaGraph_t graph = nullptr;
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
  check(cudaGraphLaunch(graph_->executable, stream), "cudaGraphLaunch");
  counters() += graph_->requests;
}

void Recording::forget() {
  graph_.reset();
  ran_ = false;
}

}  // namespace KVBOUND_CUDA_BUILD
}  // namespace kvbound::cuda
