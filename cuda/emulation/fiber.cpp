#include "fiber.hpp"

#include <sys/mman.h>
#include <cstdint>
#include <cstdlib>
#include <new>

#include "sanitizer.hpp"

#ifndef KVBOUND_UCONTEXT
// Pushes the registers that the calling convention preserves, and pops them from the other stack.
asm(R"(
.pushsection .text
.globl kvbound_switch_stack
.hidden kvbound_switch_stack
.p2align 4
.type kvbound_switch_stack, @function
kvbound_switch_stack:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size kvbound_switch_stack, .-kvbound_switch_stack
.popsection
)");
#endif

namespace kvbound::cuda::emulation {
namespace {

constexpr size_t kGuardBytes = 4096;
// Enough for a kernel's locals and the functions it calls; the sanitizers' frames are larger.
#if defined(KVBOUND_ASAN) || defined(KVBOUND_TSAN)
constexpr size_t kFiberStackBytes = size_t{256} << 10;
#else
constexpr size_t kFiberStackBytes = size_t{64} << 10;
#endif
constexpr size_t kMappedBytes = kGuardBytes + kFiberStackBytes;
constexpr int kColours = 61;
constexpr size_t kCacheLine = 64;

}  // namespace

Fiber::Fiber() {
#ifdef KVBOUND_TSAN
  shadow_ = __tsan_get_current_fiber();
#endif
}

Fiber::Fiber(void (*entry)(), int number) : entry_(entry) {
  void* memory = mmap(nullptr, kMappedBytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_STACK, -1, 0);
  if (memory == MAP_FAILED) throw std::bad_alloc();
  mapped_ = static_cast<std::byte*>(memory);
  if (mprotect(mapped_, kGuardBytes, PROT_NONE) != 0) {
    munmap(mapped_, kMappedBytes);
    throw std::bad_alloc();
  }
  top_ = mapped_ + kMappedBytes - static_cast<size_t>(number % kColours) * kCacheLine;
  bottom_ = mapped_ + kGuardBytes;
  bytes_ = static_cast<size_t>(top_ - (mapped_ + kGuardBytes));
#ifdef KVBOUND_TSAN
  shadow_ = __tsan_create_fiber(0);
#endif
  restart();
}

Fiber::~Fiber() {
  if (mapped_ == nullptr) return;
#ifdef KVBOUND_TSAN
  __tsan_destroy_fiber(shadow_);
#endif
  allow(bottom_, bytes_);
  munmap(mapped_, kMappedBytes);
}

void Fiber::restart() {
  allow(bottom_, bytes_);  // frames that never returned have left their red zones
  fake_stack_ = nullptr;
#ifdef KVBOUND_TSAN
  __tsan_destroy_fiber(shadow_);
  shadow_ = __tsan_create_fiber(0);
#endif
#ifdef KVBOUND_UCONTEXT
  getcontext(&context_);
  context_.uc_stack.ss_sp = const_cast<void*>(bottom_);
  context_.uc_stack.ss_size = bytes_;
  context_.uc_link = nullptr;
  makecontext(&context_, entry_, 0);
#else
  // As kvbound_switch_stack leaves a stack: six registers and the return address; above it, at an address
  // that ends in 8 as the calling convention requires, a null that ends stack traces.
  auto* slots = reinterpret_cast<void**>(top_);
  *--slots = nullptr;
  *--slots = reinterpret_cast<void*>(entry_);
  for (int i = 0; i < 6; ++i) *--slots = nullptr;
  stack_pointer_ = slots;
#endif
}

std::byte* Fiber::clear() const {
  allow(bottom_, bytes_);
  return top_;
}

void Fiber::leave(Fiber& from, Fiber& to) {
  from.jump(to, nullptr);
  std::abort();  // a fiber that was left is never switched to
}

void Fiber::begin([[maybe_unused]] Fiber& first) {
#ifdef KVBOUND_ASAN
  const void* bottom = nullptr;
  size_t bytes = 0;
  __sanitizer_finish_switch_fiber(nullptr, &bottom, &bytes);
  if (first.bottom_ == nullptr) {
    first.bottom_ = bottom;
    first.bytes_ = bytes;
  }
#endif
}

bool Fiber::overflown_at(const void* address) const {
  const auto place = reinterpret_cast<uintptr_t>(address);
  const auto begin = reinterpret_cast<uintptr_t>(mapped_);
  return mapped_ != nullptr && begin <= place && place < begin + kGuardBytes;
}

}  // namespace kvbound::cuda::emulation
