// Ranks as threads that connect like processes: through a Rendezvous, here in memory.
#pragma once

#include <condition_variable>
#include <functional>
#include <mutex>
#include <string>
#include <vector>

#include "host/rank_group.h"
#include "kernels/comm/join.h"

namespace dp::test {

class ExchangeBoard {
 public:
  explicit ExchangeBoard(int size) : given_(static_cast<std::size_t>(size)) {}

  std::vector<std::string> exchange(int rank, std::string_view mine) {
    std::unique_lock lock(mutex_);
    const int round = round_;
    given_[static_cast<std::size_t>(rank)] = mine;
    if (++arrived_ == static_cast<int>(given_.size())) {
      arrived_ = 0;
      ++round_;
      result_ = given_;
      all_there_.notify_all();
    } else {
      all_there_.wait(lock, [&] { return round_ != round; });
    }
    return result_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable all_there_;
  std::vector<std::string> given_, result_;
  int arrived_ = 0, round_ = 0;
};

class ThreadRendezvous final : public kernels::Rendezvous {
 public:
  ThreadRendezvous(ExchangeBoard& board, int rank, int size) : board_(board), rank_(rank), size_(size) {}

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  int local_rank() const override { return rank_; }
  int local_size() const override { return size_; }
  bool one_host() const override { return true; }
  std::string own_address() const override { return address; }
  double timeout_seconds() const override { return timeout; }
  std::vector<std::string> exchange(std::string_view mine) override {
    auto all = board_.exchange(rank_, mine);
    if (seen) seen(all);
    return all;
  }

  std::string address = "127.0.0.1";
  double timeout = 20;
  std::function<void(std::vector<std::string>&)> seen;  // inspects or modifies what this rank receives

 private:
  ExchangeBoard& board_;
  const int rank_, size_;
};

// Calls body(rank, context, join) on a thread per rank. join(name) returns the rank's communicator.
class JoiningRankGroup : public RankGroup {
 public:
  explicit JoiningRankGroup(int size, kernels::ContextOptions options = {}) : RankGroup(size, options), board_(size) {
    for (int rank = 0; rank < size; ++rank) ranks.push_back(ThreadRendezvous(board_, rank, size));
  }
  std::unique_ptr<kernels::Communicator> join(int rank, std::string_view name = "tcp") {
    const auto me = static_cast<std::size_t>(rank);
    return kernels::join_from_host(name, *contexts[me], ranks[me]);
  }

  std::vector<ThreadRendezvous> ranks;

 private:
  ExchangeBoard board_;
};

}  // namespace dp::test
