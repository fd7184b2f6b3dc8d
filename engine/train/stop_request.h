// Requests to stop a run, and a marker for slow file access.
#pragma once

#include <atomic>
#include <exception>
#include <memory>
#include <new>
#include <string>

#include "dp/error.h"
#include "dp/loader.h"
#include "dp/process_group.h"

namespace dp {

// Marks file access, which may take longer than the ranks' timeout.
class Busy {
 public:
  explicit Busy(ProcessGroup* group) : group_(group) {
    if (group_ != nullptr) group_->busy(true);
  }
  ~Busy() {
    if (group_ != nullptr) group_->busy(false);
  }
  Busy(const Busy&) = delete;
  Busy& operator=(const Busy&) = delete;

 private:
  ProcessGroup* group_;
};

// The text of an exception.
inline std::string message_of(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const std::bad_alloc&) {
    return "out of host memory";
  } catch (const std::exception& known) {
    return known.what();
  } catch (...) {
    return "an exception of unknown type";
  }
}

// A request to stop a run: from the program, or after an error that leaves the weights intact. Ranks combine their
// requests, so the answer is the same on every rank.
class StopRequest {
 public:
  // `flag` may be null.
  StopRequest(const std::atomic<int>* flag, std::shared_ptr<ProcessGroup> group)
      : flag_(flag), group_(std::move(group)) {}

  // With several ranks, every rank makes the same calls, and a request takes effect one call later.
  bool asked() {
    if (!asked_) asked_ = group_ ? group_->agree(here()) : here();
    return asked_;
  }
  // The same without the delay. Waits for all ranks.
  bool asked_now() {
    if (!group_) return asked();
    if (asked_) return true;
    for (const std::string& wish : group_->exchange(here() ? "1" : "0")) asked_ = asked_ || wish == "1";
    return asked_;
  }
  // Whether this process received a request or has failed.
  bool here() const { return failure_ || (flag_ != nullptr && flag_->load() != 0); }

  // Requests a stop because of the current exception.
  void fail() { failure_ = std::current_exception(); }
  bool failed() const { return failure_ != nullptr; }
  // Waits for the next `count` batches of a loader; if one cannot be prepared, the request is made. Returns false if
  // the loader's `stop` ended the wait.
  bool await(Loader& loader, std::int64_t count) {
    try {
      return failed() || loader.await(count);
    } catch (...) {
      fail();
      return true;
    }
  }
  // The message of the failure that caused the stop. Empty if the program requested it. Every rank calls this.
  std::string cause() {
    constexpr std::size_t kLongest = 2000;  // an exchange has a limit
    const std::string mine = failure_ ? "!" + message_of(failure_).substr(0, kLongest) : "";
    std::string first = mine;
    if (group_)
      for (const std::string& each : group_->exchange(mine))
        if (first.empty()) first = each;
    other_failed_ = !first.empty() && !failure_;
    return first.empty() ? first : first.substr(1);
  }
  // Throws the failure, if any. Every rank must call it after cause(). It first waits for all ranks, because a reported
  // failure ends all later calls in the group. The ranks without a failure then wait for the report.
  void rethrow() const {
    if (group_ && (failure_ || other_failed_)) try {
        group_->exchange("");
      } catch (const Error&) {
        if (!failure_) throw;
      }
    if (failure_) std::rethrow_exception(failure_);
    if (other_failed_) group_->exchange("");
  }

 private:
  const std::atomic<int>* flag_;
  std::shared_ptr<ProcessGroup> group_;
  bool asked_ = false, other_failed_ = false;
  std::exception_ptr failure_;
};

}  // namespace dp
