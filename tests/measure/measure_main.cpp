// The gates of cuda/measure.sh: large shapes and tile shapes.
//
// usage: kvbound_measure_BUILD [--gtest_...] [--tiny]
#include <cstdio>

#include <gtest/gtest.h>

#include "gate_layer.hpp"

int main(int count, char** arguments) {
  testing::InitGoogleTest(&count, arguments);
  if (!kvbound::measure::read_gate_arguments(count, arguments)) {
    std::fputs("usage: kvbound_measure_BUILD [--gtest_...] [--tiny]\n", stderr);
    return 2;
  }
  return RUN_ALL_TESTS();
}
