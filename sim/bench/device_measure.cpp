#include "device_measure.hpp"

#include <memory>
#include <span>
#include <utility>

#include <kvbound/cuda/roofline/roofline.hpp>
#include <kvbound/cuda/support/recording.hpp>
#include <kvbound/cuda/support/timer.hpp>
#include <kvbound/sim/options/magnitude.hpp>

#include "device_counting.hpp"

namespace kvbound::sim::KVBOUND_CUDA_BUILD {
namespace {

constexpr int64_t kProductRepeats = kNative ? 4096 : 1;  // natively about a millisecond

// Measures the device time of one call, in seconds.
class CallTimer {
 public:
  CallTimer(Call call, Launches launches) : call_(std::move(call)), launches_(launches) {}

  double seconds() {
    constexpr double kLeastSeconds = 0.01;
    constexpr double kMostCalls = 1000;
    call_(kStream);  // an uncounted call for one-time costs
    if (calls_ == 0) {
      const double one = timed([this] { call_(kStream); });
      calls_ = static_cast<int64_t>(std::clamp(std::ceil(kLeastSeconds / one), 1.0, kMostCalls));
      if (launches_ == Launches::recorded) {
        queue_all();  // as they are
        queue_all();  // while they are recorded
      }
    }
    return timed([this] { queue_all(); }) / as_real(calls_);
  }

 private:
  void queue_all() {
    const auto calls = [this](cuda::Stream stream) {
      for (int64_t i = 0; i < calls_; ++i) call_(stream);
    };
    if (launches_ == Launches::recorded) {
      recording_.run(kStream, calls);
    } else {
      calls(kStream);
    }
  }

  double timed(const std::function<void()>& queue) {
    timer_.start(kStream);
    queue();
    timer_.stop(kStream);
    const double seconds = timer_.seconds();
    cuda::synchronise(kStream);  // throws if a call failed
    return seconds;
  }

  Call call_;
  Launches launches_;
  cuda::Timer timer_;
  cuda::Recording recording_;
  int64_t calls_ = 0;
};

BenchPiece copy_piece(const BenchOptions& options) {
  constexpr int64_t kBlock = 1 << 16;
  const int64_t blocks = (beyond_cache() / static_cast<int64_t>(sizeof(uint64_t)) + kBlock - 1) / kBlock;
  struct Memory {
    explicit Memory(int64_t size) : from(size), to(size) {}
    cuda::Buffer<uint64_t> from, to;
  };
  const auto memory = std::make_shared<Memory>(blocks * kBlock);
  const traces::Stream random = BenchLayer::random(options, 14);  // not zeros, which draw less power
  std::vector<uint64_t> block(kBlock);
  for (size_t i = 0; i < block.size(); ++i) block[i] = random.bits(i);
  for (int64_t i = 0; i < blocks; ++i) memory->from.upload(block, kStream, i * kBlock);
  const int64_t bytes = memory->from.bytes();
  return device_piece("copy", {2 * as_real(bytes), 0}, [memory, bytes](cuda::Stream stream) {
    cuda::copy(memory->to.data(), memory->from.data(), bytes, stream);
  });
}

// Random numbers, so that the multipliers draw as much power as with a model's numbers.
std::vector<Stored> random_stored(int64_t count, const traces::Stream& random) {
  std::vector<Stored> numbers(count);
  for (size_t i = 0; i < numbers.size(); ++i) numbers[i] = cuda::stored<Stored>(random.normal(i));
  return numbers;
}

BenchPiece tensor_products_piece(const BenchOptions& options) {
  struct Memory {
    cuda::Buffer<uint32_t> operands{cuda::kProductOperands};
    cuda::Buffer<float> sums{cuda::tensor_product_threads()};
  };
  const auto memory = std::make_shared<Memory>();
  const std::vector<Stored> numbers =
      random_stored(2 * cuda::kProductOperands, BenchLayer::random(options, 8));
  std::vector<uint32_t> words;
  for (size_t i = 0; i < numbers.size(); i += 2) {
    words.push_back(uint32_t{numbers[i].bits} | uint32_t{numbers[i + 1].bits} << 16);
  }
  memory->operands.upload(words, kStream);
  return device_piece("BF16 mma.sync in registers", {0, cuda::tensor_product_flop(kProductRepeats)},
                      [memory](cuda::Stream stream) {
                        cuda::tensor_products(memory->operands.data(), kProductRepeats, memory->sums.data(),
                                              stream);
                      });
}

BenchPiece library_piece(std::unique_ptr<cuda::MatrixLibrary> opened, const BenchOptions& options) {
  constexpr int64_t kSide = 8192;
  struct Memory {
    std::unique_ptr<cuda::MatrixLibrary> library;
    cuda::Buffer<Stored> a{kSide * kSide}, b{kSide * kSide}, product{kSide * kSide};
  };
  const auto memory = std::make_shared<Memory>(Memory{std::move(opened)});
  const std::vector<Stored> numbers = random_stored(kSide * kSide, BenchLayer::random(options, 9));
  memory->a.upload(numbers, kStream);
  memory->b.upload(numbers, kStream);
  const auto multiply = [memory](cuda::Stream stream) {
    memory->library->multiply(memory->a.data(), memory->b.data(), memory->product.data(), kSide, stream);
  };
  return device_piece("BF16 cuBLAS, 8192-cube", {0, 2 * std::pow(as_real(kSide), 3)}, multiply,
                      Launches::direct);
}

// The copy, mma.sync's products and, last, cuBLAS's where it is found.
const std::vector<BenchPiece>& ceilings(const BenchOptions& options) {
  std::vector<BenchPiece>& pieces = *options.ceilings;
  if (pieces.empty()) {
    pieces = {copy_piece(options), tensor_products_piece(options)};
    if (auto library = cuda::MatrixLibrary::open(nullptr))
      pieces.push_back(library_piece(std::move(library), options));
  }
  return pieces;
}

// Each round's shares of the rooflines timed in that round: piece 1 is the copy, the last
// piece the matrix product.
class Shares {
 public:
  Shares(DeviceWork work, const std::vector<BenchPiece>& pieces)
      : work_(work), copy_(pieces[1].work), product_(pieces.back().work) {}

  void add(std::span<const double> seconds) {
    shares_.copy_bandwidth.push_back(work_.bytes / seconds[0] / (copy_ / seconds[1]));
    if (work_.flop > 0) shares_.matrix_rate.push_back(work_.flop / seconds[0] / (product_ / seconds.back()));
  }
  const BenchShares& all() const { return shares_; }

 private:
  DeviceWork work_;
  double copy_, product_;
  BenchShares shares_;
};

std::optional<BenchGoal> goal_of(const Measured& measured) {
  if (!kNative || !measured.goal) return std::nullopt;  // goals are stated for GPUs
  return measured.roofline == Roofline::time ? at_most(1) : at_least(*measured.goal);
}

std::string meaning_of(const Measured& measured, bool library) {
  if (measured.roofline == Roofline::copy_bandwidth) return "share of the copy bandwidth";
  if (measured.roofline == Roofline::matrix_rate)
    return library ? "share of the cuBLAS rate" : "share of the mma.sync rate";
  return "times " + duration_text(*measured.goal);
}

}  // namespace

BenchPiece device_piece(const std::string& name, DeviceWork work, const Call& call, Launches launches) {
  const auto timer = std::make_shared<CallTimer>(call, launches);
  BenchPiece piece{name, work.flop, "FLOP", [call] { call(kStream); }, [timer] { return timer->seconds(); }};
  if (work.flop > 0 && work.bytes > 0) piece.bytes = work.bytes;
  if (work.flop == 0) {
    piece.work = work.bytes;
    piece.unit = "bytes";
  }
  return piece;
}

BenchResult measure_on_device(const BenchOptions& options, const std::string& name, const Measured& measured,
                              const Call& call) {
  if (options.gpu) {
    BenchResult result;
    result.prediction = predict(*options.gpu, counted_work([&] { call(kStream); }), measured.work);
    return result;
  }
  constexpr size_t kWithoutLibrary = 2;
  const std::vector<BenchPiece>& against = ceilings(options);
  std::vector<BenchPiece> pieces{device_piece(name, measured.work, call)};
  pieces.insert(pieces.end(), against.begin(), against.end());
  Shares shares(measured.work, pieces);
  BenchResult result = measure(pieces, options.rounds, [&](std::span<const double> seconds) {
    shares.add(seconds);
    if (measured.roofline == Roofline::time) return seconds[0] / *measured.goal;
    return measured.roofline == Roofline::matrix_rate ? shares.all().matrix_rate.back()
                                                      : shares.all().copy_bandwidth.back();
  });
  result.shares = shares.all();
  result.ratio_meaning = meaning_of(measured, against.size() > kWithoutLibrary);
  result.goal = goal_of(measured);
  if (!kNative && measured.roofline == Roofline::time) {
    result.ratios.clear();
    result.no_ratio = "its goal is a GPU's time";
  }
  return result;
}

}  // namespace kvbound::sim::KVBOUND_CUDA_BUILD
