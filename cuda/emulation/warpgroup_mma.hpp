// Products of a warpgroup's tensor cores (wgmma), lane by lane. A warp's quarter of a product, 16 of its 64
// rows, is computed when the warp issues it or, with lazy copies, when the warp waits for it. Until then the
// sums are NaN in the lanes' variables. The four warps need not issue at the same time, but the same
// products at the same places.
//
// Stricter than PTX: a wgmma.fence is required behind every wait that completed sums, whether or not they
// were accessed; and an array that holds rows of A must not be written before the wait.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <list>
#include <vector>

#include "block.hpp"
#include "tensor_core.hpp"

namespace kvbound::cuda::emulation {

inline constexpr int kWarpsOfGroup = 4;
inline constexpr int kRowsOfWarp = 16;
inline constexpr int kDepth = 16;
inline constexpr int kColumnsOfB = 128;

/// One lane's part of a product of A [64, 16] and B [16, 128].
struct WarpgroupProduct {
  float* sums;           ///< [64]
  const uint32_t* rows;  ///< four registers of A; null if A is in shared memory
  uint64_t a;            ///< matrix descriptors
  uint64_t b;
  bool transposed;  ///< B is N-major
  bool add;         ///< to the sums, rather than to 0
  float (*widen)(uint16_t bits);
};

class Warpgroup {
 public:
  static ThreadId first_thread(ThreadId id) { return id - id % (kWarpsOfGroup * kWarpSize); }
  /// The running thread's.
  static Warpgroup& here(const char* name, CallSite where);

  // Steps of the running warp.
  void fence() { mine().fenced = true; }
  void issue(const std::array<WarpgroupProduct, kWarpSize>& lanes, CallSite where);
  void commit();
  /// Completes all groups but the latest `in_flight`.
  void wait(size_t in_flight);
  /// setmaxnreg.
  void set_registers(const char* name, int registers, bool raise, CallSite where);
  /// Fails unless the other warps take the same steps. `detail` distinguishes steps of one name.
  void take_step(const char* name, uint64_t detail, CallSite where);

  /// Fails if products of the running thread's sums are in flight.
  void require_complete(const float* sums, CallSite where);

  void refuse_to_return(ThreadId id) const;
  void refuse_to_end() const;

 private:
  // One warp's sums that are in flight.
  struct Sums {
    std::array<float*, kWarpSize> of_lane;
    std::vector<float> numbers;  // [16, 128]
    int products = 0;            // that are not yet waited for
    CallSite where;              // the last of them
  };
  struct Product {
    std::array<WarpgroupProduct, kWarpSize> lanes;
    std::array<std::array<uint32_t, 4>, kWarpSize> rows;  // as they were when it was issued
    Sums* sums;
    CallSite where;
  };
  struct Operands {
    float left[kRowsOfWarp][kDepth];
    Columns right[kColumnsOfB / kColumns][kDepth];
  };
  struct Warp {
    bool fenced = false;
    int registers = 0;  // of a thread; 0: as the kernel began
    size_t steps = 0;   // of all, taken by this warp
    std::list<Sums> sums;
    std::deque<Product> products;
    std::deque<size_t> groups;  // numbers of products
    size_t uncommitted = 0;
  };
  struct StepTaken {
    const char* name;
    uint64_t detail;
    CallSite where;
  };

  Warp& mine() { return warps_[static_cast<size_t>(emulation::warp() % kWarpsOfGroup)]; }
  Sums& sums_for(const std::array<WarpgroupProduct, kWarpSize>& lanes, CallSite where);
  static void refuse_changed_rows(const Warp& warp, const std::array<WarpgroupProduct, kWarpSize>& lanes,
                                  CallSite where);
  /// The running warp's, as they are now; valid until the next call.
  static const Operands& read_operands(const Product& product, bool check);
  static void multiply(const Product& product);
  void complete(Warp& warp);
  const StepTaken& step(size_t number) const { return steps_[number - forgotten_]; }

  std::array<Warp, kWarpsOfGroup> warps_;
  std::deque<StepTaken> steps_;  // that some warp has not taken yet
  size_t forgotten_ = 0;
};

// What a warp's lanes do together.
void issue_product(const WarpgroupProduct& product, CallSite where);
void fence_products(CallSite where);
void commit_products(CallSite where);
void wait_for_products(int in_flight, CallSite where);
void require_complete(const float* sums, CallSite where);
/// setmaxnreg; `raise` or lower.
void set_registers(int registers, bool raise, CallSite where);

}  // namespace kvbound::cuda::emulation
