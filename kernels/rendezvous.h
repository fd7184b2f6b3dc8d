// The part of a process group that a communicator needs to connect processes: an exchange of short messages before data
// can flow.
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
  virtual int local_rank() const = 0;  // index among the ranks on this host, in rank order
  virtual int local_size() const = 0;
  // Whether all ranks run on one host and can see each other's processes, so that shared memory can carry data.
  virtual bool one_host() const = 0;
  virtual double timeout_seconds() const = 0;  // limit of a wait for a missing rank

  // All-gather of short messages: returns `mine` of every rank, in rank order; at most 64 KiB each. All ranks call it
  // the same number of times in the same order. Throws the error that ended the process group, or Error(timeout) with
  // the missing ranks.
  virtual std::vector<std::string> exchange(std::string_view mine) = 0;
};

}  // namespace dp::kernels
