// Times and checks each collective of a communicator on one rank.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "kernels/device/backend.h"

namespace dp::benchmarks {

struct TimedCollective {
  enum class Kind { broadcast, reduce, all_reduce, reduce_scatter, all_gather, all_gather_parts, gather, scatter };
  Kind kind;
  std::string name;
  bool sums, rooted;
};
const std::vector<TimedCollective>& all_collectives();

// The collectives of one rank. All ranks must make the same calls. float32; root is 0. `count` is the total number of
// elements of a collective, as in nccl-tests.
class Collectives {
 public:
  Collectives(kernels::Communicator& communicator, kernels::Context& context, kernels::Stream& stream,
              std::int64_t most_bytes);
  // Makes one call. Returns the number of wrong elements on this rank.
  std::int64_t check(const TimedCollective& which, std::int64_t count);
  double time(const TimedCollective& which, std::int64_t count, int calls);  // seconds of all calls

 private:
  void fill(const TimedCollective& which, std::int64_t count);
  void call(const TimedCollective& which, std::int64_t count);
  float* data() { return static_cast<float*>(data_->data()); }
  float* part() { return static_cast<float*>(part_->data()); }
  std::int64_t part_count(std::int64_t count) const;  // elements per equal part

  kernels::Communicator& communicator_;
  kernels::Stream& stream_;
  std::unique_ptr<kernels::Buffer> data_, part_;
  std::vector<float> host_;
  std::vector<std::size_t> part_bytes_;
};

}  // namespace dp::benchmarks
