#include "runs.h"

#include <algorithm>
#include <stdexcept>
#include <string>

namespace padfree {

std::vector<Run> runs_of(const int32_t* seq_idx, int64_t batch, int64_t length) {
  std::vector<Run> runs;
  for (int64_t b = 0; b < batch; ++b) {
    const int32_t* row = seq_idx + b * length;
    for (int64_t begin = 0, end; begin < length; begin = end) {
      if (seq_idx == nullptr) {
        end = length;
        runs.push_back({b, begin, end, b});
        continue;
      }
      const int32_t number = row[begin];
      end = std::find_if(row + begin, row + length, [&](int32_t other) { return other != number; }) - row;
      runs.push_back({b, begin, end, number});
    }
  }
  return runs;
}

void check_numbers(const char* op, const std::vector<Run>& runs, const char* states, int64_t rows) {
  std::vector<int64_t> numbers;  // as many as runs, however many rows a caller claims
  for (const Run& run : runs) {
    if (run.number < 0) continue;
    if (run.number >= rows) {
      throw std::runtime_error(std::string(op) + ": seq_idx must be below the " + std::to_string(rows) +
                               " rows of " + states + ", got " + std::to_string(run.number));
    }
    numbers.push_back(run.number);
  }
  std::sort(numbers.begin(), numbers.end());
  const auto twice = std::adjacent_find(numbers.begin(), numbers.end());
  if (twice != numbers.end()) {
    throw std::runtime_error(std::string(op) +
                             ": seq_idx must number each sequence differently where states are passed, got " +
                             std::to_string(*twice) + " twice");
  }
}

}  // namespace padfree
