// How ranks describe, announce and compare their collective calls.
#include "kernels/comm/host_communicator.h"

#include <unistd.h>

#include <cstring>
#include <utility>

#include "dp/error.h"
#include "support/catch.h"

using namespace dp;
using namespace dp::kernels;

namespace {

constexpr CollectiveCall kSum{Collective::all_reduce, DType::f32, 0, 20, 0, 1};

std::string mismatch(const CollectiveCall& mine, const CollectiveCall& theirs) {
  try {
    require_same_call("test", 4, 1, mine, 0, theirs);
  } catch (const Error& error) {
    CHECK(error.code() == ErrorCode::usage);
    return error.what();
  }
  return "";
}

}  // namespace

TEST_CASE("calls: the description has the kind, the size, the type or bytes, the root and the summands") {
  const std::pair<CollectiveCall, const char*> rows[] = {
      {{Collective::broadcast, DType::f32, 2, 10, 0, 1}, "broadcast of 10 float32 elements with root 2"},
      {{Collective::reduce, DType::f64, 1, 0, 0, 1}, "reduce of 0 float64 elements with root 1"},
      {{Collective::reduce, DType::f32, 0, 9, 0, 3}, "reduce of 9 float32 elements with root 0, 3 summands per rank"},
      {{Collective::all_reduce, DType::bf16, 0, 11, 0, 1}, "all_reduce of 11 bfloat16 elements"},
      {{Collective::all_reduce, DType::f32, 0, 11, 0, 2}, "all_reduce of 11 float32 elements, 2 summands per rank"},
      {{Collective::reduce_scatter, DType::f32, 0, 12, 0, 1}, "reduce_scatter of 12 float32 elements"},
      {{Collective::all_gather, DType::f32, 0, 13, 0, 1}, "all_gather of 13 float32 elements"},
      {{Collective::all_gather_parts, DType::u8, 0, 14, 0, 1}, "all_gather_parts of 14 bytes"},
      {{Collective::gather, DType::u8, 3, 15, 99, 1}, "gather of 15 bytes with root 3"},
      {{Collective::scatter, DType::u8, 0, 16, 99, 1}, "scatter of 16 bytes with root 0"}};
  for (const auto& [call, text] : rows) CHECK(to_string(call) == text);
}

TEST_CASE("calls: an error about calls that differ in any property quotes both calls") {
  const std::string begin = "communicator test, call 4: rank 1 calls all_reduce of 20 float32 elements, rank 0 calls ",
                    end = "; every rank must make the same calls in the same order";
  CHECK(mismatch(kSum, kSum).empty());
  CollectiveCall other = kSum;
  other.kind = Collective::all_gather;
  CHECK(mismatch(kSum, other) == begin + "all_gather of 20 float32 elements" + end);
  other = kSum;
  other.type = DType::f64;
  CHECK(mismatch(kSum, other) == begin + "all_reduce of 20 float64 elements" + end);
  other = kSum;
  other.count = 21;
  CHECK(mismatch(kSum, other) == begin + "all_reduce of 21 float32 elements" + end);
  other = kSum;
  other.summands = 2;
  CHECK(mismatch(kSum, other) == begin + "all_reduce of 20 float32 elements, 2 summands per rank" + end);
  other = kSum;
  other.parts_hash = 1;
  CHECK(mismatch(kSum, other) == begin + "all_reduce of 20 float32 elements in parts of other sizes" + end);
  other.count = 21;
  CHECK(mismatch(kSum, other) == begin + "all_reduce of 21 float32 elements" + end);
  const auto hash = [](std::size_t first, std::size_t second) {
    return hash_part(hash_part(kEmptyPartsHash, first), second);
  };
  CHECK(hash(8, 12) != hash(12, 8));
  CHECK(hash(0, 20) != hash(20, 0));
  CHECK(hash(8, 12) == hash(8, 12));
}

TEST_CASE("call board: a rank may be sixteen calls ahead of the slowest one") {
  CallBoard board("test", 3);
  CHECK(board.size() == 3);
  for (std::uint64_t call = 0; call < 16; ++call) REQUIRE(board.announce(0, call, kSum, nullptr));
  CHECK_FALSE(board.announce(0, 16, kSum, nullptr));
  board.leave(0, 0);
  board.leave(1, 2);
  CHECK_FALSE(board.announce(0, 16, kSum, nullptr));  // rank 2 still uses call 0
  board.leave(2, 1);
  CHECK(board.announce(0, 16, kSum, nullptr));
  CHECK_FALSE(board.announce(0, 17, kSum, nullptr));  // rank 0 has not left call 1
  board.leave(0, 5);
  CHECK(board.announce(0, 17, kSum, nullptr));
  CHECK_FALSE(board.announce(0, 18, kSum, nullptr));  // rank 2 has left two calls
}

TEST_CASE("call board: ranks see each other's calls, data and progress") {
  CallBoard board("test", 2);
  int values[4] = {};
  for (std::uint64_t call = 0; call < 20; ++call) {  // more than the board keeps
    CHECK_FALSE(board.met(0, 0, call));
    CHECK(board.announce(0, call, kSum, &values[call % 2]));
    CHECK(board.met(0, 0, call));
    CHECK_FALSE(board.met(0, 1, call));
    CHECK(board.announce(1, call, kSum, &values[2 + call % 2]));
    CHECK(board.met(0, 1, call));
    CHECK(board.met(1, 0, call));
    CHECK(board.data(0, call) == &values[call % 2]);
    CHECK(board.data(1, call) == &values[2 + call % 2]);
    board.finish(0, call);
    CHECK_FALSE(board.all_finished(call));
    board.finish(1, call);
    CHECK(board.all_finished(call));
    CHECK_FALSE(board.all_finished(call + 1));
    for (const int rank : {0, 1}) board.leave(rank, call);
  }
  CollectiveCall other = kSum;
  other.count = 21;
  board.announce(0, 20, kSum, nullptr);
  board.announce(1, 20, other, nullptr);
  CHECK_THROWS_WITH(board.met(1, 0, 20),
                    "communicator test, call 20: rank 1 calls all_reduce of 21 float32 elements, "
                    "rank 0 calls all_reduce of 20 float32 elements; every rank must make the "
                    "same calls in the same order");
}

TEST_CASE("call board: processes reach each other's data in shared memory, and other data is rejected") {
  const std::shared_ptr<Buffer> lines = allocate_shared(CallBoard::lines_bytes(2));
  const std::vector<pid_t> processes(2, ::getpid());  // this process plays both
  CallBoard first("host", 2, lines->data(), lines, std::make_unique<PeerMemory>(processes));
  CallBoard second("host", 2, lines->data(), lines, std::make_unique<PeerMemory>(processes));
  const auto memory = allocate_shared(10000);
  char* const own = static_cast<char*>(memory->data()) + 5000;
  std::strcpy(own, "shared");
  CHECK(first.announce(0, 0, kSum, own));
  CHECK(second.announce(1, 0, kSum, nullptr));
  CHECK(second.met(1, 0, 0));
  char* const seen = static_cast<char*>(second.data(0, 0));
  CHECK(seen != own);  // mapped a second time
  CHECK(std::string(seen) == "shared");
  std::strcpy(seen, "changed");
  CHECK(std::string(own) == "changed");
  CHECK(second.data(1, 0) == nullptr);

  char outside[4] = {};
  CollectiveCall call = kSum;
  CHECK_THROWS_WITH(first.announce(0, 1, call, outside),
                    "communicator host: the data of all_reduce of 20 float32 elements is not in shared memory, so "
                    "other processes cannot read it; allocate it with the replica's context");
  CHECK_FALSE(second.met(1, 0, 1));
  call.count = 0;
  CHECK(first.announce(0, 1, call, outside));
  CHECK(first.data(0, 1) == outside);
}
