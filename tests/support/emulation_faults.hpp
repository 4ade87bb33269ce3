// The error messages of emulated launches, and assertions about them.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <kvbound/cuda/primitives/kernel.hpp>

namespace kvbound::cuda {
inline namespace KVBOUND_CUDA_BUILD {

/// The message that a launch throws; empty if it does not throw.
inline std::string fault_of(const std::function<void()>& launches) {
  try {
    launches();
  } catch (const DeviceError& error) {
    return error.what();
  }
  return "";
}

/// Requires that the text contains all these words; prints it if not.
inline void expect_words(const std::string& text, const std::vector<std::string>& words) {
  for (const std::string& word : words) {
    EXPECT_NE(text.find(word), std::string::npos) << "\"" << word << "\" is not in: " << text;
  }
}

inline LaunchShape shape(int64_t blocks, int64_t threads, int64_t shared = 0,
                         CallSite where = CallSite::current()) {
  return LaunchShape(extent(blocks), extent(threads), shared, nullptr, where);
}

}  // namespace KVBOUND_CUDA_BUILD
}  // namespace kvbound::cuda
