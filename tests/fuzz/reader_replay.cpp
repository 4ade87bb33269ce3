// Reads inputs, and mutations of them, without libFuzzer: for every build.
//
//   reader_replay                           prints the letter and the name of each reader
//   reader_replay FOLDER [MUTATIONS SEED]   reads every file of the folder, and so many mutations of
//                                           each; prints for each reader its letter and how many inputs
//                                           it read, and how many it refused
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <string>
#include <vector>

#include "mutation/mutation.hpp"
#include "readers/reader.hpp"

namespace {

using namespace kvbound::fuzz;

std::minstd_rand bytes_engine;  // for LLVMFuzzerMutate

std::vector<std::string> inputs_in(const std::filesystem::path& folder) {
  std::vector<std::filesystem::path> paths;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) paths.push_back(entry.path());
  std::ranges::sort(paths);
  std::vector<std::string> inputs;
  for (const auto& path : paths) {
    std::ifstream file(path, std::ios::binary);
    inputs.emplace_back(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
  }
  return inputs;
}

struct Counts {
  int64_t read = 0, refused = 0;
};

// An input, and mutations of it: each of the one before, some of the input itself.
void read(const std::string& input, int64_t mutations, uint32_t seed, Counts& counts) {
  const size_t most = input.size() + 4096;
  Draw draw(seed);
  std::string changed = input;
  for (int64_t i = 0; i <= mutations; ++i) {
    if (i > 0) changed = mutated(draw.one_in(2) ? input : changed, most, draw);
    ++(read_input(changed) == Verdict::read ? counts.read : counts.refused);
  }
}

}  // namespace

// A few bytes become others, or the end is cut off.
extern "C" size_t LLVMFuzzerMutate(uint8_t* data, size_t size, size_t most) {
  if (size == 0) return most > 0 ? 1 : 0;
  for (auto left = bytes_engine() % 4; left > 0; --left) {
    const auto kinds = {0x00u, 0x01u, 0x7fu, 0x80u, 0xffu, static_cast<unsigned>(bytes_engine() % 256)};
    data[bytes_engine() % size] = static_cast<uint8_t>(*(kinds.begin() + bytes_engine() % kinds.size()));
  }
  return bytes_engine() % 4 == 0 ? 1 + bytes_engine() % size : size;
}

int main(int count, char** arguments) {
  if (count == 1) {
    for (const Reader& reader : readers()) std::printf("%c  %s\n", reader.letter, reader.name);
    return 0;
  }
  if (count != 2 && count != 4) return 2;
  const int64_t mutations = count == 4 ? std::atoll(arguments[2]) : 0;
  const auto seed = static_cast<uint32_t>(count == 4 ? std::atoll(arguments[3]) : 0);
  std::map<char, Counts> all;
  uint32_t number = 0;
  for (const std::string& input : inputs_in(arguments[1]))
    read(input, mutations, seed + number++, all[input.empty() ? '?' : input[0]]);
  for (const auto& [letter, counts] : all)
    std::printf("%c %lld %lld\n", letter, static_cast<long long>(counts.read),
                static_cast<long long>(counts.refused));
}
