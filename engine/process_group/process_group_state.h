// Implementation of ProcessGroup: the connection to rank 0, and the interface for communicators.
#pragma once

#include <condition_variable>
#include <map>
#include <mutex>
#include <thread>
#include <vector>

#include "dp/process_group.h"
#include "engine/process_group/coordinator.h"
#include "kernels/device/backend.h"

namespace dp {

struct ProcessGroup::State final : kernels::Rendezvous {
  explicit State(const ProcessGroupOptions& options);
  ~State() override;

  int rank() const override { return options.rank; }
  int size() const override { return options.size; }
  int local_rank() const override { return local_rank_; }
  int local_size() const override { return local_size_; }
  bool one_host() const override { return local_size_ == options.size; }
  double timeout_seconds() const override { return options.timeout_seconds; }
  std::vector<std::string> exchange(std::string_view mine) override { return wait(give(mine)); }

  // The two halves of exchange(): give() sends, wait() returns all parts.
  std::uint64_t give(std::string_view mine);
  std::vector<std::string> wait(std::uint64_t number);
  bool agree(bool wish);

  void busy(bool is);
  void fail(const Error& error);
  std::optional<Error> failure();

  // Returns within a second the ranks that do not respond, because their process or host is stopped; {0} if rank 0 does
  // not respond. Empty after a failure.
  std::vector<int> silent_ranks();

  // Registers a flag that a failure of the group raises. Raises it at once if the group has failed already.
  void attach(kernels::AbortFlag* flag);
  void detach(kernels::AbortFlag* flag);

  const ProcessGroupOptions options;
  std::vector<process_group::Hello> ranks;

 private:
  void join();
  void greet(int port, double limit, double& waited);
  void leave();
  bool interrupted() const { return options.stop != nullptr && options.stop->load() != 0; }
  void read();
  void lose(bool closed);
  void take(const process_group::Message& message);
  process_group::Failure not_rank_0(ErrorCode code, const std::string& what) const;
  void end_by(const process_group::Failure& failure);  // requires mutex_
  // The same, and reports the failure to the other ranks. For failures that rank 0 has not sent. Requires mutex_.
  void end_all_by(const process_group::Failure& failure);
  void send(const process_group::Message& message);
  [[noreturn]] void rethrow() const;

  engine::TimeSource& time_ = *engine::test_modes().time;
  std::unique_ptr<process_group::Coordinator> coordinator_;  // on rank 0 only
  std::optional<process_group::Connection> connection_;
  int local_rank_ = 0, local_size_ = 1;
  std::uint64_t given_ = 0;
  int put_off_ = 0;  // number of Kind::busy messages received
  std::optional<std::uint64_t> vote_;
  const int exceptions_;  // std::uncaught_exceptions() at construction

  std::mutex mutex_;
  std::condition_variable changed_;
  bool accepted_ = false, welcome_ = false, leaving_ = false;
  bool failed_ = false;   // this rank has reported a failure
  bool dropped_ = false;  // rank 0 has closed the connection without an answer
  std::optional<process_group::Failure> failure_;
  std::map<std::uint64_t, std::vector<std::string>> results_;
  std::optional<std::vector<int>> silent_;  // rank 0's latest answer
  std::vector<kernels::AbortFlag*> flags_;
  process_group::WakeUp wake_;
  std::thread reader_;
};

}  // namespace dp
