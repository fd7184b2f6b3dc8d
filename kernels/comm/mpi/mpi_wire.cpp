// The MPI plugin: a wire that uses MPI. It exports one function, dp_mpi_plugin().
#include <mpi.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <memory>
#include <string>
#include <thread>

#include "dp/error.h"
#include "kernels/comm/mpi/mpi_plugin.h"
#include "kernels/comm/wire.h"
#include "kernels/device/host/spin.h"

namespace dp::kernels::mpi {
namespace {

// Throws Error(device) if an MPI call fails.
void check(int result, const char* call) {
  if (result == MPI_SUCCESS) return;
  char text[MPI_MAX_ERROR_STRING] = {};
  int length = 0;
  MPI_Error_string(result, text, &length);
  throw Error(ErrorCode::device, std::string(call) + " failed: " + std::string(text, static_cast<std::size_t>(length)) +
                                     "; see MPI's output");
}

// Polls before the thread sleeps between polls. MPI makes progress only while it is called.
constexpr int kEagerLooks = 3000;
constexpr auto kNap = std::chrono::microseconds(20);

MPI_Datatype type_of(DType type) {
  switch (type) {
    case DType::f32: return MPI_FLOAT;
    case DType::f64: return MPI_DOUBLE;
    case DType::bf16: return MPI_UINT16_T;  // transferred only; bfloat16 is not reduced
    default: return MPI_BYTE;
  }
}

// The communicator "mpi". The MPI library chooses the summation order of its reductions.
class MpiWire final : public Wire {
 public:
  explicit MpiWire(std::int64_t most) : most_(most) {
    check(MPI_Comm_dup(MPI_COMM_WORLD, &ranks_), "MPI_Comm_dup");
    MPI_Comm_set_errhandler(ranks_, MPI_ERRORS_RETURN);
    MPI_Comm_rank(ranks_, &rank_);
    MPI_Comm_size(ranks_, &size_);
    calls_.resize(static_cast<std::size_t>(size_));
    requests_.reserve(256);
  }
  ~MpiWire() override {
    int finished = 0;
    MPI_Finalized(&finished);
    if (finished == 0 && requests_.empty()) MPI_Comm_free(&ranks_);
  }

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  std::string name() const override { return "mpi"; }

  void run(const WireJob& job, const Halt& halt) override {
    compare(job, halt);
    if (is_sum(job.call.kind) && job.call.type == DType::bf16)
      throw Error(ErrorCode::usage, "communicator mpi supports float32 and float64, not bfloat16; use host");
    job_ = &job;
    type_ = type_of(job.call.type);
    element_ = size_of(job.call.type);
    switch (job.call.kind) {
      case Collective::broadcast: broadcast(at(0), {0, job.call.count}, job.call.root); break;
      case Collective::all_gather:
      case Collective::all_gather_parts:
        for (int owner = 0; owner < size_; ++owner) broadcast(at(0), owned_by(job.call, owner, size_), owner);
        break;
      case Collective::all_reduce: all_reduce(own_sum()); break;
      case Collective::reduce: reduce(own_sum(), {0, job.call.count}, job.call.root); break;
      case Collective::reduce_scatter: {
        char* const sum = own_sum();
        for (int owner = 0; owner < size_; ++owner) reduce(sum, owned_by(job.call, owner, size_), owner);
        break;
      }
      case Collective::gather: move_parts(false); break;
      case Collective::scatter: move_parts(true); break;
    }
    finish_requests(halt);
  }

 private:
  struct AnnouncedCall {  // sent as raw bytes, but compared by members, hence padding bytes do not matter
    std::uint64_t number = 0;
    CollectiveCall call;
  };

  void compare(const WireJob& job, const Halt& halt) {
    AnnouncedCall mine;
    mine.number = job.number;
    mine.call = job.call;
    check(MPI_Iallgather(&mine, sizeof mine, MPI_BYTE, calls_.data(), sizeof mine, MPI_BYTE, ranks_, &next_request()),
          "MPI_Iallgather");
    finish_requests(halt);
    for (int other = 0; other < size_; ++other)
      require_same_call("mpi", job.number, rank_, job.call, other, calls_[static_cast<std::size_t>(other)].call);
  }

  char* at(std::int64_t element) const {
    return static_cast<char*>(job_->data) + static_cast<std::size_t>(element) * element_;
  }
  MPI_Request& next_request() { return requests_.emplace_back(MPI_REQUEST_NULL); }

  // This rank's contribution: its values, or the sum of its summands.
  char* own_sum() {
    if (job_->call.summands == 1) return at(0);
    sum_.resize(std::max(sum_.size(), static_cast<std::size_t>(job_->call.count) * element_));
    job_->call.type == DType::f32 ? add_summands<float>() : add_summands<double>();
    return sum_.data();
  }
  template <typename T>
  void add_summands() {
    T* const sum = reinterpret_cast<T*>(sum_.data());
    std::memcpy(sum, job_->data, static_cast<std::size_t>(job_->call.count) * sizeof(T));
    for (int i = 1; i < job_->call.summands; ++i) {
      const T* const more = reinterpret_cast<const T*>(at(i * job_->stride));
      for (std::int64_t k = 0; k < job_->call.count; ++k) sum[k] += more[k];
    }
  }

  // Calls do_piece(first element, count) for pieces of at most most_ elements, because MPI counts are int.
  template <typename DoPiece>
  void in_pieces(Range range, DoPiece do_piece) const {
    for (std::int64_t begin = range.begin; begin < range.end; begin += most_)
      do_piece(begin, static_cast<int>(std::min(most_, range.end - begin)));
  }
  char* of(char* base, std::int64_t element) const { return base + static_cast<std::size_t>(element) * element_; }

  void broadcast(char* base, Range range, int root) {
    in_pieces(range, [&](std::int64_t begin, int count) {
      check(MPI_Ibcast(of(base, begin), count, type_, root, ranks_, &next_request()), "MPI_Ibcast");
    });
  }
  void all_reduce(char* sum) {
    in_pieces({0, job_->call.count}, [&](std::int64_t begin, int count) {
      const void* const from = sum == at(0) ? MPI_IN_PLACE : of(sum, begin);
      check(MPI_Iallreduce(from, at(begin), count, type_, MPI_SUM, ranks_, &next_request()), "MPI_Iallreduce");
    });
  }
  void reduce(char* sum, Range range, int root) {
    in_pieces(range, [&](std::int64_t begin, int count) {
      const bool in_place = rank_ == root && sum == at(0);
      const void* const from = in_place ? MPI_IN_PLACE : of(sum, begin);
      void* const to = rank_ == root ? at(begin) : nullptr;
      check(MPI_Ireduce(from, to, count, type_, MPI_SUM, root, ranks_, &next_request()), "MPI_Ireduce");
    });
  }

  void move_parts(bool from_root) {
    const auto mine = static_cast<std::int64_t>(job_->bytes[static_cast<std::size_t>(rank_)]);
    const int root = job_->call.root;
    char* const part = static_cast<char*>(job_->part);
    if (rank_ != root) return move(part, mine, root, !from_root);
    std::int64_t begin = 0;
    for (int peer = 0; peer < size_; ++peer) {
      const auto bytes = static_cast<std::int64_t>(job_->bytes[static_cast<std::size_t>(peer)]);
      char* const place = at(begin);
      begin += bytes;
      if (peer != rank_) {
        move(place, bytes, peer, from_root);
      } else if (bytes > 0 && place != part) {
        from_root ? std::memcpy(part, place, job_->bytes[static_cast<std::size_t>(peer)])
                  : std::memcpy(place, part, job_->bytes[static_cast<std::size_t>(peer)]);
      }
    }
  }
  void move(char* base, std::int64_t bytes, int peer, bool send) {
    in_pieces({0, bytes}, [&](std::int64_t begin, int count) {
      if (send)
        check(MPI_Isend(of(base, begin), count, MPI_BYTE, peer, 0, ranks_, &next_request()), "MPI_Isend");
      else
        check(MPI_Irecv(of(base, begin), count, MPI_BYTE, peer, 0, ranks_, &next_request()), "MPI_Irecv");
    });
  }

  void finish_requests(const Halt& halt) {
    Spinner spinner;
    for (int looks = 0;; ++looks) {
      int done = 0;
      check(MPI_Testall(static_cast<int>(requests_.size()), requests_.data(), &done, MPI_STATUSES_IGNORE),
            "MPI_Testall");
      if (done != 0) break;
      if (halt.asked()) throw Aborted();
      if (looks < kEagerLooks)
        spinner.wait();
      else
        std::this_thread::sleep_for(kNap);
    }
    requests_.clear();
  }

  const std::int64_t most_;
  MPI_Comm ranks_ = MPI_COMM_NULL;
  int rank_ = 0, size_ = 0;
  std::vector<AnnouncedCall> calls_;
  std::vector<MPI_Request> requests_;  // not empty between calls if the last call was halted
  const WireJob* job_ = nullptr;
  MPI_Datatype type_ = MPI_BYTE;
  std::size_t element_ = 1;
  std::vector<char> sum_;
};

// Collective. Uses a duplicate of MPI_COMM_WORLD. Passes at most `most` elements at a time to the library.
//
// A halted call stays pending in the library, which may still write to the call's memory during later calls. End the
// process after a halt.
std::unique_ptr<Wire> make_wire(std::int64_t most) { return std::make_unique<MpiWire>(most); }

constexpr int kMostText = 64 * 1024;

class MpiLibrary final : public Mpi {
 public:
  std::string version() const override {
    char text[MPI_MAX_LIBRARY_VERSION_STRING] = {};
    int length = 0;
    MPI_Get_library_version(text, &length);
    const std::string all(text, static_cast<std::size_t>(length));
    return all.substr(0, all.find_first_of(",\n"));
  }

  void start() override {
    if (finished_)
      throw Error(ErrorCode::usage,
                  "MPI was finalized in this process and cannot be initialized again; start a new process");
    if (started_) return;
    int granted = MPI_THREAD_SINGLE;
    check(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &granted), "MPI_Init_thread");
    started_ = true;
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    if (granted < MPI_THREAD_MULTIPLE)
      throw Error(ErrorCode::usage, version() + " does not support calls from several threads (level " +
                                        std::to_string(granted) +
                                        "), but communicators require MPI_THREAD_MULTIPLE; use a library that was "
                                        "built with it, or another communicator");
  }
  bool started() const override { return started_ && !finished_; }

  int rank() const override { return ask(MPI_Comm_rank); }
  int size() const override { return ask(MPI_Comm_size); }

  std::string broadcast(std::string_view from_rank_0) override {
    if (rank() == 0 && from_rank_0.size() > kMostText)
      throw Error(ErrorCode::usage, "a text of " + std::to_string(from_rank_0.size()) +
                                        " bytes is too long for a broadcast; the limit is 65536");
    int length = static_cast<int>(from_rank_0.size());
    check(MPI_Bcast(&length, 1, MPI_INT, 0, MPI_COMM_WORLD), "MPI_Bcast");
    std::string text(from_rank_0);
    text.resize(static_cast<std::size_t>(length));
    check(MPI_Bcast(text.data(), length, MPI_BYTE, 0, MPI_COMM_WORLD), "MPI_Bcast");
    return text;
  }

  std::unique_ptr<Wire> make_wire(std::int64_t most) override { return mpi::make_wire(most); }

  void finish() override {
    if (started()) MPI_Finalize();
    finished_ = started_;
  }

  void abort(int code) override {
    MPI_Abort(MPI_COMM_WORLD, code);
    std::_Exit(code);
  }

 private:
  static int ask(int (*question)(MPI_Comm, int*)) {
    int answer = 0;
    check(question(MPI_COMM_WORLD, &answer), "MPI_Comm_rank or MPI_Comm_size");
    return answer;
  }
  bool started_ = false, finished_ = false;
};

}  // namespace

}  // namespace dp::kernels::mpi

extern "C" __attribute__((visibility("default"))) void* dp_mpi_plugin(const char* abi, const char** own_abi) {
  static dp::kernels::mpi::MpiLibrary library;
  *own_abi = DP_ABI_HASH;
  return std::strcmp(abi, DP_ABI_HASH) == 0 ? static_cast<dp::kernels::Mpi*>(&library) : nullptr;
}
