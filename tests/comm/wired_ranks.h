// Ranks as threads whose communicators have a wire in memory: tests of WireCommunicator and its communication thread.
#pragma once

#include <condition_variable>
#include <cstring>
#include <memory>
#include <mutex>
#include <vector>

#include "host/rank_group.h"
#include "kernels/comm/host_communicator.h"
#include "kernels/comm/wire_communicator.h"

namespace dp::test {

// What the wires of one communicator share.
class WireBoard {
 public:
  explicit WireBoard(int size) : jobs(static_cast<std::size_t>(size)) {}

  // Returns when all ranks are here. Throws Aborted if this rank's call is halted.
  void meet(const kernels::Halt& halt) {
    std::unique_lock lock(mutex_);
    const int round = round_;
    if (++arrived_ == static_cast<int>(jobs.size())) {
      arrived_ = 0;
      ++round_;
      all_here_.notify_all();
    }
    while (round_ == round) {
      all_here_.wait_for(lock, std::chrono::milliseconds(1));
      if (halt.asked()) throw kernels::Aborted();
    }
  }
  std::vector<const kernels::WireJob*> jobs;  // of the current call, by rank

 private:
  std::mutex mutex_;
  std::condition_variable all_here_;
  int arrived_ = 0, round_ = 0;
};

class MemoryWire final : public kernels::Wire {
 public:
  MemoryWire(std::shared_ptr<WireBoard> board, int rank) : board_(std::move(board)), rank_(rank) {}
  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(board_->jobs.size()); }
  std::string name() const override { return "memory"; }

  // Reads the arrays of all ranks, then writes this rank's.
  void run(const kernels::WireJob& job, const kernels::Halt& halt) override {
    using kernels::Collective;
    board_->jobs[static_cast<std::size_t>(rank_)] = &job;
    board_->meet(halt);
    for (int other = 0; other < size(); ++other)
      kernels::require_same_call(name(), job.number, rank_, job.call, other, of(other).call);
    const bool root = rank_ == job.call.root;
    switch (job.call.kind) {
      case Collective::broadcast: read(of(job.call.root), {0, job.call.count}); break;
      case Collective::all_reduce: add({0, job.call.count}); break;
      case Collective::reduce: add({0, root ? job.call.count : 0}); break;
      case Collective::reduce_scatter: add(kernels::owned_by(job.call, rank_, size())); break;
      case Collective::all_gather:
      case Collective::all_gather_parts:
        result_.clear(), at_ = 0;
        for (int owner = 0; owner < size(); ++owner) append(of(owner), kernels::owned_by(job.call, owner, size()));
        break;
      case Collective::gather:
        result_.clear(), at_ = 0;
        for (int rank = 0; root && rank < size(); ++rank)
          append(of(rank).part, job.bytes[static_cast<std::size_t>(rank)]);
        break;
      case Collective::scatter: {
        std::size_t begin = 0;
        for (int rank = 0; rank < rank_; ++rank) begin += job.bytes[static_cast<std::size_t>(rank)];
        result_.clear(), at_ = 0;
        append(static_cast<const char*>(of(job.call.root).data) + begin, job.bytes[static_cast<std::size_t>(rank_)]);
      }
    }
    board_->meet(halt);
    if (result_.empty()) return;
    char* const to = static_cast<char*>(job.call.kind == Collective::scatter ? job.part : job.data);
    std::memcpy(to + at_, result_.data(), result_.size());
  }

 private:
  const kernels::WireJob& of(int rank) const { return *board_->jobs[static_cast<std::size_t>(rank)]; }
  static std::size_t element(const kernels::WireJob& job) { return size_of(job.call.type); }
  void append(const void* from, std::size_t bytes) {
    result_.insert(result_.end(), static_cast<const char*>(from), static_cast<const char*>(from) + bytes);
  }
  void append(const kernels::WireJob& job, kernels::Range range) {
    append(static_cast<const char*>(job.data) + static_cast<std::size_t>(range.begin) * element(job),
           static_cast<std::size_t>(range.size()) * element(job));
  }
  void read(const kernels::WireJob& job, kernels::Range range) {
    result_.clear();
    at_ = static_cast<std::size_t>(range.begin) * element(job);
    append(job, range);
  }
  // The sum of `range` over all ranks, in the fixed order.
  void add(kernels::Range range) {
    const kernels::WireJob& job = of(rank_);
    at_ = static_cast<std::size_t>(range.begin) * element(job);
    result_.resize(static_cast<std::size_t>(range.size()) * element(job));
    summands_.clear();
    for (int rank = 0; rank < size(); ++rank)
      for (int i = 0; i < job.call.summands; ++i)
        summands_.push_back(static_cast<char*>(of(rank).data) +
                            static_cast<std::size_t>(range.begin + i * job.stride) * element(job));
    void* const sum[] = {result_.data()};
    const kernels::Range all{0, range.size()};
    switch (job.call.type) {
      case DType::f32: return kernels::tree_sum<float>(summands_, sum, all, 1);
      case DType::f64: return kernels::tree_sum<double>(summands_, sum, all, 1);
      default: return kernels::tree_sum<kernels::BFloat16>(summands_, sum, all, 1);
    }
  }

  const std::shared_ptr<WireBoard> board_;
  const int rank_;
  std::vector<char> result_;  // of this rank
  std::size_t at_ = 0;        // its place in the rank's array, in bytes
  std::vector<void*> summands_;
};

class WiredRankGroup : public RankGroup {
 public:
  explicit WiredRankGroup(int size, kernels::ContextOptions options = {})
      : RankGroup(size, options), joined_(static_cast<std::size_t>(size)) {}

  // The rank's handle. Each rank calls it the same number of times: its n-th handle belongs to the n-th communicator.
  std::unique_ptr<kernels::Communicator> join(int rank) {
    const auto me = static_cast<std::size_t>(rank);
    return std::make_unique<kernels::WireCommunicator>(std::make_unique<MemoryWire>(board(joined_[me]++), rank),
                                                       *contexts[me]);
  }

 private:
  std::shared_ptr<WireBoard> board(std::size_t number) {
    const std::lock_guard lock(mutex_);
    while (boards_.size() <= number) boards_.push_back(std::make_shared<WireBoard>(static_cast<int>(contexts.size())));
    return boards_[number];
  }

  std::mutex mutex_;
  std::vector<std::shared_ptr<WireBoard>> boards_;
  std::vector<std::size_t> joined_;
};

}  // namespace dp::test
