// Each collective of a communicator, timed and checked on one rank.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "kernels/backend.h"

namespace dp::benchmarks {

struct Collective {
  enum class Kind { broadcast, reduce, all_reduce, reduce_scatter, all_gather, all_gather_parts, gather, scatter };
  Kind kind;
  std::string name;
  bool sums, rooted;
};
const std::vector<Collective>& all_collectives();

// Of one rank; every rank makes the same calls. All float32; `count` elements are the whole that a collective is about, as
// nccl-tests counts them; root is 0.
class Collectives {
 public:
  Collectives(kernels::Communicator& communicator, kernels::Context& context, kernels::Stream& stream,
              std::int64_t most_bytes);
  // Elements that are not what they should be after one call, on this rank.
  std::int64_t check(const Collective& which, std::int64_t count);
  double time(const Collective& which, std::int64_t count, int calls);  // seconds of all of them

 private:
  void fill(const Collective& which, std::int64_t count);
  void call(const Collective& which, std::int64_t count);
  float* data() { return static_cast<float*>(data_->data()); }
  float* part() { return static_cast<float*>(part_->data()); }
  std::int64_t part_count(std::int64_t count) const;  // of equal parts

  kernels::Communicator& communicator_;
  kernels::Stream& stream_;
  std::unique_ptr<kernels::Buffer> data_, part_;
  std::vector<float> host_;
  std::vector<std::size_t> part_bytes_;
};

}  // namespace dp::benchmarks
