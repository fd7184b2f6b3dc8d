// What a communicator across processes needs of the world that its process is a rank of: a place to tell the other ranks a
// few bytes before data can flow.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace dp::kernels {

class Rendezvous {
 public:
  virtual ~Rendezvous() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual int local_rank() const = 0;  // among the ranks that share this rank's host, by rank
  virtual int local_size() const = 0;
  // Whether all ranks run on one host and see each other's processes: shared memory can carry data.
  virtual bool one_host() const = 0;
  // The address of this host by which rank 0 was reached, numeric: where other ranks can reach this one.
  virtual std::string own_address() const = 0;
  virtual double timeout_seconds() const = 0;  // how long a missing rank is waited for

  // What every rank gave, in rank order; at most 64 KiB each. All ranks call it the same number of times in the same order.
  // Throws what ended the world, or Error(timeout) naming the ranks that did not come.
  virtual std::vector<std::string> exchange(std::string_view mine) = 0;
};

}  // namespace dp::kernels
