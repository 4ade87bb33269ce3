#include "warpgroup_mma.hpp"

#include <algorithm>
#include <bit>
#include <string_view>
#include <utility>

#include "async_proxy.hpp"
#include "matrix_descriptor.hpp"
#include "tensor_core.hpp"

namespace kvbound::cuda::emulation {
namespace {

constexpr uint32_t kInFlight = 0x7fc0dead;  // a NaN

int number_in_sums(int half, int column) { return column / 8 * 4 + 2 * half + column % 2; }
int lane_of(int row, int column) { return row % 8 * 4 + column % 8 / 2; }

bool in_flight(const float* sums) {
  return std::all_of(sums, sums + kColumnsOfB / 2,
                     [](float number) { return std::bit_cast<uint32_t>(number) == kInFlight; });
}

// Calls visit(a lane's number, number of [16, 128]) for every sum of a warp.
template <class Visit>
void each_sum(const std::array<float*, kWarpSize>& of_lane, float* numbers, const Visit& visit) {
  for (int row = 0; row < kRowsOfWarp; ++row) {
    for (int column = 0; column < kColumnsOfB; ++column) {
      visit(of_lane[static_cast<size_t>(lane_of(row, column))][number_in_sums(row / 8, column)],
            numbers[row * kColumnsOfB + column]);
    }
  }
}

}  // namespace

Warpgroup& Warpgroup::here(const char* name, CallSite where) {
  constexpr unsigned kThreads = kWarpsOfGroup * kWarpSize;
  const ThreadId first = first_thread(this_thread());
  if (static_cast<uint64_t>(first % kMostThreads) + kThreads > count(blockDim)) {
    fail(std::string(name) + " in the last warps of a block, which are not four", where);
  }
  return async_proxy().warpgroups[first];
}

void Warpgroup::take_step(const char* name, uint64_t detail, CallSite where) {
  Warp& warp = mine();
  if (warp.steps == forgotten_ + steps_.size()) steps_.push_back({name, detail, where});
  const StepTaken& taken = step(warp.steps);
  const bool same =
      std::string_view(taken.name) == name && taken.detail == detail && same_place(taken.where, where);
  if (!same) {
    fail("is in " + std::string(name) + " at " + text(where) + ", but another warp of its warpgroup in " +
             taken.name + " at " + text(taken.where) + ", or with other operands",
         where);
  }
  ++warp.steps;
  const auto behind = [this](const Warp& each) { return each.steps == forgotten_; };
  while (!steps_.empty() && std::none_of(warps_.begin(), warps_.end(), behind)) {
    steps_.pop_front();
    ++forgotten_;
  }
}

// The lanes' sums, which are in flight or begin to be.
Warpgroup::Sums& Warpgroup::sums_for(const std::array<WarpgroupProduct, kWarpSize>& lanes, CallSite where) {
  Warp& warp = mine();
  for (Sums& each : warp.sums) {
    if (each.of_lane[0] != lanes[0].sums) continue;
    for (const float* const sums : each.of_lane) {
      if (!in_flight(sums)) {
        fail("wgmma adds to sums that were written while in flight since " + text(each.where), where);
      }
    }
    return each;
  }
  if (!warp.fenced) {
    fail("wgmma begins sums with no wgmma.fence behind the warp's begin or its last wait", where);
  }
  Sums& begun = warp.sums.emplace_back();
  for (size_t l = 0; l < kWarpSize; ++l) begun.of_lane[l] = lanes[l].sums;
  begun.numbers.assign(size_t{kRowsOfWarp} * kColumnsOfB, 0);
  each_sum(begun.of_lane, begun.numbers.data(), [](float& of_lane, float& number) {
    number = of_lane;
    of_lane = std::bit_cast<float>(kInFlight);
  });
  return begun;
}

void Warpgroup::refuse_changed_rows(const Warp& warp, const std::array<WarpgroupProduct, kWarpSize>& lanes,
                                    CallSite where) {
  if (!warp.fenced) fail("wgmma reads A from registers with no wgmma.fence behind the last wait", where);
  for (const Product& product : warp.products) {
    for (size_t l = 0; l < kWarpSize; ++l) {
      if (product.lanes[l].rows != lanes[l].rows) continue;
      if (std::equal(product.rows[l].begin(), product.rows[l].end(), lanes[l].rows)) continue;
      fail("wgmma reads registers of A that were written while the wgmma issued at " + text(product.where) +
               " may still read them",
           where);
    }
  }
}

void Warpgroup::issue(const std::array<WarpgroupProduct, kWarpSize>& lanes, CallSite where) {
  Warp& warp = mine();
  const WarpgroupProduct& first = lanes[0];
  for (const WarpgroupProduct& each : lanes) {
    if (each.a != first.a || each.b != first.b || each.add != first.add) {
      fail("wgmma with operands that differ between lanes", where);
    }
  }
  const uint64_t options = (first.transposed ? 2U : 0U) + (first.add ? 1U : 0U);
  take_step("wgmma", first.a ^ std::rotl(first.b, 21) ^ std::rotl(options, 46), where);
  Product product{lanes, {}, nullptr, where};
  if (first.rows != nullptr) {
    refuse_changed_rows(warp, lanes, where);
    for (size_t l = 0; l < kWarpSize; ++l) std::copy_n(lanes[l].rows, 4, product.rows[l].begin());
  }
  product.sums = &sums_for(lanes, where);
  product.sums->where = where;
  ++product.sums->products;
  static_cast<void>(read_operands(product, true));
  if (eager_copies()) multiply(product);
  warp.products.push_back(product);
  ++warp.uncommitted;
}

const Warpgroup::Operands& Warpgroup::read_operands(const Product& product, bool check) {
  static thread_local Operands operands;
  static thread_local uint16_t bits[kColumnsOfB][kDepth];
  const WarpgroupProduct& first = product.lanes[0];
  if (first.rows == nullptr) {
    read_rows(first.a, kRowsOfWarp * (emulation::warp() % kWarpsOfGroup), kRowsOfWarp, check, bits,
              product.where);
  } else {
    for (int r = 0; r < kRowsOfWarp; ++r) {
      for (int k = 0; k < kDepth; ++k) {
        const auto& registers = product.rows[static_cast<size_t>(lane_of(r, k))];
        const int which = r / 8 + 2 * (k / 8);
        const uint32_t pair = registers[static_cast<size_t>(which)];
        bits[r][k] = static_cast<uint16_t>(k % 2 == 0 ? pair & 0xffff : pair >> 16);
      }
    }
  }
  for (int r = 0; r < kRowsOfWarp; ++r) {
    for (int k = 0; k < kDepth; ++k) operands.left[r][k] = first.widen(bits[r][k]);
  }
  if (first.transposed) {
    read_columns(first.b, kColumnsOfB, check, bits, product.where);
  } else {
    read_rows(first.b, 0, kColumnsOfB, check, bits, product.where);
  }
  for (int c = 0; c < kColumnsOfB; ++c) {
    for (int k = 0; k < kDepth; ++k) operands.right[c / kColumns][k][c % kColumns] = first.widen(bits[c][k]);
  }
  return operands;
}

void Warpgroup::multiply(const Product& product) {
  const Operands& operands = read_operands(product, false);
  const WarpgroupProduct& first = product.lanes[0];
  float* sum = product.sums->numbers.data();
  for (int r = 0; r < kRowsOfWarp; ++r) {
    for (int column = 0; column < kColumnsOfB; column += kColumns, sum += kColumns) {
      auto& totals = *reinterpret_cast<Columns*>(sum);
      if (!first.add) std::ranges::fill(totals, 0.0F);
      for (int k = 0; k < kDepth; k += kAligned) {
        add_products(&operands.left[r][k], &operands.right[column / kColumns][k], totals);
      }
    }
  }
}

void Warpgroup::commit() {
  Warp& warp = mine();
  warp.groups.push_back(std::exchange(warp.uncommitted, 0));
}

void Warpgroup::wait(size_t in_flight) {
  Warp& warp = mine();
  while (warp.groups.size() > in_flight) {
    for (size_t left = warp.groups.front(); left > 0; --left) complete(warp);
    warp.groups.pop_front();
  }
}

// Completes the warp's first product, and with the last one of its sums them.
void Warpgroup::complete(Warp& warp) {
  const Product product = warp.products.front();
  warp.products.pop_front();
  if (!eager_copies()) multiply(product);
  Sums& sums = *product.sums;
  if (--sums.products > 0) return;
  for (const float* const of_lane : sums.of_lane) {
    if (!in_flight(of_lane)) {
      fail("waits for sums that were written while in flight since " + text(sums.where), sums.where);
    }
  }
  each_sum(sums.of_lane, sums.numbers.data(), [](float& of_lane, float& number) { of_lane = number; });
  warp.sums.remove_if([&sums](const Sums& each) { return &each == &sums; });
  warp.fenced = false;
}

void Warpgroup::set_registers(const char* name, int registers, bool raise, CallSite where) {
  take_step(name, static_cast<uint64_t>(registers), where);
  Warp& warp = mine();
  const bool possible = raise ? registers >= warp.registers : registers <= warp.registers;
  if (warp.registers != 0 && !possible) {
    fail(std::string(name) + " from " + std::to_string(warp.registers) + " registers to " +
             std::to_string(registers),
         where);
  }
  warp.registers = registers;
}

void Warpgroup::require_complete(const float* sums, CallSite where) {
  for (const Sums& each : mine().sums) {
    if (each.of_lane[static_cast<size_t>(lane())] != sums) continue;
    fail("names sums that are still in flight behind wgmma.wait_group: they were issued at " +
             text(each.where),
         where);
  }
}

void Warpgroup::refuse_to_return(ThreadId id) const {
  const Warp& warp = warps_[static_cast<size_t>(id % kMostThreads / kWarpSize % kWarpsOfGroup)];
  if (!warp.products.empty()) {
    const CallSite where = warp.products.front().where;
    fail("returns while the wgmma issued at " + text(where) + " is in flight", where);
  }
  if (warp.steps < forgotten_ + steps_.size()) {
    const StepTaken& missed = step(warp.steps);
    fail("returns, but another warp of its warpgroup has taken part in " + std::string(missed.name) + " at " +
             text(missed.where),
         missed.where);
  }
}

void Warpgroup::refuse_to_end() const {
  if (steps_.empty()) return;
  fail("is its block's last to return, and a warp has not taken part in " + std::string(steps_.front().name) +
           " at " + text(steps_.front().where),
       steps_.front().where);
}

namespace {

// Lane 0's arguments stand for all; `operation(warpgroup)` is the warp's.
template <class Operation>
void as_warp(const char* name, CallSite where, const Operation& operation) {
  char nothing = 0;
  together(
      name, ~0U, nothing, where, [&](const auto&) { operation(Warpgroup::here(name, where)); },
      [](const Observer&, const auto&) {});
}

}  // namespace

void issue_product(const WarpgroupProduct& product, CallSite where) {
  WarpgroupProduct mine = product;
  const auto issue = [where](const auto& of) {
    std::array<WarpgroupProduct, kWarpSize> lanes;
    for (int l = 0; l < kWarpSize; ++l) lanes[static_cast<size_t>(l)] = of(l);
    Warpgroup::here("wgmma", where).issue(lanes, where);
  };
  together("wgmma", ~0U, mine, where, issue, [&product](Observer& watching, const auto&) {
    constexpr int64_t kBytes = 2;  // of a number
    watching.warp(Instruction::warpgroup_mma, 2.0 * kRowsOfWarp * kDepth * kColumnsOfB);
    // The four warps of a warpgroup share one reading of B.
    const int64_t a = product.rows == nullptr ? kRowsOfWarp * kDepth * kBytes : 0;
    watching.shared_bytes(Instruction::warpgroup_mma, a + kDepth * kColumnsOfB * kBytes / kWarpsOfGroup);
  });
}

void fence_products(CallSite where) {
  as_warp("wgmma.fence", where, [](Warpgroup& all) { all.fence(); });
}

void commit_products(CallSite where) {
  as_warp("wgmma.commit_group", where, [](Warpgroup& all) { all.commit(); });
}

void wait_for_products(int in_flight, CallSite where) {
  as_warp("wgmma.wait_group", where,
          [in_flight](Warpgroup& all) { all.wait(static_cast<size_t>(in_flight)); });
}

void require_complete(const float* sums, CallSite where) {
  Warpgroup::here("wgmma.wait_group", where).require_complete(sums, where);
}

void set_registers(int registers, bool raise, CallSite where) {
  const char* const name = raise ? "setmaxnreg.inc" : "setmaxnreg.dec";
  as_warp(name, where, [&](Warpgroup& all) { all.set_registers(name, registers, raise, where); });
}

}  // namespace kvbound::cuda::emulation
