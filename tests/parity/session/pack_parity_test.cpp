#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <kvbound/cuda/session/pack.hpp>
#include <kvbound/reference/core/error.hpp>

#include "parity/support.hpp"

namespace kvbound::parity {
namespace {

constexpr int64_t kGap = 16;

std::vector<std::byte> bytes_from(int64_t count, unsigned seed) {
  std::vector<std::byte> bytes(count);
  for (int64_t i = 0; i < count; ++i)
    bytes[i] = static_cast<std::byte>((i * 37 + seed * 101 + i / 251) % 253);
  return bytes;
}

class PackParity : public DeviceTest {
 protected:
  // Packs stretches of these sizes, with a gap before each, and expects nothing else to be written.
  static void expect_packed(const std::vector<int64_t>& sizes) {
    std::vector<cuda::Buffer<std::byte>> memory;
    std::vector<cuda::PackedStretch> stretches;
    int64_t end = 0;
    for (size_t i = 0; i < sizes.size(); ++i) {
      memory.push_back(cuda::upload(bytes_from(sizes[i], static_cast<unsigned>(i))));
      const int64_t first = (end + kGap + 15) / 16 * 16;
      stretches.push_back({memory.back().data(), sizes[i], first});
      end = first + sizes[i];
    }
    std::vector<std::byte> expected(end + kGap, std::byte{0xfe});
    for (size_t i = 0; i < sizes.size(); ++i) {
      std::ranges::copy(bytes_from(sizes[i], static_cast<unsigned>(i)), expected.begin() + stretches[i].to);
    }
    cuda::under_every_schedule([&] {
      cuda::Buffer<std::byte> packed = cuda::upload(std::vector<std::byte>(end + kGap, std::byte{0xfe}));
      cuda::pack(stretches, packed.data(), packed.size(), nullptr);
      cuda::synchronise(nullptr);
      EXPECT_EQ(cuda::download(packed), expected);
    });
  }
};

TEST_F(PackParity, CopiesEveryByteOfStretchesOfAllSizes) {
  expect_packed({1, 15, 16, 17, 31, 32, 33, 2047, 2048, 2049});
  expect_packed({1});
}

TEST_F(PackParity, CopiesAStretchThatTakesMoreThanAllBlocks) { expect_packed({16 * 128 * 256 + 19, 5}); }

TEST_F(PackParity, CopiesMoreStretchesThanALaunchTakes) {
  for (const int64_t count : {32, 33, 70}) {
    std::vector<int64_t> sizes(count);
    for (int64_t i = 0; i < count; ++i) sizes[i] = 1 + i * 7;
    expect_packed(sizes);
  }
}

TEST_F(PackParity, PacksNothing) { EXPECT_NO_THROW(cuda::pack({}, nullptr, 0, nullptr)); }

TEST_F(PackParity, RefusesPlacesOutsideAndOffSixteenBytes) {
  const cuda::Buffer<std::byte> from = cuda::upload(bytes_from(64, 1));
  cuda::Buffer<std::byte> packed(64);
  const auto pack = [&](const std::byte* data, int64_t bytes, int64_t to) {
    const cuda::PackedStretch stretch{data, bytes, to};
    cuda::pack(std::span(&stretch, 1), packed.data(), packed.size(), nullptr);
  };
  EXPECT_NO_THROW(pack(from.data(), 48, 16));
  EXPECT_THROW(pack(from.data(), 49, 16), ShapeMismatch);
  EXPECT_THROW(pack(from.data() + 8, 16, 0), ShapeMismatch);
  EXPECT_THROW(pack(from.data(), 16, 8), ShapeMismatch);
}

}  // namespace
}  // namespace kvbound::parity
