// A sum over threads: `racy sum` as it should be, `racy race` without anything that orders the additions.
#include <string_view>

int main(int count, char** arguments) {
  int sum = 0;
  if (count == 2 && std::string_view(arguments[1]) == "race") {
#pragma omp parallel for
    for (int i = 0; i < 1000; ++i) sum += i;
  } else {
#pragma omp parallel for reduction(+ : sum)
    for (int i = 0; i < 1000; ++i) sum += i;
#pragma omp parallel for
    for (int i = 0; i < 1000; ++i) {
#pragma omp critical
      sum += i;
    }
  }
  return sum == -1;
}
