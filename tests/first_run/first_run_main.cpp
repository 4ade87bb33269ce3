// The gates of cuda/first_run.sh: large shapes and tile shapes.
//
// usage: kvbound_first_run_BUILD [--gtest_...] [--tiny]
#include <cstdio>

#include <gtest/gtest.h>

#include "gate_layer.hpp"

int main(int count, char** arguments) {
  testing::InitGoogleTest(&count, arguments);
  if (!kvbound::first_run::read_gate_arguments(count, arguments)) {
    std::fputs("usage: kvbound_first_run_BUILD [--gtest_...] [--tiny]\n", stderr);
    return 2;
  }
  return RUN_ALL_TESTS();
}
